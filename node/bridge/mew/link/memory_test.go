package link

import (
	"fmt"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
)

// TestLinkKeepsLittle: a space of somebody else cannot fill the memory of a node that participates in it (THREATS 22).
func TestLinkKeepsLittle(t *testing.T) {
	r := start(t, newClubConfig(t, allKinds))
	k := newTestLink(t, r, Config{Mesh: bridgetest.Mesh{Receiver: blockedNode{make(chan struct{})}}, Records: r.Store.Records()})
	k.l.space.mu.Lock()
	conn := k.l.space.conn
	k.l.space.mu.Unlock()
	before := mewtest.Heap()
	const each = 50
	long := strings.Repeat("y", 512<<10)
	for n := range each {
		for _, e := range []string{
			fmt.Sprintf(`{"id":"a%d","from":"system:gateway","kind":"system/presence","payload":{"event":"join","participant":{"id":"m%d","capabilities":[{"kind":"%s"}]}}}`, n, n, long),
			fmt.Sprintf(`{"id":"b%d","from":"gateway","kind":"stream/open","payload":{"stream_id":"s%d","description":"%s"}}`, n, n, long),
			fmt.Sprintf(`{"id":"c%d","from":"v%d","kind":"mcp/proposal","to":["x"],"payload":{"method":"%s"}}`, n, n, long),
			fmt.Sprintf(`{"id":"d%d","from":"w%d","kind":"reasoning/start","payload":{"x":"%s"}}`, n, n, long),
			fmt.Sprintf(`{"id":"e%d","from":"u%d","kind":"chat","payload":{"text":"%s"}}`, n, n, long),
		} {
			k.l.space.handle(t.Context(), conn, []byte(e))
		}
	}
	if grown := mewtest.Heap() - before; grown > view.MaxBoardBytes+8<<20 {
		t.Errorf("%d KiB are kept of %d envelopes", grown>>10, 5*each)
	}
	st := k.l.View()
	if len(st.Participants) <= each || len(st.Reasoning) != each || len(st.Proposals) == 0 {
		t.Errorf("too little is remembered: %d participants, %d sequences, %d proposals", len(st.Participants), len(st.Reasoning), len(st.Proposals))
	}
	if k.Links()[0].State != bridge.LinkUp {
		t.Error("the link went down")
	}
}
