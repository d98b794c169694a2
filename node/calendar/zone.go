package calendar

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/emersion/go-ical"
	"github.com/teambition/rrule-go"
)

// A wall time is the date and time that a wall clock shows, stored in a time.Time in UTC. Recurrences are computed in
// wall times, so that a meeting at nine stays at nine when the clocks change (RFC 5545 §3.3.10).

// zone converts between wall times and instants. A wall time that the clock skips is read with the offset before the
// change, and a wall time that the clock shows twice means the first of the two (RFC 5545 §3.3.5).
type zone interface {
	instant(wall time.Time) time.Time
	wall(t time.Time) time.Time
}

// namedZone is a zone of the time zone database.
type namedZone struct{ loc *time.Location }

func (z namedZone) instant(wall time.Time) time.Time {
	t := time.Date(wall.Year(), wall.Month(), wall.Day(), wall.Hour(), wall.Minute(), wall.Second(), 0, z.loc)
	_, before := t.Add(-maxZoneJump).Zone()
	earlier := wall.Add(-time.Duration(before) * time.Second)
	if !z.wall(earlier).Equal(wall) && z.wall(t).Equal(wall) {
		return t // after a change within maxZoneJump
	}
	return earlier.In(z.loc)
}

// maxZoneJump is longer than any change of an offset. Samoa once skipped a day.
const maxZoneJump = 26 * time.Hour

func (z namedZone) wall(t time.Time) time.Time { return asWall(t.In(z.loc)) }

// asWall returns the wall time that a clock in the zone of t shows at t.
func asWall(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), 0, time.UTC)
}

// transition is a change of a zone's offset from UTC.
type transition struct {
	wall   time.Time     // time of the change, as the wall time before it
	before time.Duration // offset before the change
	after  time.Duration // offset after the change
}

// describedZone is a zone that a calendar itself describes (VTIMEZONE, RFC 5545 §3.6.5).
type describedZone struct{ transitions []transition } // sorted by wall; never empty

func (z describedZone) instant(wall time.Time) time.Time { return wall.Add(-z.offset(wall)) }

// offset returns the offset from UTC at a wall time. If the clock skips time at a change, the new offset is valid after
// that time, otherwise already at the time of the change.
func (z describedZone) offset(wall time.Time) time.Duration {
	n, exact := slices.BinarySearchFunc(z.transitions, wall, func(t transition, w time.Time) int {
		return t.wall.Add(max(0, t.after-t.before)).Compare(w)
	})
	if exact {
		n++
	}
	if n == 0 {
		return z.transitions[0].before
	}
	return z.transitions[n-1].after
}

func (z describedZone) wall(t time.Time) time.Time {
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

// maxTransitions bounds the clock changes of one zone. Outlook's rules, which start in 1601, make fewer than 1000.
const maxTransitions = 2000

// maxZoneRules bounds the clock-change rules of a file. For a rule that never applies, the library searches up to the
// year 9999.
const maxZoneRules = 500

// parseTimezone parses a VTIMEZONE, with its clock changes up to end. It adds the number of the zone's rules to *rules,
// which counts the rules of the whole file.
func parseTimezone(comp *ical.Component, end time.Time, rules *int) (zone, error) {
	var z describedZone
	for _, child := range comp.Children { // count the rules before expanding any of them
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
		before, err := parseOffset(child, ical.PropTimezoneOffsetFrom)
		if err != nil {
			return nil, err
		}
		after, err := parseOffset(child, ical.PropTimezoneOffsetTo)
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
			budget := maxTransitions
			toWall := func(t time.Time) time.Time { return t.Add(before) }
			if onsets, err = listRecurrences(rule.Value, first, time.Time{}, end, toWall, &budget); err != nil {
				return nil, err
			}
		}
		for _, dates := range child.Props[ical.PropRecurrenceDates] {
			for text := range strings.SplitSeq(dates.Value, ",") {
				onset, err := time.Parse(localLayout, text)
				if err != nil {
					return nil, fmt.Errorf("%s: RDATE: %w", child.Name, err)
				}
				onsets = append(onsets, onset)
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

// parseOffset parses +hhmm, -hhmm or +hhmmss.
func parseOffset(comp *ical.Component, name string) (time.Duration, error) {
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

// finestFrequency is the highest frequency that a rule may have. Events that recur every hour are not appointments.
const finestFrequency = rrule.DAILY

// maxCount bounds the recurrences in one calendar. It is enough for a hundred events every day for ten years.
const maxCount = 500_000

// maxTimesADay bounds the recurrences on one day to one every quarter of an hour. Before the first recurrence, the
// library lists all times of a day, or even of a whole year if the rule is yearly.
const maxTimesADay = 24 * 4

// maxRule bounds the bytes of a rule. The library keeps repeated values, and compares each day of each year up to 9999
// with all values of a list.
const maxRule = 1000

// listRecurrences lists the recurrences of a rule between two wall times. first is the first recurrence. toWall
// converts an UNTIL that is written in UTC. budget is the number of recurrences that
// may still be computed; listRecurrences reduces it.
func listRecurrences(rule string, first, from, until time.Time, toWall func(time.Time) time.Time, budget *int) ([]time.Time, error) {
	if len(rule) > maxRule {
		return nil, fmt.Errorf("RRULE: longer than %d characters", maxRule)
	}
	option, err := rrule.StrToROption(rule)
	if err != nil {
		return nil, fmt.Errorf("RRULE: %w", err)
	}
	if option.Freq > finestFrequency {
		return nil, fmt.Errorf("RRULE: %s is finer than a day", option.Freq)
	}
	if max(1, len(option.Byhour))*max(1, len(option.Byminute))*max(1, len(option.Bysecond)) > maxTimesADay {
		return nil, fmt.Errorf("RRULE: more than %d times a day", maxTimesADay)
	}
	if !option.Until.IsZero() && strings.Contains(rule, "Z") {
		option.Until = toWall(option.Until)
	} else if !option.Until.IsZero() && untilIsDate(rule) {
		option.Until = option.Until.AddDate(0, 0, 1).Add(-time.Second) // UNTIL includes the whole day
	}
	if option.Until.IsZero() && option.Count == 0 {
		option.Until = until // the library's own end is 292 years after the start, and Outlook starts in 1601
	}
	option.Dtstart = first
	r, err := rrule.NewRRule(*option)
	if err != nil {
		return nil, fmt.Errorf("RRULE: %w", err)
	}
	var out []time.Time
	next := r.Iterator()
	for ; *budget > 0; *budget-- {
		t, ok := next()
		if !ok || t.After(until) {
			return out, nil
		}
		if !t.Before(from) {
			out = append(out, t)
		}
	}
	return nil, errors.New("RRULE: too many recurrences in one calendar")
}

// untilIsDate reports whether the UNTIL of a rule is a date, not an instant.
func untilIsDate(rule string) bool {
	_, after, ok := strings.Cut(strings.ToUpper(rule), "UNTIL=")
	value, _, _ := strings.Cut(after, ";")
	return ok && len(value) == len(dateLayout)
}

// zones resolves time zone ids.
type zones struct {
	owner     *time.Location // for times without a zone
	described map[string]zone
}

// find returns the zone that a TZID names. A name such as Europe/Berlin, also behind a vendor's prefix, is first
// looked up in the time zone database. Another name, such as EST, is first looked up among the zones that the
// calendar describes, because it may mean anything there.
func (z zones) find(id string) (zone, bool) {
	id = strings.TrimPrefix(strings.Trim(id, `" `), "/")
	for name := id; strings.Contains(name, "/"); _, name, _ = strings.Cut(name, "/") {
		if loc, err := time.LoadLocation(name); err == nil {
			return namedZone{loc}, true
		}
	}
	if d, ok := z.described[id]; ok {
		return d, true
	}
	name := cmp.Or(windowsZones[id], id[strings.LastIndexByte(id, '/')+1:])
	if loc, err := time.LoadLocation(name); err == nil && name != "" && name != "Local" { // LoadLocation accepts both
		return namedZone{loc}, true
	}
	return nil, false
}
