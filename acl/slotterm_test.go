package acl

import (
	"slices"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// TestReleasedSlotKeepsItsTerm: if another ask takes over a slot, the slot still counts against the bound of its kind.
func TestReleasedSlotKeepsItsTerm(t *testing.T) {
	for _, slot := range []Slot{
		SenderSlot("am_chris"), SenderSlot("moltspeak:cats/cat@acme"),
		ConversationSlot(store.ConvKey{Peer: "am_chris", ID: "c1"}, "ask_1"), ConversationSlot(store.ConvKey{Peer: "a/b", ID: "c/d"}, "ask_1"),
	} {
		ended := storedAsk{Slot: slot.Key}
		next := storedAsk{Ask: Ask{ID: "ask_2", Expires: time.Now().Add(time.Hour)}}
		changes := ended.releaseSlot([]storedAsk{next})
		got := changes[len(changes)-1].Record
		if got.NS != nsOpen || got.Key != slot.Key || !slices.Equal(got.Terms, []string{slot.Term}) {
			t.Errorf("slot %s: record %s %s has the terms %q, want %q", slot.Key, got.NS, got.Key, got.Terms, slot.Term)
		}
	}
}
