package mess

import (
	"strings"
	"time"

	"github.com/adhocore/gronx"
)

func splitCron(expr string) []string { return strings.Fields(expr) }

func validZone(name string) bool {
	_, err := time.LoadLocation(name)
	return err == nil && name != "Local"
}

// onDuty says whether a schedule has its executor available at now, and until when that answer stands (MESS-43): from
// each firing until the next if that is at most g away, else at the firing minute alone; g is an hour where the minute
// field is one number, else a minute.
func onDuty(expr string, now time.Time) (available bool, until time.Time) {
	horizon := now.Add(time.Hour)
	now = now.Truncate(time.Minute)
	g := time.Minute
	if minute := splitCron(expr)[0]; strings.Trim(minute, "0123456789") == "" {
		g = time.Hour
	}
	next, err := gronx.NextTickAfter(expr, now, false)
	if err != nil {
		return false, horizon
	}
	last, err := gronx.PrevTickBefore(expr, now, true)
	if err != nil {
		return false, next
	}
	end := last.Add(time.Minute)
	if following, err := gronx.NextTickAfter(expr, last, false); err == nil && following.Sub(last) <= g {
		end = following
	}
	if now.Before(end) {
		return true, end
	}
	return false, next
}
