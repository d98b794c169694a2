package acl_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/store"
)

// TestSenderSlots checks that there is one held message per unknown sender and 200 in total, and that a decision, a
// withdrawal and expiry each free a slot (AM-33).
func TestSenderSlots(t *testing.T) {
	q := newQueue(t)
	first := q.mustOpen("am_0", start)
	if _, err := q.open("am_0", acl.SenderSlot("am_0"), start); !errors.Is(err, store.ErrConflict) {
		t.Errorf("second ask about one sender: %v, want a conflict", err)
	}
	for i := 1; i < 200; i++ {
		q.mustOpen(fmt.Sprintf("am_%d", i), start)
	}
	next := start.Add(time.Minute)
	more := func(now time.Time) error {
		_, err := q.open("am_more", acl.SenderSlot("am_more"), now)
		return err
	}
	if err := more(next); !errors.Is(err, store.ErrQuota) {
		t.Fatalf("ask 201: %v, want a quota error", err)
	}

	if _, err := q.Decide(t.Context(), first.ID, first.Hash, acl.Reject, "cli", next); err != nil {
		t.Fatal(err)
	}
	if err := more(next); err != nil {
		t.Errorf("ask after a decision: %v", err)
	}

	changes, err := q.Withdraw(t.Context(), conv("am_1", 0), anyAsk, next)
	if err != nil {
		t.Fatal(err)
	}
	if err := q.store.Records().Apply(t.Context(), changes, next); err != nil {
		t.Fatal(err)
	}
	q.mustOpen("am_0", next)
	if _, err := q.open("am_1", acl.SenderSlot("am_1"), next); !errors.Is(err, store.ErrQuota) {
		t.Errorf("ask 201 again: %v, want a quota error", err)
	}
	q.mustOpen("am_1", start.Add(7*24*time.Hour))
}

// TestConversationSlots checks that there are 16 holds per conversation for known senders (AM-33).
func TestConversationSlots(t *testing.T) {
	q := newQueue(t)
	open := func(key store.ConvKey) error {
		id := acl.NewAskID(start)
		_, changes := q.Open(acl.Ask{ID: id, Kind: "message", Conv: key, Created: start}, acl.ConversationSlot(key, id))
		return q.store.Records().Apply(t.Context(), changes, start)
	}
	for i := range 16 {
		if err := open(conv("am_a", 0)); err != nil {
			t.Fatalf("hold %d: %v", i+1, err)
		}
	}
	if err := open(conv("am_a", 0)); !errors.Is(err, store.ErrQuota) {
		t.Errorf("hold 17: %v, want a quota error", err)
	}
	if err := open(conv("am_a", 1)); err != nil {
		t.Errorf("hold in another conversation: %v", err)
	}
	changes, err := q.Withdraw(t.Context(), conv("am_a", 0), anyAsk, start)
	if err != nil {
		t.Fatal(err)
	}
	if err := q.store.Records().Apply(t.Context(), changes, start); err != nil {
		t.Fatal(err)
	}
	if err := open(conv("am_a", 0)); err != nil {
		t.Errorf("hold after the withdrawal: %v", err)
	}
}
