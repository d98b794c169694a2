package calendar

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sort"
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
		moved, longest := replacing.maxChange(e.start.zone)
		starts, err := e.starts(window, max(longest, e.length.estimate()), &budget)
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
			if o := replacing.findFollowing(instant); o == nil {
				add(e.length.from(start))
			} else if !o.free {
				add(o.length.from(o.shiftStart(start)))
			}
		}
		if moved > maxShift { // starts did not list all recurrences that may have moved into the window
			problems = append(problems, Problem{UID: e.uid, Text: "some recurrences moved by days; all the time counts as busy"})
			add(window)
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
	for _, o := range overridesOf {
		o.sortFollowing()
	}
	return masters, overridesOf
}

// overrides are the events that replace recurrences of one event, at most one for each recurrence.
type overrides struct {
	all       []event
	byInstant map[int64]int // index in all, by the instant of the recurrence
	following []event       // the overrides that also move all later recurrences (RFC 5545 §3.2.13), in order
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

// sortFollowing fills following. Call it when all overrides are added.
func (o *overrides) sortFollowing() {
	for _, e := range o.all {
		if e.andFollowing {
			o.following = append(o.following, e)
		}
	}
	slices.SortFunc(o.following, func(a, b event) int { return a.replaced.instant().Compare(b.replaced.instant()) })
}

// replaces reports whether an override replaces the recurrence that begins at start.
func (o *overrides) replaces(start time.Time) bool {
	_, ok := o.byInstant[start.Unix()]
	return ok
}

// findFollowing returns the last override at or before start that also moves all later recurrences, or nil.
func (o *overrides) findFollowing(start time.Time) *event {
	n := sort.Search(len(o.following), func(i int) bool { return o.following[i].replaced.instant().After(start) })
	if n == 0 {
		return nil
	}
	return &o.following[n-1]
}

// shift returns how far an override moves the recurrence that it replaces, by the wall clock of zone.
func (e event) shift(zone zone) time.Duration {
	return zone.wall(e.start.instant()).Sub(zone.wall(e.replaced.instant()))
}

// shiftStart moves the start of a later recurrence by the distance that e moves its own recurrence.
func (e event) shiftStart(start moment) moment {
	start.wall = start.wall.Add(e.shift(start.zone))
	return start
}

// maxChange returns the largest shift, in either direction, and the largest length of the overrides in following.
func (o *overrides) maxChange(zone zone) (shift, length time.Duration) {
	for _, e := range o.following {
		shift, length = max(shift, e.shift(zone).Abs()), max(length, e.length.estimate())
	}
	return shift, length
}

// maxShift is how far an override of following recurrences may move them; see [event.starts].
const maxShift = 24 * time.Hour

// maxRules bounds the rules of one event, which should have one (RFC 5545 §3.8.5.3).
const maxRules = 16

// starts lists the starts of the event's recurrences, which take at most about length. It leaves out the recurrences of
// rules that are outside the window even if they move by maxShift. DTSTART is a recurrence even if no rule produces it.
// budget is that of listRecurrences.
func (e event) starts(window Interval, length time.Duration, budget *int) ([]moment, error) {
	starts := append([]moment{e.start}, e.extra...)
	if len(e.rules) == 0 {
		return starts, nil
	}
	if len(e.rules) > maxRules {
		return nil, fmt.Errorf("more than %d rules", maxRules)
	}
	from, until := e.start.zone.wall(window.Start.Add(-length-maxShift)), e.start.zone.wall(window.End.Add(maxShift))
	toWall := e.start.zone.wall
	if e.start.day { // programs write the last day as midnight in UTC or in the owner's zone; the later one counts
		toWall = func(t time.Time) time.Time {
			return slices.MaxFunc([]time.Time{t, e.start.zone.wall(t)}, time.Time.Compare)
		}
	}
	for _, rule := range e.rules {
		walls, err := listRecurrences(rule, e.start.wall, from, until, toWall, budget)
		if err != nil {
			return nil, err
		}
		for _, wall := range walls {
			if wall.Equal(e.start.wall) {
				continue // it is listed already
			}
			starts = append(starts, moment{wall: wall, zone: e.start.zone, day: e.start.day})
		}
	}
	return starts, nil
}
