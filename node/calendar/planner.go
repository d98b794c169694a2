package calendar

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// Config configures [NewPlanner]. Zero fields have the default value.
type Config struct {
	Sources  []Source       // at least one
	Zone     *time.Location // the owner's time zone; nil: UTC
	Hours    Hours          // the zero value: [DefaultHours]
	Buffer   time.Duration  // time that is kept free before and after an event
	Notice   time.Duration  // minimum time from now to an event
	Horizon  time.Duration  // maximum time from now to an event; zero: 60 days
	Step     time.Duration  // suggested times begin at multiples of Step; zero: 30 min
	Patience time.Duration  // time limit for reading all calendars; zero: 10 s
}

const (
	defaultHorizon  = 60 * 24 * time.Hour
	defaultStep     = 30 * time.Minute
	defaultPatience = 10 * time.Second
	margin          = 24 * time.Hour // added before and after a time that is checked, for buffers and working hours
)

// Planner finds out when the owner has time. It is safe for concurrent use.
type Planner struct {
	cfg Config

	mu       sync.Mutex
	reserved []reservation // times that answers promised and that may not be in a calendar yet
}

// reservation is a time that is promised for an event.
type reservation struct {
	Interval
	uid   string // UID of the event
	until time.Time
}

const (
	reserveFor  = 10 * time.Minute
	maxReserved = 1000
)

// NewPlanner returns a planner that reads cfg.Sources.
func NewPlanner(cfg Config) (*Planner, error) {
	if len(cfg.Sources) == 0 {
		return nil, errors.New("calendar: no source of busy times")
	}
	cfg.Zone = cmp.Or(cfg.Zone, time.UTC)
	if cfg.Hours.isEmpty() {
		cfg.Hours, _ = ParseHours(DefaultHours)
	}
	cfg.Horizon = cmp.Or(cfg.Horizon, defaultHorizon)
	cfg.Step = cmp.Or(cfg.Step, defaultStep)
	cfg.Patience = cmp.Or(cfg.Patience, defaultPatience)
	return &Planner{cfg: cfg}, nil
}

// View is the content of all calendars at one time, together with the times that are promised for other events.
type View struct {
	Problems []Problem // errors in the calendars; not nil

	planner *Planner
	now     time.Time
	busy    []Interval // sorted and merged
}

// Look reads every source. If a calendar cannot be read, Look returns an error, and only the owner can decide.
func (p *Planner) Look(ctx context.Context, now time.Time) (View, error) {
	return p.look(ctx, "", Interval{}, now)
}

// look is [Planner.Look] for one event. The time for which the event was agreed before counts as free, and so does a
// time that is promised for it. look ignores at most one entry of each source with the agreed time.
func (p *Planner) look(ctx context.Context, uid string, agreed Interval, now time.Time) (View, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Patience)
	defer cancel()
	v := View{Problems: []Problem{}, planner: p, now: now}
	window := Interval{now.Add(-margin), now.Add(p.cfg.Horizon + margin)}
	for _, s := range p.cfg.Sources {
		busy, problems, err := s.Busy(ctx, window, p.cfg.Zone)
		if err != nil {
			return View{}, err
		}
		if i := slices.IndexFunc(busy, func(b Interval) bool { return b.Start.Equal(agreed.Start) && b.End.Equal(agreed.End) }); i >= 0 {
			busy = slices.Delete(busy, i, i+1)
		}
		v.busy = append(v.busy, busy...)
		v.Problems = append(v.Problems, problems...)
	}
	p.mu.Lock()
	for _, r := range p.reserved {
		if r.uid != uid && now.Before(r.until) {
			v.busy = append(v.busy, r.Interval)
		}
	}
	p.mu.Unlock()
	v.busy = merge(v.busy)
	return v, nil
}

// isPartial reports whether a part of a calendar could not be read, so that a time that seems free may be taken.
func (v View) isPartial() bool {
	return slices.ContainsFunc(v.Problems, func(p Problem) bool { return p.Unread })
}

// Busy returns the busy times in chronological order.
func (v View) Busy() []Interval { return slices.Clone(v.busy) }

// Verdict is the result of [View.Judge]: Free, or the reason why an event cannot take place.
type Verdict string

const (
	Free    Verdict = "free"
	Taken   Verdict = "taken"
	Outside Verdict = "outside hours" // not within Config.Hours
	TooSoon Verdict = "too soon"      // see Config.Notice
	TooFar  Verdict = "too far ahead" // see Config.Horizon
)

// Judge returns Free if an event of length d can begin at start, or else the reason why it cannot.
func (v View) Judge(start time.Time, d time.Duration) Verdict {
	cfg := v.planner.cfg
	event := Interval{start, start.Add(d)}
	switch {
	case start.Before(v.now.Add(cfg.Notice)):
		return TooSoon
	case event.End.After(v.now.Add(cfg.Horizon)):
		return TooFar
	}
	inside := slices.ContainsFunc(cfg.Hours.within(Interval{start.Add(-margin), event.End.Add(margin)}, cfg.Zone), func(h Interval) bool {
		return !event.Start.Before(h.Start) && !event.End.After(h.End)
	})
	if !inside {
		return Outside
	}
	padded := Interval{start.Add(-cfg.Buffer), event.End.Add(cfg.Buffer)}
	if slices.ContainsFunc(v.busy, padded.overlaps) {
		return Taken
	}
	return Free
}

// searchDays is the number of days before and after the requested time in which Near searches.
const searchDays = 14

// Near returns the n free times for an event of length d that are closest to the requested time, or fewer, in
// chronological order. The times are at least d and at least an hour apart, also from the time after, which they follow. The
// zero time means no such time.
func (v View) Near(requested time.Time, d time.Duration, n int, after time.Time) []time.Time {
	cfg := v.planner.cfg
	minDistance := max(d, time.Hour)
	earliest := v.now.Add(cfg.Notice)
	if !after.IsZero() && earliest.Before(after.Add(minDistance)) {
		earliest = after.Add(minDistance)
	}
	if requested.Before(earliest) {
		requested = earliest
	}
	window := Interval{requested.AddDate(0, 0, -searchDays), requested.AddDate(0, 0, searchDays)}
	if window.Start.Before(earliest) {
		window.Start = earliest
	}
	var available []time.Time
	for _, h := range cfg.Hours.within(window, cfg.Zone) {
		for start := ceil(h.Start, cfg.Step, cfg.Zone); !start.Add(d).After(h.End); start = start.Add(cfg.Step) {
			if v.Judge(start, d) == Free {
				available = append(available, start)
			}
		}
	}
	slices.SortStableFunc(available, func(a, b time.Time) int {
		return int(a.Sub(requested).Abs()/time.Second) - int(b.Sub(requested).Abs()/time.Second)
	})
	var out []time.Time
	for _, t := range available {
		tooClose := slices.ContainsFunc(out, func(o time.Time) bool { return t.Sub(o).Abs() < minDistance })
		if !tooClose && len(out) < n {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, time.Time.Compare)
	return out
}

// ceil rounds t up to a multiple of step by the wall clock in zone.
func ceil(t time.Time, step time.Duration, zone *time.Location) time.Time {
	_, offset := t.In(zone).Zone()
	shift := time.Duration(offset) * time.Second
	rounded := t.Add(shift).Truncate(step)
	if rounded.Before(t.Add(shift)) {
		rounded = rounded.Add(step)
	}
	return rounded.Add(-shift)
}

// Reserve promises a time for an event for ten minutes; after that, the event should be in a calendar. An earlier
// promise for the same event ends. Reserve returns false if the time is promised for another event, or if there are
// too many promises.
func (p *Planner) Reserve(uid string, i Interval, now time.Time) bool {
	padded := Interval{i.Start.Add(-p.cfg.Buffer), i.End.Add(p.cfg.Buffer)}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reserved = slices.DeleteFunc(p.reserved, func(r reservation) bool { return !now.Before(r.until) || r.uid == uid })
	isTaken := slices.ContainsFunc(p.reserved, func(r reservation) bool { return r.overlaps(padded) })
	if isTaken || len(p.reserved) >= maxReserved {
		return false
	}
	p.reserved = append(p.reserved, reservation{i, uid, now.Add(reserveFor)})
	return true
}

// OnCommit ends the promises for events that the committed changes cancel. It is an observer for
// [store.Observed.OnCommit].
func (p *Planner) OnCommit(changes []store.Change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reserved = slices.DeleteFunc(p.reserved, func(r reservation) bool {
		return slices.ContainsFunc(changes, func(c store.Change) bool {
			return c.Record.NS == Namespace && c.Record.Key == r.uid && slices.Contains(c.Record.Terms, cancelled.term())
		})
	})
}

// Zone returns the owner's zone.
func (p *Planner) Zone() *time.Location { return p.cfg.Zone }
