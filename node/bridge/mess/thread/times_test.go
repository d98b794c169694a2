package thread

import (
	"testing"
	"time"
)

// TestParseSpan tests that a duration is read exactly or refused, also if its parts overflow a time.Duration.
func TestParseSpan(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"2h15m": 2*time.Hour + 15*time.Minute, "3660d": maxSpan, "P1DT1H": 25 * time.Hour, "P1M": 730 * time.Hour, "P3660D": maxSpan,
		"3661d": 0, "213504d": 0, "999999w": 0, "522w999999h": 0,
		"P11Y": 0, "P9999Y9999MT1H": 0, "P213504D": 0, "P999999W": 0, "PT9999999999S": 0, "P3660DT1S": 0,
	} {
		if got, ok := ParseSpan(s); got != want && ok || ok != (want > 0) {
			t.Errorf("%s: %v, %v, want %v", s, got, ok, want)
		}
	}
}
