package calendar

import (
	"slices"
	"time"
)

// Interval is the time from Start up to, but excluding, End.
type Interval struct{ Start, End time.Time }

func (i Interval) overlaps(o Interval) bool { return i.Start.Before(o.End) && o.Start.Before(i.End) }

// clip cuts the interval to the window. It returns false if nothing is left.
func (i Interval) clip(window Interval) (Interval, bool) {
	if i.Start.Before(window.Start) {
		i.Start = window.Start
	}
	if i.End.After(window.End) {
		i.End = window.End
	}
	return i, i.Start.Before(i.End)
}

// merge sorts intervals and joins those that touch.
func merge(list []Interval) []Interval {
	slices.SortFunc(list, func(a, b Interval) int { return a.Start.Compare(b.Start) })
	var out []Interval
	for _, i := range list {
		if last := len(out) - 1; last >= 0 && !i.Start.After(out[last].End) {
			if i.End.After(out[last].End) {
				out[last].End = i.End
			}
			continue
		}
		out = append(out, i)
	}
	return out
}
