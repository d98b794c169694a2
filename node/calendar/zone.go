package calendar

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/teambition/rrule-go"
)

// A wall time is the date and time that a wall clock shows, stored in a time.Time in UTC. Recurrences are computed in
// wall times, so that a meeting at nine stays at nine when the clocks change (RFC 5545 §3.3.10).

// zone is a zone of the time zone database. It converts between wall times and instants. A wall time that the clock
// skips is read with the offset before the change, and a wall time that the clock shows twice means the first of the two
// (RFC 5545 §3.3.5).
type zone struct{ loc *time.Location }

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
	if option.Freq > finestFrequency {
		return nil, fmt.Errorf("RRULE: %s is finer than a day", option.Freq)
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

// findZone returns the zone that a TZID names: a name of the time zone database, also behind a vendor's prefix, or a name
// of Windows. We do not read the rules by which a calendar may describe a zone (VTIMEZONE).
func findZone(id string) (zone, bool) {
	id = strings.TrimPrefix(strings.Trim(id, `" `), "/")
	for name := id; strings.Contains(name, "/"); _, name, _ = strings.Cut(name, "/") {
		if loc, err := time.LoadLocation(name); err == nil {
			return zone{loc}, true
		}
	}
	name := cmp.Or(windowsZones[id], id[strings.LastIndexByte(id, '/')+1:])
	if loc, err := time.LoadLocation(name); err == nil && name != "" && name != "Local" { // LoadLocation accepts both
		return zone{loc}, true
	}
	return zone{}, false
}
