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
		// IsValid stops at the first element of a list that matches the time at which the program started, so each
		// element is checked alone.
		for element := range strings.SplitSeq(parts[i], ",") {
			onlyPart := slices.Repeat([]string{"*"}, len(cronFields))
			onlyPart[i] = element
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
