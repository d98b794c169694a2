package acl

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/store"
)

// crowdFor is how long the count of the places is believed after it found no place.
const crowdFor = time.Second

// place is a slot that an open ask has, as it is stored.
type place struct {
	Ask     string        `json:"ask"`
	Sources []rate.Source `json:"sources,omitempty"`
	Proven  bool          `json:"proven,omitempty"`

	key string // of the slot
	rev store.Rev
}

// record returns the row of the slot with this key and term.
func (p place) record(key, term string, expires time.Time) store.Record {
	return store.Record{NS: nsOpen, Key: key, Terms: []string{term}, Body: encode(p), Expires: expires}
}

// decodePlace reads a row. One that an older version stored is the id of the ask alone.
func decodePlace(rec store.Record) (place, error) {
	p := place{key: rec.Key, rev: rec.Rev}
	if len(rec.Body) == 0 || rec.Body[0] != '{' {
		p.Ask = string(rec.Body)
		return p, nil
	}
	if err := json.Unmarshal(rec.Body, &p); err != nil {
		return place{}, fmt.Errorf("decode slot: %w", err)
	}
	return p, nil
}

// crowd tells who has the places of a term, as they were counted when all were taken.
type crowd struct {
	rate.Crowd[*place]
	at   time.Time
	term string
}

func newCrowd(term string, places []place, now time.Time) *crowd {
	c := &crowd{at: now, term: term}
	slices.SortFunc(places, func(a, b place) int { return cmp.Compare(a.Ask, b.Ask) }) // the newest gives way first
	for _, p := range places {
		c.Add(rate.Place[*place]{Key: &p, Sources: p.Sources, Last: p.Proven})
	}
	return c
}

// Committed makes the next question count the places again if a unit that is committed frees one. It is an observer for
// [store.Observed.OnCommit].
func (q *Asks) Committed(changes []store.Change) {
	if slices.ContainsFunc(changes, func(c store.Change) bool { return c.Delete && c.Record.NS == nsOpen }) {
		q.crowded.Store(nil)
	}
}

// MakeRoom returns the changes that free a place for slot, for the unit that opens an ask in it: none if a place is free,
// otherwise those that end the ask which has the place (AM-33). It fails with store.ErrQuota if no place can be had.
func (q *Asks) MakeRoom(ctx context.Context, slot Slot, now time.Time) ([]store.Change, error) {
	if c := q.crowded.Load(); c != nil && c.term == slot.Term && now.Sub(c.at).Abs() < crowdFor {
		if _, ok := c.Victim(slot.Sources, 1); !ok {
			return nil, store.ErrQuota
		}
	}
	page, err := q.records.List(ctx, nsOpen, slot.Term, "", slot.Max, now)
	if err != nil {
		return nil, fmt.Errorf("list slots: %w", err)
	}
	if len(page.Records) < slot.Max {
		return nil, nil
	}
	places := make([]place, len(page.Records))
	for i, rec := range page.Records {
		if places[i], err = decodePlace(rec); err != nil {
			return nil, err
		}
	}
	c := newCrowd(slot.Term, places, now)
	victim, ok := c.Victim(slot.Sources, 1)
	if !ok {
		q.crowded.Store(c)
		return nil, store.ErrQuota
	}
	return q.displace(ctx, victim, now)
}

// displace returns the changes that end the ask which has the place, and those behind it: they expire now. The changes
// fail with store.ErrConflict if the place went to another ask meanwhile.
func (q *Asks) displace(ctx context.Context, p *place, now time.Time) ([]store.Change, error) {
	changes := []store.Change{{Record: store.Record{NS: nsOpen, Key: p.key}, IfRev: p.rev, Delete: true}}
	first, tail, err := q.group(ctx, p.Ask, now)
	switch {
	case errors.Is(err, store.ErrNotFound): // its place was left behind
		return changes, nil
	case err != nil:
		return nil, err
	}
	for _, s := range append([]stored{first.leading(nil)}, tail...) {
		s.Behind, s.Seq, s.Displaced = "", 0, now.UTC()
		entry := s.entry(AuditExpired, now)
		entry.Note = "the list was full, and its place went to a sender whose network has fewer"
		changes = append(changes, s.change())
		if q.audit != nil {
			changes = append(changes, q.audit.Change(entry))
		}
	}
	return changes, nil
}
