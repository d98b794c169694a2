package link

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// TestFeedIsShared: an agent that sends without end does not push the items of others out of the feed. If all agents
// have equally many items, the oldest item goes (AR-56).
func TestFeedIsShared(t *testing.T) {
	f := newItemLog()
	add := func(from string, n int) {
		f.add(FeedItem{ID: fmt.Sprint(from, n), From: from, At: time.Now()})
	}
	for n := range 3 {
		add("quiet", n)
	}
	for n := range 3 * feedSize {
		add("loud", n)
	}
	add("late", 0)
	newest := f.latest(feedSize + 1)
	if len(newest) != feedSize || newest[0].From != "late" || newest[1].ID != fmt.Sprint("loud", 3*feedSize-1) || newest[feedSize-1].ID != "quiet0" {
		t.Errorf("%d items, from %+v to %+v", len(newest), newest[0], newest[len(newest)-1])
	}
	f = newItemLog()
	for n := range feedSize + 1 {
		add("agent"+strconv.Itoa(n), 0)
	}
	if all := f.latest(feedSize); all[len(all)-1].From != "agent1" {
		t.Errorf("of one item each, that of %s is the oldest, want agent1", all[len(all)-1].From)
	}
}

// TestNewcomersKeyIsUsed: while agents that only announce keys fill the store, the key of another agent is used at
// once, and stored when that agent writes (AR-49).
func TestNewcomersKeyIsUsed(t *testing.T) {
	x, _ := newLinkedNode(t, nil, Config{})
	var keys []string
	for range 2 {
		_, recipient, err := signing.GenerateAge()
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, recipient)
	}
	announce := func(peer, key string) {
		x.from(peer, `{"id":"d-%s","type":"discovery","to":["*"],"payload":{"skills":["go"],"age_recipient":"%s"}}`, peer, key)
	}
	x.from("talker", `{"id":"t1","type":"question","payload":"hello?"}`)
	announce("talker", keys[0])
	for n := range maxPinned + 10 {
		announce(fmt.Sprintf("evil-%d", n), keys[0])
	}
	announce("newcomer", keys[1])
	for n := range maxHints / 2 {
		announce(fmt.Sprintf("more-evil-%d", n), keys[0])
	}
	announce("newcomer", keys[0]) // the first key counts
	kept := func(peer string) string {
		p, err := x.link.peers.get(t.Context(), peer)
		if err != nil {
			t.Fatal(err)
		}
		return p.Recipient
	}
	if kept("newcomer") != "" {
		t.Fatal("the store had room for the newcomer's key, so the test proves nothing")
	}
	x.from("newcomer", `{"id":"q1","type":"question","payload":"anybody?"}`)
	if got := kept("newcomer"); got != keys[1] {
		t.Errorf("the newcomer wrote, and its key is %q, want %q", got, keys[1])
	}
	announce("reader", keys[1])
	sealed, err := x.link.seal(t.Context(), "reader", []byte(`{"to":["reader"],"type":"thought","payload":"a secret"}`))
	if v, bad := wire.Parse(sealed); err != nil || bad != nil || v.GetStr("type") != "encrypted" {
		t.Errorf("to a newcomer leaves %s, %v", sealed, err)
	}
	all, err := x.link.peers.all(t.Context())
	if err != nil || len(all) != maxPinned || all["talker"].Recipient != keys[0] || all["reader"].Recipient != keys[1] {
		t.Errorf("%d keys are kept, %v; of the talker %q, of the reader %q", len(all), err, all["talker"].Recipient, all["reader"].Recipient)
	}
}
