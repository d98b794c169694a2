package calendar

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"time"
)

// busy lists when the events of a calendar take time inside the window, unsorted. It fails only where ctx ends: rules
// can be made to be slow.
func (d data) busy(ctx context.Context, window Interval) ([]Interval, []Problem, error) {
	problems := d.problems
	var out []Interval
	add := func(i Interval) {
		if c, ok := i.clip(window); ok {
			out = append(out, c)
		}
	}
	for _, i := range d.unclear {
		add(i)
	}
	masters, changes := d.sorted()
	left := maxCount
	for _, e := range masters {
		if e.free {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		starts, err := e.starts(window, &left)
		if err != nil {
			problems = append(problems, Problem{UID: e.uid, Text: err.Error() + "; all the time counts as busy"})
			add(window)
			continue
		}
		changed, except, exceptDays := changes[e.uid], make(map[int64]bool), make(map[int64]bool)
		for _, m := range e.except {
			except[m.instant().Unix()] = true
			if m.day { // as some programs write it of a time
				exceptDays[m.wall.Unix()] = true
			}
		}
		for _, start := range starts {
			at := start.instant()
			if except[at.Unix()] || exceptDays[start.wall.Truncate(24*time.Hour).Unix()] || changed.replaces(at) {
				continue
			}
			if o := changed.onwards(at); o == nil {
				add(e.length.from(start))
			} else if !o.free {
				add(o.length.from(o.moves(start)))
			}
		}
		if moved := changed.farthest(e.start.zone); moved > 24*time.Hour { // beyond what starts looks at
			problems = append(problems, Problem{UID: e.uid, Text: "the rest of it moved by days; all the time counts as busy"})
			add(window)
		}
	}
	for _, changed := range changes {
		for _, o := range changed.all {
			if !o.free {
				add(o.length.from(o.start))
			}
		}
	}
	return out, problems, nil
}

// sorted tells the events from those that replace one recurrence, the newest version of each (RFC 5545 §3.8.7.4).
func (d data) sorted() (masters []event, changed map[string]*overrides) {
	newest := make(map[string]int)
	changed = make(map[string]*overrides)
	for _, e := range d.events {
		if e.id != nil {
			if changed[e.uid] == nil {
				changed[e.uid] = &overrides{at: make(map[int64]int)}
			}
			changed[e.uid].add(e)
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
	for _, o := range changed {
		o.order()
	}
	return masters, changed
}

// overrides are what replaces recurrences of one event, each of them once. A stranger may have made a great many, in an
// invitation, so nothing here looks at all of them for one recurrence. nil has none.
type overrides struct {
	all  []event
	at   map[int64]int // in all, by the instant of the recurrence
	rest []event       // those that move all others behind their own as well (RFC 5545 §3.2.13), in order
}

// add adds an override, or puts it in the place of an older one for the same recurrence.
func (o *overrides) add(e event) {
	at := e.id.instant().Unix()
	i, seen := o.at[at]
	switch {
	case !seen:
		o.at[at] = len(o.all)
		o.all = append(o.all, e)
	case e.sequence >= o.all[i].sequence:
		o.all[i] = e
	}
}

// order is called once all are added.
func (o *overrides) order() {
	for _, e := range o.all {
		if e.onwards {
			o.rest = append(o.rest, e)
		}
	}
	slices.SortFunc(o.rest, func(a, b event) int { return a.id.instant().Compare(b.id.instant()) })
}

func (o *overrides) replaces(start time.Time) bool {
	if o == nil {
		return false
	}
	_, ok := o.at[start.Unix()]
	return ok
}

// onwards returns the override that moves a recurrence with others, the last one where there are several; nil where none
// does.
func (o *overrides) onwards(start time.Time) *event {
	if o == nil {
		return nil
	}
	behind := sort.Search(len(o.rest), func(i int) bool { return o.rest[i].id.instant().After(start) })
	if behind == 0 {
		return nil
	}
	return &o.rest[behind-1]
}

// shift is how far an override moves, by the clock on the wall of zone.
func (e event) shift(zone zone) time.Duration {
	return zone.wall(e.start.instant()).Sub(zone.wall(e.id.instant()))
}

// moves is where an override that counts onwards moves a later recurrence.
func (e event) moves(start moment) moment {
	start.wall = start.wall.Add(e.shift(start.zone))
	return start
}

// farthest is how far the overrides that count onwards move at most, either way.
func (o *overrides) farthest(zone zone) (most time.Duration) {
	if o == nil {
		return 0
	}
	for _, e := range o.rest {
		most = max(most, e.shift(zone).Abs())
	}
	return most
}

// maxRules bounds the rules of one event, which should have one (RFC 5545 §3.8.5.3).
const maxRules = 16

// starts lists when the event begins so that it may reach into the window; left is as in [count].
func (e event) starts(window Interval, left *int) ([]moment, error) {
	starts := append([]moment{e.start}, e.extra...)
	if len(e.rules) == 0 {
		return starts, nil
	}
	if len(e.rules) > maxRules {
		return nil, fmt.Errorf("more than %d rules", maxRules)
	}
	reach := time.Duration(e.length.days)*24*time.Hour + e.length.rest + 24*time.Hour
	from, until := e.start.zone.wall(window.Start.Add(-reach)), e.start.zone.wall(window.End)
	starts = starts[1:] // the rule counts DTSTART in (RFC 5545 §3.8.5.3)
	for _, rule := range e.rules {
		walls, err := count(rule, e.start.wall, from, until, e.start.zone.wall, left)
		if err != nil {
			return nil, err
		}
		for _, wall := range walls {
			starts = append(starts, moment{wall: wall, zone: e.start.zone, day: e.start.day})
		}
	}
	return starts, nil
}
