package notify

import (
	"fmt"
	"strings"
	"time"
)

// Quiet is the part of each day in which only what is urgent is told. The zero value is none.
type Quiet struct {
	from, to int // minutes of the day, by the clock on the wall
	zone     *time.Location
}

// ParseQuiet reads hours such as "22:00-07:00" in a time zone such as "Europe/Berlin"; empty: that of the machine. No
// hours are no quiet.
func ParseQuiet(hours, zone string) (Quiet, error) {
	if hours == "" {
		return Quiet{}, nil
	}
	where := time.Local
	if zone != "" {
		var err error
		if where, err = time.LoadLocation(zone); err != nil {
			return Quiet{}, fmt.Errorf("time zone %q: must be a name such as Europe/Berlin", zone)
		}
	}
	begin, end, ok := strings.Cut(hours, "-")
	from, err := time.Parse("15:04", strings.TrimSpace(begin))
	to, err2 := time.Parse("15:04", strings.TrimSpace(end))
	if !ok || err != nil || err2 != nil || from.Equal(to) {
		return Quiet{}, fmt.Errorf("hours %q: must be two times of the day such as 22:00-07:00", hours)
	}
	return Quiet{from.Hour()*60 + from.Minute(), to.Hour()*60 + to.Minute(), where}, nil
}

// At says whether it is quiet at t. An hour that a clock change skips or repeats is judged by what the clock shows.
func (q Quiet) At(t time.Time) bool {
	if q.zone == nil {
		return false
	}
	local := t.In(q.zone)
	now := local.Hour()*60 + local.Minute()
	if q.from < q.to {
		return now >= q.from && now < q.to
	}
	return now >= q.from || now < q.to
}

// End is when it stops being quiet, t itself where it is not. It looks at every minute, because a computed hour may not
// exist on the day of a clock change.
func (q Quiet) End(t time.Time) time.Time {
	const longest = 26 * 60
	for range longest {
		if !q.At(t) {
			return t
		}
		t = t.Truncate(time.Minute).Add(time.Minute)
	}
	return t
}
