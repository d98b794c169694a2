package calendar

import (
	"context"
	"slices"
	"sort"
	"time"
)

// busy lists the times inside the window that the events of a calendar take, unsorted. Some rules are slow to expand,
// so busy fails if ctx ends first.
func (d calendarData) busy(ctx context.Context, window Interval) ([]Interval, []Problem, error) {
	var out []Interval
	add := func(i Interval) {
		if c, ok := i.clip(window); ok {
			out = append(out, c)
		}
	}
	for _, i := range d.blocked {
		add(i)
	}
	events, replacedOf := d.newest()
	laterOf := make(map[series][]event)
	for _, e := range events {
		if e.future {
			laterOf[e.series()] = append(laterOf[e.series()], e)
		}
	}
	for _, list := range laterOf {
		slices.SortStableFunc(list, func(a, b event) int { return a.replaced.instant().Compare(b.replaced.instant()) })
	}
	budget := maxCount // recurrences that may still be computed
	for _, e := range events {
		if e.free {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		var later []event // the events that change this one from a recurrence on, sorted
		if e.replaced == nil && e.uid != "" {
			later = laterOf[e.series()]
		}
		var widen time.Duration // how far a change moves a recurrence into the window, or how long it then takes
		for _, l := range later {
			widen = max(widen, l.start.instant().Sub(l.replaced.instant()).Abs()+l.length.estimate()+l.start.zone.blur)
		}
		starts, unclear := e.starts(Interval{window.Start.Add(-widen), window.End.Add(widen)}, &budget)
		for _, u := range unclear {
			d.addProblem(Problem{Source: e.source, UID: e.uid, Text: u.err.Error() + "; all the time from its start counts as busy"})
			add(Interval{e.start.instant(), u.end.Add(e.length.estimate())})
		}
		var excluded, replaced slots
		for _, m := range e.excluded {
			excluded.add(m)
		}
		if e.replaced == nil && e.uid != "" {
			replaced = replacedOf[e.series()]
		}
		perDay := make(map[int64]int)
		for _, start := range starts {
			perDay[start.date()]++
		}
		for _, start := range starts {
			alone := perDay[start.date()] == 1
			if excluded.has(start, alone) || replaced.has(start, alone) {
				continue
			}
			add(e.length.from(start))
			instant := start.instant()
			n := sort.Search(len(later), func(i int) bool { return later[i].replaced.instant().After(instant) })
			if n > 0 && !later[n-1].free {
				l := later[n-1]
				shift := e.start.zone.wall(l.start.instant()).Sub(e.start.zone.wall(l.replaced.instant()))
				add(l.length.from(moment{wall: start.wall.Add(shift), zone: zone{e.start.zone.loc, max(e.start.zone.blur, l.start.zone.blur)}}))
			}
		}
	}
	return out, d.problems, nil
}

// series identifies an event with all its recurrences. Files may describe an event differently: each counts.
type series struct{ source, uid string }

func (e event) series() series { return series{e.source, e.uid} }

// newest returns the events without those that a newer description of the same recurrence, or of the same event, makes
// invalid, and the recurrences that other events replace. If it cannot be told which description is newer, all of them
// count.
func (d calendarData) newest() (events []event, replacedOf map[series]slots) {
	type subject struct {
		series
		replaced int64
		isWhole  bool
		future   bool
	}
	subjectOf := func(e event) subject {
		if e.replaced == nil {
			return subject{series: e.series(), isWhole: true}
		}
		return subject{series: e.series(), replaced: e.replaced.instant().Unix(), future: e.future}
	}
	top := make(map[subject]version)
	replacedOf = make(map[series]slots)
	for _, e := range d.events {
		if e.replaced != nil {
			replaced := replacedOf[e.series()]
			replaced.add(*e.replaced)
			replacedOf[e.series()] = replaced
		}
		// An event that is marked as free may be the copy of an invited person, for whom it is free. A cancellation
		// is a newer description.
		if !e.free || e.cancelled {
			if s := subjectOf(e); e.version.compare(top[s]) > 0 {
				top[s] = e.version
			}
		}
	}
	for _, e := range d.events {
		if e.uid == "" || !e.version.isOlder(top[subjectOf(e)]) {
			events = append(events, e)
		}
	}
	return events, replacedOf
}

// slots are recurrences that are excluded or replaced.
type slots struct {
	exact map[slot]bool
	days  map[int64]bool // by date: some programs write only the date of the recurrence
}

// slot is the time of a recurrence. Times in a zone that is not known exactly equal only times in the same zone.
type slot struct {
	instant int64
	blur    time.Duration
}

func (m moment) slot() slot { return slot{m.instant().Unix(), m.zone.blur} }

func (s *slots) add(m moment) {
	if s.exact == nil {
		s.exact, s.days = make(map[slot]bool), make(map[int64]bool)
	}
	if m.day {
		s.days[m.date()] = true
	} else {
		s.exact[m.slot()] = true
	}
}

// has reports whether the recurrence that begins at start is one of s. A date names it only if it is alone on its day.
func (s slots) has(start moment, alone bool) bool {
	return s.exact[start.slot()] || alone && s.days[start.date()]
}

// unclear is a rule that is not expanded, and a time after its last recurrence.
type unclear struct {
	err error
	end time.Time
}

// starts lists the starts of the event's recurrences, without most of those outside the window. DTSTART is a recurrence
// even if the rules do not produce it. budget is that of listRecurrences.
func (e event) starts(window Interval, budget *int) (starts []moment, unknown []unclear) {
	starts = append([]moment{e.start}, e.extra...)
	const margin = 24 * time.Hour // for days that are longer than 24 hours
	window = Interval{window.Start.Add(-e.length.estimate() - e.start.zone.blur - margin), window.End.Add(margin)}
	for _, rule := range e.rules {
		first := e.start
		if fineRule.MatchString(rule) { // hours pass, whatever the clock shows
			first = moment{wall: asWall(e.start.instant().UTC()), zone: zone{time.UTC, e.start.zone.blur}}
		}
		walls, err := listRecurrences(rule, first, window, budget)
		if err != nil {
			unknown = append(unknown, unclear{err, latest(rule, window)})
			continue
		}
		for _, wall := range walls {
			if !wall.Equal(first.wall) { // it is listed already
				starts = append(starts, moment{wall: wall, zone: first.zone, day: first.day})
			}
		}
	}
	return starts, unknown
}
