package acl

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// Bounds on the asks that wait together, the first one included (AM-33).
const (
	maxTogether      = 16
	maxTogetherBytes = 64 << 10
)

// Chain returns the hash that names several asks in their order, given the hash of each. That of one ask is its own;
// each further one makes it the SHA-256 of the hash so far followed by its own, both as they are written, in hex.
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

// own returns the hash of the ask alone.
func (a Ask) own() string { return cmp.Or(a.OwnHash, a.Hash) }

// size returns the bytes of the ask that count; one that an older version stored has its body for them.
func (a Ask) size() int { return cmp.Or(a.Size, len(a.Body)) }

// shown returns how many of tail a decider saw who names hash. ok is false if hash names anything else.
func (s stored) shown(tail []stored, hash string) (n int, ok bool) {
	if hash == s.Hash {
		return len(tail), true
	}
	chain := s.own()
	for i, t := range tail {
		if hash == chain {
			return i, true
		}
		chain = Chain(chain, t.own())
	}
	return len(tail), hash == chain
}

// leading returns the ask as it stands with tail behind it.
func (s stored) leading(tail []stored) stored {
	own := s.own()
	hashes := []string{own}
	for _, t := range tail {
		hashes = append(hashes, t.own())
	}
	s.Hash, s.OwnHash, s.Waiting = Chain(hashes...), "", len(tail)
	if len(tail) > 0 {
		s.OwnHash = own
	}
	return s
}

// Join opens the ask in slot as [Asks.Open] does or, if another ask has the slot, behind that one. Then Behind of the
// returned ask is set, it expires with the first one at the latest, and it is shown and decided with it. If all places are
// taken, the ask gets that of another one whose source has more of them (AM-33). It is store.ErrQuota if no place can be
// had or as much waits behind the first ask as may, and store.ErrConflict if the first ask has just ended.
func (q *Asks) Join(ctx context.Context, ask Ask, slot Slot) (Ask, []store.Change, error) {
	now := ask.Created
	rec, err := q.records.Get(ctx, nsOpen, slot.Key, now)
	if errors.Is(err, store.ErrNotFound) {
		room, err := q.MakeRoom(ctx, slot, now)
		if err != nil {
			return Ask{}, nil, err
		}
		ask, changes := q.Open(ask, slot)
		return ask, append(room, changes...), nil
	}
	if err != nil {
		return Ask{}, nil, fmt.Errorf("read slot: %w", err)
	}
	has, err := decodePlace(rec)
	if err != nil {
		return Ask{}, nil, err
	}
	first, tail, err := q.group(ctx, has.Ask, now)
	switch {
	case errors.Is(err, store.ErrNotFound), err == nil && first.State != AskPending:
		return Ask{}, nil, store.ErrConflict
	case err != nil:
		return Ask{}, nil, err
	}
	bytes := first.size() + ask.size()
	for _, t := range tail {
		bytes += t.size()
	}
	if len(tail)+2 > maxTogether || bytes > maxTogetherBytes {
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
	return ask, append(changes, first.leading(append(tail, stored{Ask: ask})).change()), nil
}

// Tail returns the asks behind one: those that wait or, if that one is decided, those that were decided with it.
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

// tail returns the asks behind the one with id that are in a state, in order.
func (q *Asks) tail(ctx context.Context, id string, state AskState, now time.Time) (tail []stored, err error) {
	err = q.each(ctx, behindTerm(id), now, func(s stored) {
		if s.at(now).State == state {
			tail = append(tail, s)
		}
	})
	slices.SortFunc(tail, func(a, b stored) int { return a.Seq - b.Seq })
	return tail, err
}

// group returns the ask with id and what waits behind it. The id of one that waits behind another names that one.
func (q *Asks) group(ctx context.Context, id string, now time.Time) (first stored, tail []stored, err error) {
	first, err = q.get(ctx, id, now)
	if err == nil && first.Behind != "" && first.State == AskPending {
		first, err = q.get(ctx, first.Behind, now)
	}
	if err == nil && first.Waiting > 0 {
		tail, err = q.tail(ctx, first.ID, AskPending, now)
	}
	return first, tail, err
}

// regroup returns the changes to those asks that stay where the pending asks in gone leave: another ask becomes the
// first and has the slot, or the first one has fewer behind it.
func (q *Asks) regroup(ctx context.Context, gone []stored, now time.Time) (changes []store.Change, err error) {
	leaves := make(map[string]bool, len(gone))
	for _, s := range gone {
		leaves[s.ID] = true
	}
	done := make(map[string]bool)
	for _, s := range gone {
		id := cmp.Or(s.Behind, s.ID)
		if done[id] {
			continue
		}
		done[id] = true
		first, tail, err := q.group(ctx, id, now)
		if err != nil {
			return nil, err
		}
		rest := slices.DeleteFunc(tail, func(t stored) bool { return leaves[t.ID] })
		if leaves[id] {
			changes = append(changes, first.replaced(rest)...)
		} else {
			changes = append(changes, first.leading(rest).change())
		}
	}
	return changes, nil
}

// replaced returns the changes that give the slot of an ask which ends to the first of rest, with the others behind
// that one, or free it if there is no rest.
func (s stored) replaced(rest []stored) (changes []store.Change) {
	if len(rest) == 0 {
		if s.Slot != "" {
			changes = append(changes, freeing(s.Slot))
		}
		return changes
	}
	first := rest[0]
	first.Behind, first.Seq, first.Slot = "", 0, s.Slot
	for i, t := range rest[1:] {
		t.Behind = first.ID
		if first.Expires.Before(t.Expires) {
			t.Expires = first.Expires
		}
		rest[i+1] = t
		changes = append(changes, t.change())
	}
	term, _, _ := strings.Cut(s.Slot, "/")
	slot := first.place().record(s.Slot, term, first.Expires)
	return append(changes, first.leading(rest[1:]).change(), store.Change{Record: slot, IfRev: store.Any})
}
