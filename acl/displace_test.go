package acl_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/store"
)

// slotFrom returns the slot of a sender whose messages come from an address with a credential. Both may be "".
func slotFrom(sender, addr, credential string) acl.Slot {
	slot := acl.SenderSlot(sender)
	if addr != "" {
		slot.Sources = rate.AddrSources(netip.MustParseAddr(addr))
	}
	if credential != "" {
		slot.Sources = append(slot.Sources, rate.Source{Key: "credential:" + credential, Width: 1})
	}
	return slot
}

// holdAt opens an ask of the sender in slot, or joins it to the sender's open ask.
func (q *queue) holdAt(sender string, slot acl.Slot, now time.Time) (acl.Ask, error) {
	ask, changes, err := q.Join(q.t.Context(), acl.Ask{
		Kind: "message", Subject: sender, Conv: conv(sender, 0), Hash: "hash of " + sender, Size: 1, Body: json.RawMessage(`{}`), Created: now,
	}, slot)
	if err != nil {
		return ask, err
	}
	return ask, q.store.Records().Apply(q.t.Context(), changes, now)
}

func (q *queue) mustHold(sender string, slot acl.Slot, now time.Time) acl.Ask {
	q.t.Helper()
	ask, err := q.holdAt(sender, slot, now)
	if err != nil {
		q.t.Fatalf("hold %s: %v", sender, err)
	}
	return ask
}

// flood takes every slot from one address. 60 cards could not do so at once, but more cards come each hour.
func (q *queue) flood(addr string) (last acl.Ask) {
	q.t.Helper()
	for i := range 200 {
		sender := fmt.Sprintf("am_evil%d", i)
		last = q.mustHold(sender, slotFrom(sender, addr, fmt.Sprint(i%6)), start.Add(time.Duration(i)*time.Second))
	}
	return last
}

func (q *queue) pending(now time.Time) int {
	q.t.Helper()
	asks, _, err := q.List(q.t.Context(), acl.AskFilter{State: acl.AskPending}, "", 1000, now)
	if err != nil {
		q.t.Fatal(err)
	}
	return len(asks)
}

// TestNewcomerTakesASlot checks that a newcomer gets the newest slot of the source that has the most, and that the
// asks behind the displaced ask end as well (AM-33).
func TestNewcomerTakesASlot(t *testing.T) {
	q := newQueue(t)
	audit := acl.NewAudit(q.store.Records(), acl.AuditConfig{})
	q.LogTo(audit)
	newest := q.flood("192.0.2.1")
	now := start.Add(time.Hour)
	if _, err := q.holdAt("am_evil999", slotFrom("am_evil999", "192.0.2.1", "7"), now); !errors.Is(err, store.ErrQuota) {
		t.Fatalf("one more of the network that has all slots: %v, want a quota error", err)
	}
	behind := q.mustHold("am_evil199", slotFrom("am_evil199", "192.0.2.1", "1"), now)
	if behind.Behind != newest.ID {
		t.Fatalf("a second message of a held sender is behind %q, want %q", behind.Behind, newest.ID)
	}
	q.mustHold("am_new", slotFrom("am_new", "198.51.100.9", "new"), now)
	if n := q.pending(now); n != 200 {
		t.Errorf("%d asks wait, want 200", n)
	}
	for _, id := range []string{newest.ID, behind.ID} {
		ask, err := q.Get(t.Context(), id, now)
		if err != nil || ask.State != acl.AskExpired || !ask.Displaced.Equal(now) || ask.Behind != "" {
			t.Errorf("ask that lost its slot: %+v, %v, want it expired", ask, err)
		}
		if _, err := q.Decide(t.Context(), id, ask.Hash, acl.Approve, "cli", now); !errors.Is(err, acl.ErrAskGone) {
			t.Errorf("approve what lost its slot: %v, want ErrAskGone", err)
		}
	}
	if err := audit.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	lines, _, err := audit.List(t.Context(), acl.AuditFilter{Kind: acl.AuditExpired}, 0, 10, now)
	if err != nil || len(lines) != 2 || lines[0].Subject != "am_evil199" || lines[0].Note == "" {
		t.Errorf("audit log: %+v, %v, want two lines about am_evil199", lines, err)
	}
	if _, err := q.holdAt("am_evil199", slotFrom("am_evil199", "192.0.2.1", "1"), now); !errors.Is(err, store.ErrQuota) {
		t.Errorf("the displaced sender at once again: %v, want a quota error", err)
	}
	rejoined := q.mustHold("am_evil199", slotFrom("am_evil199", "203.0.113.5", "1"), now)
	if rejoined.Behind != "" {
		t.Errorf("the displaced sender from a network with a free share is behind %q, want a slot of its own", rejoined.Behind)
	}
	late := now.Add(25 * time.Hour)
	if _, err := q.Get(t.Context(), newest.ID, late); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("ask that lost its slot a day ago: %v, want it gone", err)
	}
}

// TestProvenEndpointsKeepTheirSlots checks that, within the source that has the most slots, cards with proven
// endpoints lose their slots last, and that a source that has fewer keeps its slots.
func TestProvenEndpointsKeepTheirSlots(t *testing.T) {
	q := newQueue(t)
	for i := range 200 {
		sender, addr := fmt.Sprintf("am_%d", i), "192.0.2.1"
		slot := slotFrom(sender, addr, "")
		if i >= 10 && i < 100 {
			slot = slotFrom(sender, "198.51.100.1", "") // fewer, and none of them proven
		}
		slot.Proven = i < 5 || i >= 110
		q.mustHold(sender, slot, start.Add(time.Duration(i)*time.Second))
	}
	now := start.Add(time.Hour)
	displaceOne := func() (subject string) {
		newcomer := fmt.Sprintf("am_new%d", now.Unix())
		q.mustHold(newcomer, slotFrom(newcomer, fmt.Sprintf("203.0.%d.1", now.Unix()%250), ""), now)
		asks, _, err := q.List(t.Context(), acl.AskFilter{State: acl.AskExpired}, "", 1000, now)
		if err != nil {
			t.Fatal(err)
		}
		for _, ask := range asks {
			if ask.Displaced.Equal(now) {
				subject = ask.Subject
			}
		}
		now = now.Add(time.Second)
		return subject
	}
	for i, want := range []string{"am_109", "am_108"} {
		if got := displaceOne(); got != want {
			t.Errorf("displaced %d: %s, want %s", i, got, want)
		}
	}
}

// TestWhoMayTakeASlot checks that senders from different networks do not displace one another, and that asks without a
// source count as one network.
func TestWhoMayTakeASlot(t *testing.T) {
	q := newQueue(t)
	for i := range 200 {
		sender := fmt.Sprintf("am_%d", i)
		q.mustHold(sender, slotFrom(sender, fmt.Sprintf("10.%d.0.1", i), ""), start)
	}
	if _, err := q.holdAt("am_new", slotFrom("am_new", "192.0.2.1", ""), start); !errors.Is(err, store.ErrQuota) {
		t.Errorf("the 201st network: %v, want a quota error", err)
	}

	q = newQueue(t)
	for i := range 200 {
		sender := fmt.Sprintf("am_%d", i)
		q.mustHold(sender, acl.SenderSlot(sender), start)
	}
	if _, err := q.holdAt("am_mail", acl.SenderSlot("am_mail"), start); !errors.Is(err, store.ErrQuota) {
		t.Errorf("one more without a source: %v, want a quota error", err)
	}
	q.mustHold("am_new", slotFrom("am_new", "192.0.2.1", ""), start)
}

// TestSlotsAreTakenOnce checks that, however many senders compete, no slot is taken twice, and there are never more
// than 200 slots (AM-33).
func TestSlotsAreTakenOnce(t *testing.T) {
	q := newQueue(t)
	q.flood("192.0.2.1")
	now := start.Add(time.Hour)
	var group sync.WaitGroup
	for i := range 40 {
		group.Go(func() {
			sender := fmt.Sprintf("am_new%d", i)
			for {
				_, err := q.holdAt(sender, slotFrom(sender, fmt.Sprintf("10.%d.0.1", i), ""), now)
				if err == nil {
					return
				}
				if !errors.Is(err, store.ErrConflict) {
					t.Errorf("newcomer %d: %v", i, err)
					return
				}
			}
		})
	}
	group.Wait()
	asks, _, err := q.List(t.Context(), acl.AskFilter{State: acl.AskExpired}, "", 1000, now)
	if n := q.pending(now); n != 200 || err != nil || len(asks) != 40 {
		t.Errorf("%d asks wait, %d lost their slots, %v; want 200 and 40", n, len(asks), err)
	}
}
