package calendar

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Hours are the times of a week in which the owner can be met, by the wall clock of the owner's zone.
type Hours struct{ days [7][]dayPart }

// dayPart is a part of a day, in minutes since midnight by the wall clock.
type dayPart struct{ from, to int }

// DefaultHours are usual working hours.
const DefaultHours = "mon-fri 09:00-17:00"

var dayNames = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

// ParseHours reads lists such as "mon-fri 09:00-12:00 13:00-17:00, sat 10:00-12:00". "24:00" is the end of a day.
func ParseHours(text string) (Hours, error) {
	var h Hours
	for part := range strings.SplitSeq(text, ",") {
		words := strings.Fields(strings.ToLower(part))
		if len(words) < 2 {
			return h, fmt.Errorf("hours %q: must be days and times, such as %s", strings.TrimSpace(part), DefaultHours)
		}
		first, last, err := parseDays(words[0])
		if err != nil {
			return h, err
		}
		for _, w := range words[1:] {
			from, to, _ := strings.Cut(w, "-")
			part := dayPart{parseMinutes(from), parseMinutes(to)}
			if part.from < 0 || part.to <= part.from {
				return h, fmt.Errorf("hours %q: must be a time of day, then - and a later time, such as 09:00-17:00", w)
			}
			for d := first; ; d = (d + 1) % 7 {
				h.days[d] = append(h.days[d], part)
				if d == last {
					break
				}
			}
		}
	}
	return h, nil
}

// parseDays parses a day or a range of days. Days are numbered from Sunday, which is 0.
func parseDays(text string) (first, last int, err error) {
	from, to, ok := strings.Cut(text, "-")
	if !ok {
		to = from
	}
	first, last = slices.Index(dayNames, from), slices.Index(dayNames, to)
	if first < 0 || last < 0 {
		return 0, 0, fmt.Errorf("hours: %q is not a day or a range of days: write sun mon tue wed thu fri sat", text)
	}
	return first, last, nil
}

// parseMinutes parses hh:mm. It returns -1 if the text is not a time of day.
func parseMinutes(text string) int {
	if text == "24:00" {
		return 24 * 60
	}
	t, err := time.Parse("15:04", text)
	if err != nil {
		return -1
	}
	return t.Hour()*60 + t.Minute()
}

// within lists the parts of the window that are within the hours, in chronological order.
func (h Hours) within(window Interval, zone *time.Location) []Interval {
	var out []Interval
	from := window.Start.In(zone)
	for day := 0; ; day++ {
		date := time.Date(from.Year(), from.Month(), from.Day()+day, 0, 0, 0, 0, time.UTC) // in UTC, because midnight may not exist in zone
		instant := func(minute int) time.Time {
			return time.Date(date.Year(), date.Month(), date.Day(), 0, minute, 0, 0, zone)
		}
		if !instant(0).Before(window.End) {
			return merge(out)
		}
		for _, part := range h.days[date.Weekday()] {
			if i, ok := (Interval{instant(part.from), instant(part.to)}).clip(window); ok {
				out = append(out, i)
			}
		}
	}
}

func (h Hours) isEmpty() bool {
	return !slices.ContainsFunc(h.days[:], func(parts []dayPart) bool { return len(parts) > 0 })
}
