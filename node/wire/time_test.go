package wire

import (
	"testing"
	"time"
)

// TestParseTime checks AM-19.
func TestParseTime(t *testing.T) {
	ten := time.Date(2026, 2, 19, 10, 30, 0, 0, time.UTC)
	good := map[string]time.Time{
		"2026-02-19T10:30:00Z":                ten,
		"2026-02-19T10:30:00.5Z":              ten.Add(500 * time.Millisecond),
		"2026-02-19T10:30:00.123456789Z":      ten.Add(123456789),
		"2026-02-19T10:30:00.000Z":            ten,
		"2026-02-19T02:30:00-08:00":           ten,
		"2026-02-20T10:29:00+23:59":           ten,
		"2026-02-19T10:30:00-00:00":           ten,
		"2026-02-19T02:30:00.123456789-08:00": ten.Add(123456789),
		"2024-02-29T10:30:00Z":                time.Date(2024, 2, 29, 10, 30, 0, 0, time.UTC),
	}
	for s, want := range good {
		if got, ok := ParseTime(s); !ok || !got.Equal(want) {
			t.Errorf("ParseTime(%s) = %v, %v, want %v", s, got, ok, want)
		}
	}
	for _, s := range []string{
		"", "2026-02-19", "2026-02-19T10:30Z", "2026-02-19T10:30:00",
		"2026-02-19t10:30:00Z", "2026-02-19T10:30:00z", "2026-02-19 10:30:00Z",
		"2026-02-19T10:30:60Z", "2026-06-30T23:59:60Z", "2026-02-19T24:00:00Z", "2026-02-19T10:60:00Z",
		"2026-02-30T10:30:00Z", "2025-02-29T10:30:00Z", "2026-13-01T10:30:00Z", "2026-00-10T10:30:00Z",
		"2026-02-19T1:30:00Z", "2026-02-19T 1:30:00Z", "2026-2-19T10:30:00Z", "26-02-19T10:30:00Z",
		"2026-02-19T10:30:00.Z", "2026-02-19T10:30:00,5Z", "2026-02-19T10:30:00.1234567890Z", "2026-02-19T10:30:00.12a4Z",
		"2026-02-19T10:30:00+0800", "2026-02-19T10:30:00+08", "2026-02-19T10:30:00+8:00", "2026-02-19T10:30:00+24:00",
		"2026-02-19T10:30:00+08:60", "2026-02-19T10:30:00+12:60", "2026-02-19T10:30:00 08:00", "2026-02-19T10:30:00+1a:00",
		"2026-02-19T10:30:00+00:00Z", "2026-02-19T10:30:00Z ", " 2026-02-19T10:30:00Z", "2026-02-19T10:30:00Z\n",
		"9999-12-31T23:59:59-00:01", "0000-01-01T00:00:00+00:01", // the years 10000 and -1 in UTC
		"+026-02-19T10:30:00Z", "2026-02-19T10:30:00\u2212" + "08:00", "２026-02-19T10:30:00Z", "20260219T103000Z",
	} {
		if got, ok := ParseTime(s); ok {
			t.Errorf("ParseTime(%q) accepted %v", s, got)
		}
	}
}

func TestFormatTime(t *testing.T) {
	zone := time.FixedZone("", -8*3600)
	for want, in := range map[string]time.Time{
		"2026-02-19T10:30:00.000Z": time.Date(2026, 2, 19, 2, 30, 0, 0, zone),
		"2026-02-19T10:30:00.120Z": time.Date(2026, 2, 19, 10, 30, 0, 120_999_999, time.UTC),
	} {
		if got := FormatTime(in); got != want {
			t.Errorf("FormatTime = %s, want %s", got, want)
		}
		if back, ok := ParseTime(want); !ok || FormatTime(back) != want {
			t.Errorf("ParseTime(%s) does not read what FormatTime wrote", want)
		}
	}
}
