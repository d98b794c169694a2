package link

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestFeed: broadcasts enter the feed once, and reach the node only if the policy accepts them (AR-56).
func TestFeed(t *testing.T) {
	x, n := newLinkedNode(t, nil, Config{})
	for range 2 {
		x.from("agent-042", `{"id":"q1","to":["*"],"type":"question","payload":"anybody?"}`)
	}
	x.from("agent-042", `{"id":"d1","to":["*"],"type":"discovery","payload":{"skills":["Go","cooking"]}}`)
	if got := n.all(); len(got) != 0 {
		t.Errorf("the node got %+v", got)
	}
	list := x.link.itemLog.latest(10)
	if len(list) != 2 || list[0].ID != "d1" || list[1].ID != "q1" || !list[1].Broadcast {
		t.Errorf("feed %+v", list)
	}
	if skills := x.link.peers.skills["agent-042"]; len(skills) != 2 || skills[0] != "go" {
		t.Errorf("skills %q", skills)
	}
	open, m := newLinkedNode(t, func(l *bridge.Link) { l.Policy.Broadcast = true }, Config{})
	open.from("agent-042", `{"id":"q1","to":["*"],"type":"question","payload":"anybody?"}`)
	open.from("agent-042", `{"id":"t1","to":["*"],"type":"thought","payload":"hm"}`)
	if got := m.all(); len(got) != 1 || got[0].Intent != wire.RequestInfo {
		t.Errorf("with broadcasts accepted, the node got %+v", got)
	}
}

// TestFeedBounded: the feed is bounded whatever arrives.
func TestFeedBounded(t *testing.T) {
	f := newItemLog()
	for n := range 20 * feedSize {
		f.add(FeedItem{ID: strconv.Itoa(n), From: "agent-042", At: time.Now()})
	}
	if len(f.list) != feedSize || len(f.seen)+len(f.old) > 2*maxSeen {
		t.Errorf("%d items and %d ids are kept", len(f.list), len(f.seen)+len(f.old))
	}
	for n := 20*feedSize - maxSeen; n < 20*feedSize; n++ {
		if f.add(FeedItem{ID: strconv.Itoa(n), From: "agent-042", At: time.Now()}) {
			t.Fatalf("item %d came twice", n)
		}
	}
	big := newFeedItem(&incoming{id: "x", payload: wire.Text(strings.Repeat("x", 50_000))})
	if !big.Truncated || len(big.Payload) > maxFeedBytes+2 {
		t.Errorf("an item of %d bytes", len(big.Payload))
	}
}
