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
