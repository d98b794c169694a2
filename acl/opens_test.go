package acl

import (
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// TestOpens checks that, of all changes about an ask, only the one that stores it as pending opens it.
func TestOpens(t *testing.T) {
	now := time.Now()
	q := &Asks{}
	ask, changes := q.Open(Ask{Kind: "message", Subject: "am_chris", Created: now, Expires: now.Add(time.Hour)}, SenderSlot("am_chris"))
	found := 0
	for _, c := range changes {
		if end, ok := Opens(c); ok {
			found++
			if !end.Equal(ask.Expires) {
				t.Errorf("it ends %s, want %s", end, ask.Expires)
			}
		}
	}
	if found != 1 {
		t.Errorf("%d of %d changes open it", found, len(changes))
	}
	ended := storedAsk{Ask: ask, Slot: "slot"}
	ended.State, ended.Decided = AskApproved, now
	for _, c := range append(append(ended.releaseSlot(nil), ended.change()), store.Change{Record: store.Record{NS: AskNamespace, Key: ask.ID}, Delete: true}, store.Change{Record: store.Record{NS: "inbox"}}) {
		if _, ok := Opens(c); ok {
			t.Errorf("%+v opens something", c)
		}
	}
}
