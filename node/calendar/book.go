package calendar

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/work"
)

// Namespace is the record namespace of agreed events.
const Namespace = "calendar"

// BookConfig configures [NewBook]. Records is required.
type BookConfig struct {
	Records store.Records
	Writer  Writer // nil: events are kept only in Records
	// Failed is called after the first failed attempt to write an event or to remove a cancelled one. It may be nil.
	Failed func(ctx context.Context, e Event, isCancelled bool, err error)
	Logger *slog.Logger // nil discards
}

// Book stores agreed events and writes them to the owner's calendar. The record of an event is stored in the same
// transaction as the agreement, so no agreed event is lost. The book tries to write an event until it succeeds, or
// until a day after the end of the event. It is safe for concurrent use.
type Book struct {
	cfg BookConfig
}

var _ Source = (*Book)(nil)

// NewBook returns a book. Its events are written while a worker has its [Book.Queue].
func NewBook(cfg BookConfig) *Book {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Failed == nil {
		cfg.Failed = func(context.Context, Event, bool, error) {}
	}
	return &Book{cfg: cfg}
}

type state string

const (
	pending   state = "pending" // to be written
	written   state = "written"
	cancelled state = "removed" // to be deleted from the calendar
)

func (s state) term() string { return "state:" + string(s) }

// entry is the record of an event.
type entry struct {
	Event    Event     `json:"event"`
	State    state     `json:"state"`
	Attempts int       `json:"attempts,omitempty"`
	Due      time.Time `json:"due,omitzero"`

	rev store.Rev
}

const keepAfter = 24 * time.Hour // how long an entry is kept after the end of its event, or after the agreement if that is later

func (e entry) record() store.Record {
	end := e.Event.Start.Add(e.Event.Duration)
	if made := e.Event.Made; end.Before(made) {
		end = made
	}
	rec := store.Record{NS: Namespace, Key: e.Event.UID, Body: wire.MustMarshal(e), Terms: []string{e.State.term()}, Expires: end.Add(keepAfter)}
	if e.State != written {
		rec.Due = cmp.Or(e.Due, store.DueNow)
	}
	return rec
}

// Add returns the change that stores an event, or replaces one with the same UID, for the transaction that makes the
// agreement.
func (b *Book) Add(e Event) store.Change {
	return store.Change{Record: entry{Event: e, State: pending}.record(), IfRev: store.Any}
}

// Cancel returns an event and the changes that cancel it, or no changes if the event is unknown or already cancelled.
func (b *Book) Cancel(ctx context.Context, uid string, now time.Time) (Event, []store.Change, error) {
	e, err := b.find(ctx, uid, now)
	if err != nil || e.Event.UID == "" {
		return Event{}, nil, err
	}
	e.State, e.Attempts, e.Due = cancelled, 0, time.Time{}
	return e.Event, []store.Change{{Record: e.record(), IfRev: e.rev}}, nil
}

// find returns the entry of an event, or the zero entry if the event is unknown or already cancelled.
func (b *Book) find(ctx context.Context, uid string, now time.Time) (entry, error) {
	var e entry
	rev, found, err := store.ReadRecord(ctx, b.cfg.Records, Namespace, uid, &e, now)
	if err != nil {
		return entry{}, fmt.Errorf("read agreed event: %w", err)
	}
	if !found || e.State == cancelled {
		return entry{}, nil
	}
	e.rev = rev
	return e, nil
}

const (
	writeTime  = 30 * time.Second // bounds one attempt
	firstPause = time.Minute      // after the first failure; it doubles with each further failure
	lastPause  = time.Hour        // the longest pause after a failure
)

// Queue returns the work of writing events to the calendar, one after the other.
func (b *Book) Queue() work.Queue {
	return work.Queue{NS: Namespace, Term: pending.term(), Max: 1, MaxPause: lastPause, Do: func(ctx context.Context, rec store.Record, _ bool) (work.Later, error) {
		e, err := decodeEntry(rec)
		if err == nil {
			err = b.write(ctx, e, time.Now())
		}
		return work.Later{}, err
	}}
}

// write tries to write one entry, and stores the outcome.
func (b *Book) write(ctx context.Context, e entry, now time.Time) error {
	limited, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	var err error
	switch {
	case b.cfg.Writer == nil:
	case e.State == cancelled:
		err = b.cfg.Writer.Remove(limited, e.Event.UID)
	default:
		err = b.cfg.Writer.Put(limited, e.Event)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	isRemoved := err == nil && e.State == cancelled
	switch {
	case err != nil:
		if e.Attempts == 0 {
			b.cfg.Failed(ctx, e.Event, e.State == cancelled, err)
		}
		b.cfg.Logger.Warn("event not written to the calendar; the next attempt is later", "uid", e.Event.UID, "attempt", e.Attempts+1, "err", err)
		e.Due = now.Add(min(firstPause<<min(e.Attempts, 6), lastPause))
		e.Attempts++
	case !isRemoved:
		if b.cfg.Writer != nil {
			b.cfg.Logger.Info("event written", "uid", e.Event.UID)
		}
		e.State = written
	}
	return b.cfg.Records.Apply(ctx, []store.Change{{Record: e.record(), IfRev: e.rev, Delete: isRemoved}}, now)
}

// Name implements [Source].
func (b *Book) Name() string { return "agreed events" }

// Busy lists the times of the agreed events, so that they count as busy before they are in the owner's calendar.
func (b *Book) Busy(ctx context.Context, window Interval, _ *time.Location) ([]Interval, []Problem, error) {
	events, err := b.Events(ctx, window.Start)
	var out []Interval
	for _, e := range events {
		if i, ok := (Interval{e.Start, e.Start.Add(e.Duration)}).clip(window); ok {
			out = append(out, i)
		}
	}
	return out, nil, err
}

// countOn counts the events that were agreed for the day of t, in the zone of t, except the one with this UID.
func (b *Book) countOn(ctx context.Context, t time.Time, except string, now time.Time) (n int, err error) {
	events, err := b.Events(ctx, now)
	for _, e := range events {
		if e.UID != except && e.Start.In(t.Location()).Format(time.DateOnly) == t.Format(time.DateOnly) {
			n++
		}
	}
	return n, err
}

// Events lists the agreed events that the book still keeps, in chronological order. The list is not nil.
func (b *Book) Events(ctx context.Context, now time.Time) ([]Event, error) {
	out, seen := []Event{}, 0
	for e, err := range store.DecodeAll(ctx, b.cfg.Records, Namespace, "", now, decodeEntry) {
		if err != nil {
			return out, fmt.Errorf("list agreed events: %w", err)
		}
		if seen++; seen > maxEntries {
			return out, fmt.Errorf("more than %d agreed events", maxEntries)
		}
		if e.State != cancelled {
			out = append(out, e.Event)
		}
	}
	slices.SortStableFunc(out, func(a, b Event) int { return a.Start.Compare(b.Start) })
	return out, nil
}

const maxEntries = 10_000

func decodeEntry(rec store.Record) (entry, error) {
	e, err := store.Decode[entry](rec)
	e.rev = rec.Rev
	return e, err
}
