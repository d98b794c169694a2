//go:build slow

package link

import (
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
)

// TestLinkJoin: a link sends a join message to a gateway that ignores the header. The first welcome counts, and what
// follows it does no harm (MEW-L1).
func TestLinkJoin(t *testing.T) {
	t.Parallel()
	joined := make(chan string, 8)
	srv := newOddGateway(t, joined)
	r := start(t, newClubConfig(t, allKinds))
	link := bridge.Link{Name: "home", Kind: Kind, URL: "ws" + strings.TrimPrefix(srv.URL, "http"), Space: "lab", Participant: "node"}
	k := newTestLink(t, r, Config{Links: []bridge.Link{link}, Mesh: bridgetest.Mesh{Receiver: blockedNode{make(chan struct{})}}, Records: r.Store.Records()})
	v := mewtest.Parse(t, <-joined)
	if v.GetStr("type") != "join" || v.GetStr("space") != "lab" || v.GetStr("token") != "node-token" || v.GetStr("participantId") != "node" {
		t.Errorf("the join is %s", v.JSON())
	}
	k.await("in", func() bool { return k.Links()[0].Peers == 1 })
	k.Disconnect()
	k.Reconnect()
}
