package acl

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// Bounds on an ask and the asks queued behind it, together (AM-33).
const (
	maxTogether      = 16
	maxTogetherBytes = 64 << 10
)

// Chain returns the hash of a list of asks, computed from the hash of each. It starts with the hash of the first ask.
// For each further ask, it is the SHA-256 of the chain so far followed by the hash of the ask, both as hex text.
func Chain(hashes ...string) string {
	chain := ""
	for i, h := range hashes {
		if i == 0 {
			chain = h
			continue
		}
		sum := sha256.Sum256([]byte(chain + h))
		chain = hex.EncodeToString(sum[:])
	}
	return chain
}

// ownHash returns the hash of the ask alone, without the asks behind it.
func (a Ask) ownHash() string { return cmp.Or(a.OwnHash, a.Hash) }

// countShown returns how many asks of tail the owner saw. ok is false if hash is neither the hash of the ask alone nor
// its hash with the first asks of tail.
func (s storedAsk) countShown(tail []storedAsk, hash string) (n int, ok bool) {
	if hash == s.Hash { // it covers the whole tail
		return len(tail), true
	}
	chain := s.ownHash()
	for i, t := range tail {
		if hash == chain {
			return i, true
		}
		chain = Chain(chain, t.ownHash())
	}
	return len(tail), hash == chain
}

// withTail returns the ask with the asks in tail behind it: with their number, and with the hash of all of them.
func (s storedAsk) withTail(tail []storedAsk) storedAsk {
	own := s.ownHash()
	hashes := []string{own}
	for _, t := range tail {
		hashes = append(hashes, t.ownHash())
	}
	s.Hash, s.OwnHash, s.Waiting = Chain(hashes...), "", len(tail)
	if len(tail) > 0 {
		s.OwnHash = own
	}
	return s
}

// Join opens the ask in slot, as [Asks.Open] does, or queues it behind the ask that has the slot. A queued ask has
// Behind set, expires no later than the first ask, and is shown and decided with it. If all slots are taken, the ask
// displaces an ask from an address or network that has more slots (AM-33). Join returns store.ErrQuota if no ask can be
// displaced or the queue is full, and store.ErrConflict if the first ask has just ended.
func (q *Asks) Join(ctx context.Context, ask Ask, slot Slot) (Ask, []store.Change, error) {
	now := ask.Created
	rec, err := q.records.Get(ctx, nsOpen, slot.Key, now)
	if errors.Is(err, store.ErrNotFound) {
		displacing, err := q.MakeRoom(ctx, slot, now)
		if err != nil {
			return Ask{}, nil, err
		}
		ask, changes := q.Open(ask, slot)
		return ask, append(displacing, changes...), nil
	}
	if err != nil {
		return Ask{}, nil, fmt.Errorf("read slot: %w", err)
	}
	holder, err := decodeSlot(rec)
	if err != nil {
		return Ask{}, nil, err
	}
	first, tail, err := q.group(ctx, holder.Ask, now)
	switch {
	case errors.Is(err, store.ErrNotFound), err == nil && first.State != AskPending:
		return Ask{}, nil, store.ErrConflict
	case err != nil:
		return Ask{}, nil, err
	}
	bytes := first.Size + ask.Size
	for _, t := range tail {
		bytes += t.Size
	}
	if len(tail)+2 > maxTogether || bytes > maxTogetherBytes { // 2: the first ask and the new one
		return Ask{}, nil, store.ErrQuota
	}
	ask.Behind, ask.Seq = first.ID, 1
	if len(tail) > 0 {
		ask.Seq = tail[len(tail)-1].Seq + 1
	}
	if ask.Expires.IsZero() || first.Expires.Before(ask.Expires) {
		ask.Expires = first.Expires
	}
	ask, changes := q.Open(ask, Slot{Sources: slot.Sources, Proven: slot.Proven})
	return ask, append(changes, first.withTail(append(tail, storedAsk{Ask: ask})).change()), nil
}

// Tail returns the asks behind ask: the pending ones or, after a decision, those decided with it.
func (q *Asks) Tail(ctx context.Context, ask Ask, now time.Time) ([]Ask, error) {
	if ask.Waiting == 0 {
		return nil, nil
	}
	tail, err := q.tail(ctx, ask.ID, ask.State, now)
	asks := make([]Ask, len(tail))
	for i, t := range tail {
		asks[i] = t.Ask
	}
	return asks, err
}

// tail returns the asks in this state that are behind the ask with this id, in order.
func (q *Asks) tail(ctx context.Context, id string, state AskState, now time.Time) (tail []storedAsk, err error) {
	err = q.forEach(ctx, behindTerm(id), now, func(s storedAsk) {
		if s.at(now).State == state {
			tail = append(tail, s)
		}
	})
	slices.SortFunc(tail, func(a, b storedAsk) int { return a.Seq - b.Seq })
	return tail, err
}

// group returns the ask with this id and the pending asks behind it. If that ask is itself queued behind another, it
// returns the group of the other one.
func (q *Asks) group(ctx context.Context, id string, now time.Time) (first storedAsk, tail []storedAsk, err error) {
	first, err = q.get(ctx, id, now)
	if err == nil && first.Behind != "" && first.State == AskPending {
		first, err = q.get(ctx, first.Behind, now)
	}
	if err == nil && first.Waiting > 0 {
		tail, err = q.tail(ctx, first.ID, AskPending, now)
	}
	return first, tail, err
}

// regroup returns the changes to the asks that stay when the pending asks in ending end. A first ask that stays has fewer
// asks behind it; if the first ask ends, the next one takes over its slot.
func (q *Asks) regroup(ctx context.Context, ending []storedAsk, now time.Time) (changes []store.Change, err error) {
	isEnding := make(map[string]bool, len(ending))
	for _, s := range ending {
		isEnding[s.ID] = true
	}
	done := make(map[string]bool) // by the id of the first ask
	for _, s := range ending {
		id := cmp.Or(s.Behind, s.ID)
		if done[id] {
			continue
		}
		done[id] = true
		first, tail, err := q.group(ctx, id, now)
		if err != nil {
			return nil, err
		}
		remaining := slices.DeleteFunc(tail, func(t storedAsk) bool { return isEnding[t.ID] })
		if isEnding[id] {
			changes = append(changes, first.releaseSlot(remaining)...)
		} else {
			changes = append(changes, first.withTail(remaining).change())
		}
	}
	return changes, nil
}

// releaseSlot returns the changes to the slot of an ask that ends. The first of remaining takes over the slot, with the
// others behind it. If remaining is empty, the slot becomes free.
func (s storedAsk) releaseSlot(remaining []storedAsk) (changes []store.Change) {
	if len(remaining) == 0 {
		if s.Slot != "" {
			changes = append(changes, store.Change{Record: store.Record{NS: nsOpen, Key: s.Slot}, IfRev: store.Any, Delete: true})
		}
		return changes
	}
	first := remaining[0]
	first.Behind, first.Seq, first.Slot = "", 0, s.Slot
	for i, t := range remaining[1:] {
		t.Behind = first.ID
		if first.Expires.Before(t.Expires) {
			t.Expires = first.Expires
		}
		remaining[i+1] = t
		changes = append(changes, t.change())
	}
	slot := first.takenSlot().record(s.Slot, slotTerm(s.Slot), first.Expires)
	return append(changes, first.withTail(remaining[1:]).change(), store.Change{Record: slot, IfRev: store.Any})
}
