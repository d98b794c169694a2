package node

import (
	"fmt"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
)

// TestMailbag: what was put off holds up its conversation and nothing else, until it is time to begin anew.
func TestMailbag(t *testing.T) {
	item := func(id, from, conv string) client.RelayItem {
		return client.RelayItem{ID: id, Message: fmt.Appendf(nil, `{"from":%q,"conversation_id":%q}`, from, conv)}
	}
	now := time.Now()
	var b mailbag
	b.passed(item("relay_0", "am_a", "conv_1"))
	if b.open(now) != "" || b.wait(now) != relayWait {
		t.Errorf("with nothing put off it goes on behind %q and waits %v", b.open(now), b.wait(now))
	}
	b.putOff(item("relay_1", "am_a", "conv_1"), 0, now)
	for _, c := range []struct {
		item client.RelayItem
		want bool
	}{
		{item("relay_2", "am_a", "conv_1"), true},
		{item("relay_3", "am_a", "conv_2"), false},
		{item("relay_4", "am_b", "conv_1"), false}, // of the same name
		{client.RelayItem{ID: "relay_5", Message: []byte("{")}, false},
	} {
		if got := b.holds(c.item); got != c.want {
			t.Errorf("holds(%s) = %v, want %v", c.item.ID, got, c.want)
		}
		b.passed(c.item)
	}
	if b.open(now) != "relay_5" {
		t.Errorf("it goes on behind %q, want relay_5", b.open(now))
	}
	if !b.knows([]client.RelayItem{{ID: "relay_1"}, {ID: "relay_2"}}) || b.knows([]client.RelayItem{{ID: "relay_1"}, {ID: "relay_6"}}) || b.knows(nil) {
		t.Error("it does not tell what it put off from what is new")
	}

	// The shortest wait that was asked for counts, within bounds.
	b.putOff(item("relay_7", "am_c", "conv_1"), time.Second, now)
	if got := b.again.Sub(now); got != putOffLeast {
		t.Errorf("it begins anew after %v, want %v", got, putOffLeast)
	}
	b.putOff(item("relay_8", "am_d", "conv_1"), time.Hour, now)
	late := now.Add(putOffLeast)
	if b.wait(late.Add(-5*time.Second)) != 5*time.Second || b.wait(late) != time.Second {
		t.Errorf("shortly before that it waits %v", b.wait(late.Add(-5*time.Second)))
	}
	if b.open(late) != "" || b.holds(item("relay_2", "am_a", "conv_1")) {
		t.Error("it does not begin anew")
	}
}
