package calendar

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// busy lists the times inside the window that the events of a calendar take, unsorted. Some rules are slow to expand,
// so busy fails if ctx ends first.
func (d calendarData) busy(ctx context.Context, window Interval) ([]Interval, []Problem, error) {
	problems := d.problems
	var out []Interval
	add := func(i Interval) {
		if c, ok := i.clip(window); ok {
			out = append(out, c)
		}
	}
	for _, i := range d.blocked {
		add(i)
	}
	masters, overridesOf := d.splitOverrides()
	budget := maxCount // recurrences that may still be computed
	for _, e := range masters {
		if e.free {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		replacing := cmp.Or(overridesOf[e.uid], &overrides{})
		starts, err := e.starts(window, &budget)
		if err != nil {
			problems = append(problems, Problem{UID: e.uid, Text: err.Error() + "; all the time counts as busy"})
			add(window)
			continue
		}
		excluded, excludedDays := make(map[int64]bool), make(map[int64]bool)
		for _, m := range e.excluded {
			excluded[m.instant().Unix()] = true
			if m.day { // some programs write only the date of the recurrence that is excluded
				excludedDays[m.wall.Unix()] = true
			}
		}
		for _, start := range starts {
			instant := start.instant()
			if excluded[instant.Unix()] || excludedDays[start.wall.Truncate(24*time.Hour).Unix()] || replacing.replaces(instant) {
				continue
			}
			add(e.length.from(start))
		}
	}
	for _, replacing := range overridesOf {
		for _, o := range replacing.all {
			if !o.free {
				add(o.length.from(o.start))
			}
		}
	}
	return out, problems, nil
}

// splitOverrides separates the master events from their overrides, which replace recurrences, and keeps only the newest
// version of each (RFC 5545 §3.8.7.4). The key of overridesOf is the UID of the master.
func (d calendarData) splitOverrides() (masters []event, overridesOf map[string]*overrides) {
	newest := make(map[string]int)
	overridesOf = make(map[string]*overrides)
	for _, e := range d.events {
		if e.replaced != nil {
			if overridesOf[e.uid] == nil {
				overridesOf[e.uid] = &overrides{byInstant: make(map[int64]int)}
			}
			overridesOf[e.uid].add(e)
			continue
		}
		i, seen := newest[e.uid]
		switch {
		case e.uid == "" || !seen:
			newest[e.uid] = len(masters)
			masters = append(masters, e)
		case e.sequence >= masters[i].sequence:
			masters[i] = e
		}
	}
	return masters, overridesOf
}

// overrides are the events that replace recurrences of one event, at most one for each recurrence.
type overrides struct {
	all       []event
	byInstant map[int64]int // index in all, by the instant of the recurrence
}

// add adds an override or replaces an older one for the same recurrence.
func (o *overrides) add(e event) {
	instant := e.replaced.instant().Unix()
	i, seen := o.byInstant[instant]
	switch {
	case !seen:
		o.byInstant[instant] = len(o.all)
		o.all = append(o.all, e)
	case e.sequence >= o.all[i].sequence:
		o.all[i] = e
	}
}

// replaces reports whether an override replaces the recurrence that begins at start.
func (o *overrides) replaces(start time.Time) bool {
	_, ok := o.byInstant[start.Unix()]
	return ok
}

// starts lists the starts of the event's recurrences, without most of those outside the window. DTSTART is a recurrence
// even if the rule does not produce it. budget is that of listRecurrences.
func (e event) starts(window Interval, budget *int) ([]moment, error) {
	starts := append([]moment{e.start}, e.extra...)
	if e.rule == "" {
		return starts, nil
	}
	const margin = 24 * time.Hour // for days that are longer than 24 hours
	from, until := e.start.zone.wall(window.Start.Add(-e.length.estimate()-margin)), e.start.zone.wall(window.End.Add(margin))
	toWall := e.start.zone.wall
	if e.start.day { // programs write the last day as midnight in UTC or in the owner's zone; the later one counts
		toWall = func(t time.Time) time.Time {
			return slices.MaxFunc([]time.Time{t, e.start.zone.wall(t)}, time.Time.Compare)
		}
	}
	walls, err := listRecurrences(e.rule, e.start.wall, from, until, toWall, budget)
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
