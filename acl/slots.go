package acl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// fullFor is how long MakeRoom reuses a count that found no room.
const fullFor = time.Second

// takenSlot is a slot with the ask that took it.
type takenSlot struct {
	Ask     string        `json:"ask"`               // its id
	Sources []rate.Source `json:"sources,omitempty"` // see [Slot]
	Proven  bool          `json:"proven,omitempty"`  // the endpoint of the sender who caused the ask is proven

	key string // key of the slot
	rev store.Rev
}

// record returns the slot in its stored form. term is its [Slot.Term].
func (t takenSlot) record(key, term string, expires time.Time) store.Record {
	return store.Record{NS: nsOpen, Key: key, Terms: []string{term}, Body: wire.MustMarshal(t), Expires: expires}
}

func decodeSlot(rec store.Record) (takenSlot, error) {
	slot, err := store.Decode[takenSlot](rec)
	slot.key, slot.rev = rec.Key, rec.Rev
	return slot, err
}

// fullSlots holds the slots of one kind, all of which are taken. It is never changed.
type fullSlots struct {
	rate.FairTable[*takenSlot]
	term    string    // their [Slot.Term]
	counted time.Time // when MakeRoom found them all taken
}

func newFullSlots(term string, slots []takenSlot, now time.Time) *fullSlots {
	full := &fullSlots{term: term, counted: now}
	slices.SortFunc(slots, func(a, b takenSlot) int { return cmp.Compare(a.Ask, b.Ask) }) // the newest gives way first
	for _, slot := range slots {
		full.Add(rate.Entry[*takenSlot]{Key: &slot, Sources: slot.Sources, GivesWayLast: slot.Proven})
	}
	return full
}

// AfterCommit makes MakeRoom count again after a commit that frees a slot. Pass it to [store.Observed.OnCommit].
func (q *Asks) AfterCommit(changes []store.Change) {
	if slices.ContainsFunc(changes, func(c store.Change) bool { return c.Delete && c.Record.NS == nsOpen }) {
		q.full.Store(nil)
	}
}

// MakeRoom returns the changes that free a slot of the kind slot.Term, by ending the ask that must give way (AM-33).
// The caller commits them together with the new ask. If a slot is free, MakeRoom returns no changes. If no ask must
// give way, it fails with store.ErrQuota.
func (q *Asks) MakeRoom(ctx context.Context, slot Slot, now time.Time) ([]store.Change, error) {
	if full := q.full.Load(); full != nil && full.term == slot.Term && now.Sub(full.counted).Abs() < fullFor {
		if _, ok := full.FindDisplaceable(slot.Sources); !ok {
			return nil, store.ErrQuota
		}
	}
	if taken, err := q.records.Count(ctx, nsOpen, slot.Term, slot.Max, now); err != nil || taken < slot.Max {
		return nil, err
	}
	page, err := q.records.List(ctx, nsOpen, slot.Term, "", slot.Max, now)
	if err != nil {
		return nil, fmt.Errorf("list slots: %w", err)
	}
	slots := make([]takenSlot, len(page.Records))
	for i, rec := range page.Records {
		if slots[i], err = decodeSlot(rec); err != nil {
			return nil, err
		}
	}
	full := newFullSlots(slot.Term, slots, now)
	displaced, ok := full.FindDisplaceable(slot.Sources)
	if !ok {
		q.full.Store(full)
		return nil, store.ErrQuota
	}
	return q.displace(ctx, displaced, now)
}

// displace returns the changes by which the ask in the slot, and the asks queued behind it, expire now. The changes fail
// with store.ErrConflict if another ask got the slot meanwhile.
func (q *Asks) displace(ctx context.Context, slot *takenSlot, now time.Time) ([]store.Change, error) {
	changes := []store.Change{{Record: store.Record{NS: nsOpen, Key: slot.key}, IfRev: slot.rev, Delete: true}}
	first, tail, err := q.group(ctx, slot.Ask, now)
	switch {
	case errors.Is(err, store.ErrNotFound): // the ask was removed, but not its slot
		return changes, nil
	case err != nil:
		return nil, err
	}
	for _, s := range append([]storedAsk{first.withTail(nil)}, tail...) {
		s.Behind, s.Seq, s.Displaced = "", 0, now.UTC()
		entry := s.auditEntry(AuditExpired, now)
		entry.Note = "the list was full, and the slot went to a sender whose network has fewer slots"
		changes = q.appendEntry(append(changes, s.change()), entry)
	}
	return changes, nil
}
