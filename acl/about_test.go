package acl_test

import (
	"testing"

	"github.com/agentmesh/agentmesh/acl"
)

// TestWithdrawAbout checks that WithdrawAbout withdraws the pending asks about a matter, and no others.
func TestWithdrawAbout(t *testing.T) {
	q := newQueue(t)
	open := func(about string) acl.Ask {
		t.Helper()
		ask, changes := q.Open(acl.Ask{Kind: "message", Subject: "mess:bob", About: about, Hash: "h", Created: start}, acl.Slot{})
		if err := q.store.Records().Apply(t.Context(), changes, start); err != nil {
			t.Fatal(err)
		}
		return ask
	}
	fridge, longer, decided := open("mess/fridge"), open("mess/fridge2"), open("mess/fridge")
	if _, err := q.Decide(t.Context(), decided.ID, decided.Hash, acl.Reject, "cli", start); err != nil {
		t.Fatal(err)
	}
	var seen []string
	changes, err := q.WithdrawAbout(t.Context(), "mess/fridge", func(a acl.Ask) bool { seen = append(seen, a.ID); return true }, start)
	if err != nil || len(seen) != 1 || seen[0] != fridge.ID {
		t.Fatalf("WithdrawAbout looked at %v, %v, want %s alone", seen, err, fridge.ID)
	}
	if err := q.store.Records().Apply(t.Context(), changes, start); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]acl.AskState{fridge.ID: acl.AskWithdrawn, longer.ID: acl.AskPending, decided.ID: acl.AskRejected} {
		if got, err := q.Get(t.Context(), id, start); err != nil || got.State != want {
			t.Errorf("%s about %s is %s, %v, want %s", id, got.About, got.State, err, want)
		}
	}
}
