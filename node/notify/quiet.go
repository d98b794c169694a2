package notify

import (
	"fmt"
	"strings"
	"time"
)

// Quiet is the part of each day in which only urgent notices are sent. The zero value means no quiet hours.
type Quiet struct {
	from, to int // minutes of the day in zone
	zone     *time.Location
}

// ParseQuiet parses hours such as "22:00-07:00" in a time zone. Empty hours mean no quiet hours.
func ParseQuiet(hours string, zone *time.Location) (Quiet, error) {
	if hours == "" {
		return Quiet{}, nil
	}
	begin, end, ok := strings.Cut(hours, "-")
	from, err := time.Parse("15:04", strings.TrimSpace(begin))
	to, err2 := time.Parse("15:04", strings.TrimSpace(end))
	if !ok || err != nil || err2 != nil || from.Equal(to) {
		return Quiet{}, fmt.Errorf("hours %q: must be two times of the day such as 22:00-07:00", hours)
	}
	return Quiet{from.Hour()*60 + from.Minute(), to.Hour()*60 + to.Minute(), zone}, nil
}

// At reports whether t is in the quiet hours by the wall clock. An hour that a clock change repeats counts both times.
func (q Quiet) At(t time.Time) bool {
	if q.zone == nil {
		return false
	}
	local := t.In(q.zone)
	minute := local.Hour()*60 + local.Minute()
	if q.from < q.to {
		return minute >= q.from && minute < q.to
	}
	return minute >= q.from || minute < q.to
}

// End returns the end of the quiet hours around t, or t itself outside of quiet hours. It checks minute by minute,
// because a computed end may not exist on the day of a clock change.
func (q Quiet) End(t time.Time) time.Time {
	const maxMinutes = 26 * 60 // more than the longest day, which has 25 hours
	for range maxMinutes {
		if !q.At(t) {
			return t
		}
		t = t.Truncate(time.Minute).Add(time.Minute)
	}
	return t
}
