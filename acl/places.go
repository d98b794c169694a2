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

// crowdFor is how long it is believed that no place can be had, after they were counted.
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

// crowd is who has the places of a term when all are taken.
type crowd struct {
	at     time.Time
	term   string
	places []place
	held   map[string]int // places by key of a source
}

func newCrowd(term string, places []place, now time.Time) *crowd {
	c := &crowd{at: now, term: term, places: places, held: make(map[string]int)}
	for _, p := range places {
		for _, s := range shared(p.Sources) {
			c.held[s.Key]++
		}
	}
	return c
}

// shared returns what a place counts for: its sources. All places without a source share like one wide network.
func shared(sources []rate.Source) []rate.Source {
	if len(sources) == 0 {
		return []rate.Source{{Width: maxWidth}}
	}
	return sources
}

// maxWidth is that of the widest network.
const maxWidth = 4

// load returns the places for each share of that one of the sources which has most, if each had some more. It is in
// quarters of a place.
func (c *crowd) load(sources []rate.Source, more int) (load int) {
	for _, s := range shared(sources) {
		load = max(load, (c.held[s.Key]+more)*maxWidth/max(1, s.Width))
	}
	return load
}

// victim returns the place that an ask from the sources may take: of the source that has most, the newest, those of cards
// with proven endpoints last. ok is false if that source would not have more than the new one even then.
func (c *crowd) victim(sources []rate.Source) (victim place, ok bool) {
	own, most := c.load(sources, 1), 0
	for _, p := range c.places {
		load := c.load(p.Sources, 0)
		if load <= own {
			continue
		}
		order := cmp.Or(cmp.Compare(load, most), -compareBools(p.Proven, victim.Proven), cmp.Compare(p.Ask, victim.Ask))
		if !ok || order > 0 {
			victim, most, ok = p, load, true
		}
	}
	return victim, ok
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// Committed makes the next question count the places again if a unit that is committed frees one. It is an observer for
// [store.Observed.OnCommit].
func (q *Asks) Committed(changes []store.Change) {
	if slices.ContainsFunc(changes, func(c store.Change) bool { return c.Delete && c.Record.NS == nsOpen }) {
		q.crowded.Store(nil)
	}
}

// makeRoom returns the changes that free a place for slot: none if there is one, and else those that end the ask which
// has it. It is store.ErrQuota if no place can be had.
func (q *Asks) makeRoom(ctx context.Context, slot Slot, now time.Time) ([]store.Change, error) {
	if c := q.crowded.Load(); c != nil && c.term == slot.Term && now.Sub(c.at).Abs() < crowdFor {
		if _, ok := c.victim(slot.Sources); !ok {
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
	victim, ok := c.victim(slot.Sources)
	if !ok {
		q.crowded.Store(c)
		return nil, store.ErrQuota
	}
	return q.displace(ctx, victim, now)
}

// displace returns the changes that end the ask which has the place, and those behind it: they expire now. They fail with
// store.ErrConflict if the place went to another ask meanwhile.
func (q *Asks) displace(ctx context.Context, p place, now time.Time) ([]store.Change, error) {
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
