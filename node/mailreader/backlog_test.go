package mailreader

import (
	"fmt"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
)

// TestBacklog: a postponed item delays its own conversation and nothing else, until the time to start over.
func TestBacklog(t *testing.T) {
	item := func(id, from, conv string) client.RelayItem {
		return client.RelayItem{ID: id, Message: fmt.Appendf(nil, `{"from":%q,"conversation_id":%q}`, from, conv)}
	}
	now := time.Now()
	var b backlog
	b.advance(item("relay_0", "am_a", "conv_1"))
	if b.position(now) != "" || b.maxPoll(now) != pollWait {
		t.Errorf("with nothing postponed it continues after %q and waits %v", b.position(now), b.maxPoll(now))
	}
	b.postpone(item("relay_1", "am_a", "conv_1"), 0, now)
	for _, c := range []struct {
		item client.RelayItem
		want bool
	}{
		{item("relay_2", "am_a", "conv_1"), true},
		{item("relay_3", "am_a", "conv_2"), false},
		{item("relay_4", "am_b", "conv_1"), false}, // another peer's conversation with the same id
		{client.RelayItem{ID: "relay_5", Message: []byte("{")}, false},
	} {
		if got := b.deferFollower(c.item); got != c.want {
			t.Errorf("holds(%s) = %v, want %v", c.item.ID, got, c.want)
		}
		b.advance(c.item)
	}
	if b.position(now) != "relay_5" {
		t.Errorf("it continues after %q, want relay_5", b.position(now))
	}
	if !b.hasAll([]client.RelayItem{{ID: "relay_1"}, {ID: "relay_2"}}) || b.hasAll([]client.RelayItem{{ID: "relay_1"}, {ID: "relay_6"}}) || b.hasAll(nil) {
		t.Error("it does not distinguish postponed items from new ones")
	}

	// The shortest requested wait counts, within bounds.
	b.postpone(item("relay_7", "am_c", "conv_1"), time.Second, now)
	if got := b.restart.Sub(now); got != minPostpone {
		t.Errorf("it starts over after %v, want %v", got, minPostpone)
	}
	b.postpone(item("relay_8", "am_d", "conv_1"), time.Hour, now)
	late := now.Add(minPostpone)
	if b.maxPoll(late.Add(-5*time.Second)) != 5*time.Second || b.maxPoll(late) != time.Second {
		t.Errorf("shortly before that it waits %v", b.maxPoll(late.Add(-5*time.Second)))
	}
	if b.position(late) != "" || b.deferFollower(item("relay_2", "am_a", "conv_1")) {
		t.Error("it does not start over")
	}
}
