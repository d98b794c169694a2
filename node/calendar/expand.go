package calendar

import (
	"context"
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
	masters, overrides := d.sorted()
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
		replaced := make(map[int64]bool)
		for _, o := range overrides[e.uid] {
			replaced[o.id.instant().Unix()] = true
		}
		for _, m := range e.except {
			replaced[m.instant().Unix()] = true
		}
		for _, start := range starts {
			if replaced[start.instant().Unix()] || e.exceptedDay(start) {
				continue
			}
			if o := onwards(overrides[e.uid], start); o == nil {
				add(e.length.from(start))
			} else if !o.free {
				add(o.length.from(o.moves(start)))
			}
		}
		if moved := farthest(overrides[e.uid], e.start.zone); moved > 24*time.Hour { // beyond what starts looks at
			problems = append(problems, Problem{UID: e.uid, Text: "the rest of it moved by days; all the time counts as busy"})
			add(window)
		}
	}
	for _, list := range overrides {
		for _, o := range list {
			if !o.free {
				add(o.length.from(o.start))
			}
		}
	}
	return out, problems, nil
}

// sorted tells the events from those that replace one recurrence, the newest version of each (RFC 5545 §3.8.7.4).
func (d data) sorted() (masters []event, overrides map[string][]event) {
	newest := make(map[string]int)
	overrides = make(map[string][]event)
	for _, e := range d.events {
		if e.id != nil {
			overrides[e.uid] = newer(overrides[e.uid], e)
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
	return masters, overrides
}

// newer adds an override to a list, or puts it in the place of an older one for the same recurrence.
func newer(list []event, e event) []event {
	for i, o := range list {
		if o.id.instant().Equal(e.id.instant()) {
			if e.sequence >= o.sequence {
				list[i] = e
			}
			return list
		}
	}
	return append(list, e)
}

// onwards returns the override that moves a recurrence with all others behind its own (RFC 5545 §3.2.13), the last one
// where there are several; nil where none does.
func onwards(overrides []event, start moment) (last *event) {
	for i, o := range overrides {
		if o.onwards && !start.instant().Before(o.id.instant()) && (last == nil || last.id.instant().Before(o.id.instant())) {
			last = &overrides[i]
		}
	}
	return last
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
func farthest(overrides []event, zone zone) (most time.Duration) {
	for _, o := range overrides {
		if o.onwards {
			most = max(most, o.shift(zone).Abs())
		}
	}
	return most
}

// starts lists when the event begins so that it may reach into the window; left is as in [count].
func (e event) starts(window Interval, left *int) ([]moment, error) {
	starts := append([]moment{e.start}, e.extra...)
	if len(e.rules) == 0 {
		return starts, nil
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

// exceptedDay says whether an EXDATE that names a day takes the recurrence out, as some programs write it.
func (e event) exceptedDay(start moment) bool {
	for _, m := range e.except {
		if m.day && m.wall.Equal(start.wall.Truncate(24*time.Hour)) {
			return true
		}
	}
	return false
}
