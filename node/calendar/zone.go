package calendar

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/emersion/go-ical"
	"github.com/teambition/rrule-go"
)

// A wall time is the date and time that a wall clock shows, stored in a time.Time in UTC. Recurrences are computed in
// wall times, so that a meeting at nine stays at nine when the clocks change (RFC 5545 §3.3.10).

// zone is a zone of the time zone database. It converts between wall times and instants. A wall time that the clock
// skips is read with the offset before the change, and a wall time that the clock shows twice means the first of the two
// (RFC 5545 §3.3.5).
//
// If only a range of offsets is known, loc has the largest one, and an event may begin up to blur later.
type zone struct {
	loc  *time.Location
	blur time.Duration
}

func (z zone) instant(wall time.Time) time.Time {
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

func (z zone) wall(t time.Time) time.Time { return asWall(t.In(z.loc)) }

// asWall returns the wall time that a clock in the zone of t shows at t.
func asWall(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), 0, time.UTC)
}

// maxCount bounds the recurrences in one calendar. It is enough for a hundred events every day for ten years.
const maxCount = 500_000

// maxTimesADay bounds the recurrences on one day to one every quarter of an hour. Before the first recurrence, the
// library lists all times of a day, or even of a whole year if the rule is yearly.
const maxTimesADay = 24 * 4

// maxRules bounds the rules of an event. A rule that never comes true is searched through thousands of years.
const maxRules = 4

// maxRule bounds the bytes of a rule. The library keeps repeated values, and compares each day of each year up to 9999
// with all values of a list.
const maxRule = 1000

// listRecurrences lists the wall times of the recurrences of a rule that begin in the window. first is the first
// recurrence. budget is the number of recurrences that may still be computed; listRecurrences reduces it.
func listRecurrences(rule string, first moment, window Interval, budget *int) ([]time.Time, error) {
	if len(rule) > maxRule {
		return nil, fmt.Errorf("RRULE: longer than %d characters", maxRule)
	}
	option, err := rrule.StrToROption(rule)
	if err != nil {
		return nil, fmt.Errorf("RRULE: %w", err)
	}
	step, isFine := fineSteps[option.Freq]
	if isFine && strings.Contains(rule, "BY") {
		return nil, fmt.Errorf("RRULE: %s with conditions", option.Freq)
	}
	if max(1, len(option.Byhour))*max(1, len(option.Byminute))*max(1, len(option.Bysecond)) > maxTimesADay {
		return nil, fmt.Errorf("RRULE: more than %d times a day", maxTimesADay)
	}
	from, to := first.zone.wall(window.Start), first.zone.wall(window.End)
	isPast := pastUntil(rule, option.Until, first)
	// The library's own end is 292 years after the start, and Outlook starts in 1601. The library compares wall times,
	// so it may only end after every time that isPast decides about.
	if last := option.Until.Add(maxZoneJump); option.Until.IsZero() || last.After(to) {
		option.Until = to
	} else {
		option.Until = last
	}
	option.Dtstart = first.wall
	if step *= time.Duration(max(1, option.Interval)); step > 0 && option.Count == 0 && from.After(first.wall) {
		option.Dtstart = first.wall.Add(from.Sub(first.wall) / step * step) // skip what is over
	}
	r, err := rrule.NewRRule(*option)
	if err != nil {
		return nil, fmt.Errorf("RRULE: %w", err)
	}
	var out []time.Time
	next := r.Iterator()
	for ; *budget > 0; *budget-- {
		t, ok := next()
		if !ok || t.After(to) {
			return out, nil
		}
		if !t.Before(from) && !isPast(t) {
			out = append(out, t)
		}
	}
	return nil, errors.New("RRULE: too many recurrences in one calendar")
}

// fineSteps are the frequencies that are finer than a day. Such events are hardly appointments, so only their simple
// rules are expanded: the library would test each second of the years for a condition.
var fineSteps = map[rrule.Frequency]time.Duration{rrule.HOURLY: time.Hour, rrule.MINUTELY: time.Minute, rrule.SECONDLY: time.Second}

var fineRule = regexp.MustCompile(`FREQ=(?:HOURLY|MINUTELY|SECONDLY)`)

// lastDay matches the day of a rule's UNTIL.
var lastDay = regexp.MustCompile(`UNTIL=(\d{8})`)

// latest returns a time after all recurrences of a rule that is not expanded, or the end of the window.
func latest(rule string, window Interval) time.Time {
	if m := lastDay.FindAllStringSubmatch(rule, -1); len(m) == 1 {
		if day, err := time.Parse(dateLayout, m[0][1]); err == nil {
			return day.AddDate(0, 0, 3) // the day and every zone
		}
	}
	return window.End
}

// pastUntil returns the test whether a recurrence, given as a wall time, is after the UNTIL of a rule. An UNTIL in UTC
// is an instant: on the days of a clock change, wall times do not tell what comes first.
func pastUntil(rule string, until time.Time, first moment) func(wall time.Time) bool {
	switch {
	case until.IsZero():
		return func(time.Time) bool { return false }
	case untilIsDate(rule): // it includes the whole day
		until = until.AddDate(0, 0, 1).Add(-time.Second)
	case strings.Contains(rule, "Z") && !first.day:
		return func(wall time.Time) bool { return first.zone.instant(wall).After(until) }
	case strings.Contains(rule, "Z"): // programs write the last day as midnight in UTC or in the owner's zone; the later one counts
		if wall := first.zone.wall(until); wall.After(until) {
			until = wall
		}
	}
	return func(wall time.Time) bool { return wall.After(until) }
}

// untilIsDate reports whether the UNTIL of a rule is a date, not an instant.
func untilIsDate(rule string) bool {
	_, after, ok := strings.Cut(strings.ToUpper(rule), "UNTIL=")
	value, _, _ := strings.Cut(after, ";")
	return ok && len(value) == len(dateLayout)
}

// unknownZone may have any offset that a zone has.
var unknownZone = offsets(-12*time.Hour, 14*time.Hour)

// offsets returns a zone of which only the range of its offsets is known.
func offsets(smallest, largest time.Duration) zone {
	return zone{loc: time.FixedZone("", int(largest/time.Second)), blur: largest - smallest}
}

// describedZone returns the offsets of a zone that a calendar describes (VTIMEZONE). We do not read its rules.
func describedZone(comp *ical.Component) zone {
	var all []time.Duration
	for _, child := range comp.Children {
		for _, name := range []string{ical.PropTimezoneOffsetFrom, ical.PropTimezoneOffsetTo} {
			d, ok := parseOffset(value(child, name))
			if !ok {
				return unknownZone
			}
			all = append(all, d)
		}
	}
	if len(all) == 0 {
		return unknownZone
	}
	return offsets(slices.Min(all), slices.Max(all))
}

// parseOffset parses +hhmm, and what people write: +h, +hh or +hh:mm.
func parseOffset(text string) (time.Duration, bool) {
	for _, layout := range []string{"-0700", "-07:00", "-070000", "-07"} {
		if len(text) == 2 && layout == "-07" {
			text = text[:1] + "0" + text[1:]
		}
		if t, err := time.Parse(layout, text); err == nil {
			_, seconds := t.Zone()
			d := time.Duration(seconds) * time.Second
			return d, d.Abs() <= 14*time.Hour
		}
	}
	return 0, false
}

// findZone returns the zone that a TZID names: a name of the time zone database, also behind a vendor's prefix, a zone
// that the calendar describes, a name of Windows, or an offset such as UTC+1.
func (r *reader) findZone(id string) zone {
	id = strings.TrimPrefix(strings.Trim(id, `" `), "/")
	for name := id; strings.Contains(name, "/"); _, name, _ = strings.Cut(name, "/") {
		if z, ok := loadZone(name); ok {
			return z
		}
	}
	// A name such as EST may mean anything in a calendar that describes it.
	if z, ok := r.zones[id]; ok {
		return z
	}
	name := cmp.Or(windowsZones[id], windowsZones[titled(id)], id[strings.LastIndexByte(id, '/')+1:])
	if z, ok := loadZone(name); ok && name != "" {
		return z
	}
	upper := strings.ToUpper(name)
	if d, ok := parseOffset(strings.TrimPrefix(strings.TrimPrefix(upper, "UTC"), "GMT")); ok {
		return offsets(d, d)
	}
	return unknownZone
}

// loadZone loads a zone of the database, whatever the case of its name.
func loadZone(name string) (zone, bool) {
	for _, n := range []string{name, titled(name), strings.ToUpper(name)} {
		if loc, err := time.LoadLocation(n); err == nil && n != "Local" { // LoadLocation accepts it
			return zone{loc: loc}, true
		}
	}
	return zone{}, false
}

// titled writes each word of a name with one capital.
func titled(name string) string {
	text := []byte(strings.ToLower(name))
	for i, c := range text {
		if 'a' <= c && c <= 'z' && (i == 0 || strings.IndexByte("/_- ", text[i-1]) >= 0) {
			text[i] = c - 'a' + 'A'
		}
	}
	return string(text)
}
