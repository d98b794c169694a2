package calendar

import (
	"context"
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
	budget := maxCount // recurrences that may still be computed
	for _, e := range events {
		if e.free {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		starts, err := e.starts(window, &budget)
		if err != nil {
			d.addProblem(Problem{Source: e.source, UID: e.uid, Text: err.Error() + "; all the time counts as busy"})
			add(window)
			continue
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
			if !excluded.has(start, alone) && !replaced.has(start, alone) {
				add(e.length.from(start))
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
	}
	subjectOf := func(e event) subject {
		if e.replaced == nil {
			return subject{series: e.series(), isWhole: true}
		}
		return subject{series: e.series(), replaced: e.replaced.instant().Unix()}
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
	exact map[int64]bool // by instant
	days  map[int64]bool // by date: some programs write only the date of the recurrence
}

func (s *slots) add(m moment) {
	if s.exact == nil {
		s.exact, s.days = make(map[int64]bool), make(map[int64]bool)
	}
	if m.day {
		s.days[m.date()] = true
	} else {
		s.exact[m.instant().Unix()] = true
	}
}

// has reports whether the recurrence that begins at start is one of s. A date names it only if it is alone on its day.
func (s slots) has(start moment, alone bool) bool {
	return s.exact[start.instant().Unix()] || alone && s.days[start.date()]
}

// starts lists the starts of the event's recurrences, without most of those outside the window. DTSTART is a recurrence
// even if the rule does not produce it. budget is that of listRecurrences.
func (e event) starts(window Interval, budget *int) ([]moment, error) {
	starts := append([]moment{e.start}, e.extra...)
	if e.rule == "" {
		return starts, nil
	}
	const margin = 24 * time.Hour // for days that are longer than 24 hours
	walls, err := listRecurrences(e.rule, e.start, Interval{window.Start.Add(-e.length.estimate() - margin), window.End.Add(margin)}, budget)
	if err != nil {
		return nil, err
	}
	for _, wall := range walls {
		if wall.Equal(e.start.wall) {
			continue // it is listed already
		}
		starts = append(starts, moment{wall: wall, zone: e.start.zone, day: e.start.day})
	}
	return starts, nil
}
