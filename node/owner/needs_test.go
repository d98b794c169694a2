package owner_test

import (
	"testing"

	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestNeedsOwner: a message that asks something, a message of a person and a failure need the owner; a receipt, the end
// of a matter and an answer to the owner's own message do not.
func TestNeedsOwner(t *testing.T) {
	item := func(state owner.ItemState, kind string, intent wire.Intent, payload string) owner.Item {
		return owner.Item{State: state, Kind: kind, Intent: intent, Payload: []byte(payload)}
	}
	noted := item(owner.ItemNew, "reply", wire.Schedule, `{"action":"accept"}`)
	noted.Note = "unclear"
	cancels := item(owner.ItemNew, "message", wire.Schedule, `{"action":"cancel"}`)
	cancels.Cancels = "uid"
	for _, test := range []struct {
		name   string
		item   owner.Item
		agrees bool
		want   bool
	}{
		{"message", item(owner.ItemNew, "message", wire.Deliver, `{"action":"deliver","message":{"body":"x"}}`), true, true},
		{"read message", item(owner.ItemRead, "message", wire.Deliver, `{"action":"deliver","message":{"body":"x"}}`), false, false},
		{"answer", item(owner.ItemNew, "reply", wire.Deliver, `{"action":"deliver","message":{"body":"x"}}`), false, false},
		{"answer that asks", item(owner.ItemNew, "reply", wire.Deliver, `{"action":"deliver","message":{"body":"x","reply_requested":true}}`), false, true},
		{"message that wants no reply", item(owner.ItemNew, "message", wire.Deliver, `{"action":"deliver","message":{"body":"x","reply_requested":false}}`), false, false},
		{"counter as an answer", item(owner.ItemNew, "reply", wire.Schedule, `{"action":"counter"}`), true, true},
		{"accept", item(owner.ItemNew, "message", wire.Schedule, `{"action":"accept"}`), true, false},
		{"accept with a change", item(owner.ItemNew, "reply", wire.Schedule, `{"action":"accept"}`), false, true},
		{"unclear accept", noted, true, true},
		{"decline", item(owner.ItemNew, "message", wire.Schedule, `{"action":"decline"}`), true, false},
		{"cancel of an agreed event", cancels, true, true},
		{"custom intent", item(owner.ItemNew, "message", "com.example.book", `{"action":"cancel"}`), true, true},
		{"receipt", item(owner.ItemNew, "reply", "com.example.book", `{"action":"received"}`), true, false},
		{"failure", item(owner.ItemFailed, "message", wire.Deliver, `{}`), true, true},
		{"failed note, already read", owner.Item{State: owner.ItemRead, Note: "x"}, true, false},
		{"broken payload", item(owner.ItemNew, "reply", wire.Deliver, `{`), true, true},
	} {
		if got := test.item.NeedsOwner(test.agrees); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}
