package thread

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/adhocore/gronx"
)

// cronFields are the fields of a schedule with their ranges.
var cronFields = []struct {
	name      string
	low, high int
}{{"minute", 0, 59}, {"hour", 0, 23}, {"day of the month", 1, 31}, {"month", 1, 12}, {"day of the week", 0, 7}}

// cronError returns the fault of a schedule, or "". MESS-43 allows exactly five fields; the library accepts more.
func cronError(expr string) string {
	parts := strings.Fields(expr)
	if len(parts) != len(cronFields) {
		names := make([]string, len(cronFields))
		for i, f := range cronFields {
			names[i] = f.name
		}
		return "must be a cron expression of five fields: " + strings.Join(names, ", ")
	}
	for i, f := range cronFields {
		onlyPart := slices.Repeat([]string{"*"}, len(cronFields))
		// IsValid stops at the first part of a list that matches the time at which the program started, so each part
		// is checked alone.
		for onlyPart[i] = range strings.SplitSeq(parts[i], ",") {
			if !gronx.IsValid(strings.Join(onlyPart, " ")) {
				return fmt.Sprintf("the %s must be from %d to %d", f.name, f.low, f.high)
			}
		}
	}
	if !gronx.IsValid(expr) {
		return "must be a cron expression"
	}
	return ""
}

// IsZone reports whether a name is that of a time zone.
func IsZone(name string) bool {
	_, err := time.LoadLocation(name)
	return err == nil && name != "Local"
}

// IsScheduled reports whether a schedule makes its executor available at now, and until when that result is valid
// (MESS-43). A firing makes the executor available for a minute, or until the next firing if the gap between the two is
// short: at most an hour if the minute field is a single number, at most a minute otherwise.
func IsScheduled(expr string, now time.Time) (available bool, until time.Time) {
	horizon := now.Add(time.Hour)
	now = now.Truncate(time.Minute)
	maxGap := time.Minute
	if minute := strings.Fields(expr)[0]; strings.Trim(minute, "0123456789") == "" {
		maxGap = time.Hour
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
	if following, err := gronx.NextTickAfter(expr, last, false); err == nil && following.Sub(last) <= maxGap {
		end = following
	}
	if now.Before(end) {
		return true, end
	}
	return false, next
}
