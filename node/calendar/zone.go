package calendar

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/emersion/go-ical"
	"github.com/teambition/rrule-go"
)

// A wall time is what a clock on the wall shows, kept as a time.Time in UTC. Recurrences are counted in wall times,
// so that a meeting at nine stays at nine when the clocks change (RFC 5545 §3.3.10).

// zone turns wall times into instants and back.
type zone interface {
	instant(wall time.Time) time.Time
	wall(t time.Time) time.Time
}

// located is a zone of the time zone database.
type located struct{ loc *time.Location }

func (z located) instant(wall time.Time) time.Time {
	return time.Date(wall.Year(), wall.Month(), wall.Day(), wall.Hour(), wall.Minute(), wall.Second(), 0, z.loc)
}

func (z located) wall(t time.Time) time.Time { return asWall(t.In(z.loc)) }

// asWall drops the zone of t and keeps what its clock shows.
func asWall(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), 0, time.UTC)
}

// transition is the begin of an offset.
type transition struct {
	wall   time.Time // when, by the clock before it
	before time.Duration
	after  time.Duration
}

// described is a zone that a calendar describes itself (VTIMEZONE, RFC 5545 §3.6.5).
type described struct{ transitions []transition } // by wall, never empty

func (z described) instant(wall time.Time) time.Time { return wall.Add(-z.offset(wall)) }

func (z described) offset(wall time.Time) time.Duration {
	n, exact := slices.BinarySearchFunc(z.transitions, wall, func(t transition, w time.Time) int { return t.wall.Compare(w) })
	if exact {
		n++
	}
	if n == 0 {
		return z.transitions[0].before
	}
	return z.transitions[n-1].after
}

func (z described) wall(t time.Time) time.Time {
	t = t.UTC()
	offset := z.transitions[0].before
	for _, tr := range z.transitions {
		if t.Before(tr.wall.Add(-tr.before)) {
			break
		}
		offset = tr.after
	}
	return t.Add(offset)
}

// maxTransitions bounds the clock changes of one zone: two a year since the Outlook epoch of 1601, and some.
const maxTransitions = 2000

// maxZoneRules bounds the rules of clock changes in one file: one that never comes true is looked for until the year 9999.
const maxZoneRules = 500

// describe reads a VTIMEZONE, as far as until. rules counts those of the file.
func describe(comp *ical.Component, until time.Time, rules *int) (zone, error) {
	var z described
	for _, child := range comp.Children { // before any is looked for
		if child.Props.Get(ical.PropRecurrenceRule) != nil {
			*rules++
		}
	}
	if *rules > maxZoneRules {
		return nil, fmt.Errorf("more than %d rules for clock changes in one calendar", maxZoneRules)
	}
	for _, child := range comp.Children {
		if child.Name != ical.CompTimezoneStandard && child.Name != ical.CompTimezoneDaylight {
			continue
		}
		before, err := offset(child, ical.PropTimezoneOffsetFrom)
		if err != nil {
			return nil, err
		}
		after, err := offset(child, ical.PropTimezoneOffsetTo)
		if err != nil {
			return nil, err
		}
		start := child.Props.Get(ical.PropDateTimeStart)
		if start == nil {
			return nil, fmt.Errorf("%s without DTSTART", child.Name)
		}
		first, err := time.Parse(localLayout, start.Value)
		if err != nil {
			return nil, fmt.Errorf("%s: DTSTART: %w", child.Name, err)
		}
		onsets := []time.Time{first}
		if rule := child.Props.Get(ical.PropRecurrenceRule); rule != nil {
			if !strings.Contains(strings.ToUpper(rule.Value), "FREQ=YEARLY") {
				return nil, errors.New("clock changes by a rule that is not yearly")
			}
			left := maxTransitions
			if onsets, err = count(rule.Value, first, time.Time{}, until, nil, &left); err != nil {
				return nil, err
			}
		}
		for _, onset := range onsets {
			z.transitions = append(z.transitions, transition{onset, before, after})
		}
	}
	if len(z.transitions) == 0 || len(z.transitions) > maxTransitions {
		return nil, fmt.Errorf("VTIMEZONE with %d clock changes", len(z.transitions))
	}
	slices.SortStableFunc(z.transitions, func(a, b transition) int { return a.wall.Compare(b.wall) })
	return z, nil
}

// offset reads +hhmm, -hhmm or +hhmmss.
func offset(comp *ical.Component, name string) (time.Duration, error) {
	p := comp.Props.Get(name)
	if p == nil {
		return 0, fmt.Errorf("%s without %s", comp.Name, name)
	}
	layout := "-0700"
	if len(p.Value) == len("-070000") {
		layout = "-070000"
	}
	t, err := time.Parse(layout, p.Value)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	_, seconds := t.Zone()
	return time.Duration(seconds) * time.Second, nil
}

// finest is the finest rule that is counted out; one by the hour or finer is no appointment.
const finest = rrule.DAILY

// maxCount bounds the recurrences that the rules of one calendar are counted through: some hundred daily events of
// ten years each.
const maxCount = 500_000

// count lists the recurrences of a rule as wall times from first, those that lie between from and until. toWall
// converts an UNTIL that is written in UTC; nil leaves it. left is how many may still be counted.
func count(rule string, first, from, until time.Time, toWall func(time.Time) time.Time, left *int) ([]time.Time, error) {
	option, err := rrule.StrToROption(rule)
	if err != nil {
		return nil, fmt.Errorf("RRULE: %w", err)
	}
	if option.Freq > finest {
		return nil, fmt.Errorf("RRULE: %s is finer than a day", option.Freq)
	}
	if !option.Until.IsZero() && toWall != nil && strings.Contains(rule, "Z") {
		option.Until = toWall(option.Until)
	} else if !option.Until.IsZero() && untilIsDate(rule) {
		option.Until = option.Until.AddDate(0, 0, 1).Add(-time.Second) // the whole day is meant
	}
	if option.Until.IsZero() && option.Count == 0 {
		option.Until = until // the library's own end lies 292 years behind the start, and Outlook starts in 1601
	}
	option.Dtstart = first
	r, err := rrule.NewRRule(*option)
	if err != nil {
		return nil, fmt.Errorf("RRULE: %w", err)
	}
	var out []time.Time
	next := r.Iterator()
	for ; *left > 0; *left-- {
		t, ok := next()
		if !ok || t.After(until) {
			return out, nil
		}
		if !t.Before(from) {
			out = append(out, t)
		}
	}
	return nil, fmt.Errorf("RRULE: more than %d recurrences in one calendar", maxCount)
}

// untilIsDate says whether a rule ends with a day, not an instant.
func untilIsDate(rule string) bool {
	_, after, ok := strings.Cut(strings.ToUpper(rule), "UNTIL=")
	value, _, _ := strings.Cut(after, ";")
	return ok && len(value) == len(dateLayout)
}

// zones finds the zone that a TZID names.
type zones struct {
	owner     *time.Location // of times without a zone
	described map[string]zone
}

// find resolves a TZID: a name of the database, also behind a vendor's prefix, then what the calendar describes
// itself, then a Windows name.
func (z zones) find(id string) (zone, bool) {
	id = strings.TrimPrefix(strings.Trim(id, `" `), "/")
	for name := id; name != ""; {
		if loc, err := time.LoadLocation(name); err == nil && name != "Local" && strings.Contains(name+"/UTC", "/") {
			return located{loc}, true
		}
		_, rest, ok := strings.Cut(name, "/")
		if !ok {
			break
		}
		name = rest
	}
	if d, ok := z.described[id]; ok {
		return d, true
	}
	if name, ok := windowsZones[id]; ok {
		if loc, err := time.LoadLocation(name); err == nil {
			return located{loc}, true
		}
	}
	return nil, false
}
