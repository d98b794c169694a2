package calendar

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestVersions: of two descriptions of an event, only one that is certainly older gives way, and never to one of
// another file or to one that is marked as free. Each file is a folder's a.ics, b.ics and so on.
func TestVersions(t *testing.T) {
	first := func(lines ...string) string {
		return vevent(append(lines, "UID:u", "DTSTART:20270301T080000Z", "DURATION:PT1H")...)
	}
	second := func(lines ...string) string {
		return vevent(append(lines, "UID:u", "DTSTART:20270302T080000Z", "DURATION:PT1H")...)
	}
	series := vevent("UID:u", "DTSTART:20270301T080000Z", "DURATION:PT1H", "RRULE:FREQ=DAILY;COUNT=2")
	moved := func(hour int, lines ...string) string {
		return vevent(append(lines, "UID:u", "RECURRENCE-ID:20270302T080000Z", fmt.Sprintf("DTSTART:20270302T%02d0000Z", hour), "DURATION:PT1H")...)
	}
	const newer, older = "DTSTAMP:20270120T090000Z", "DTSTAMP:20270110T090000Z"
	for _, tt := range []struct {
		name  string
		files [][]byte
		want  []string
	}{
		{"the newer stamp comes first", [][]byte{object(first("SEQUENCE:0", newer), second("SEQUENCE:0", older))}, []string{"01 08"}},
		{"the newer stamp comes last", [][]byte{object(second("SEQUENCE:0", older), first("SEQUENCE:0", newer))}, []string{"01 08"}},
		{"the sequence counts before the stamp", [][]byte{object(first("SEQUENCE:1", older), second("SEQUENCE:0", newer))}, []string{"01 08"}},
		{"the modification counts after the stamp", [][]byte{object(first(older, "LAST-MODIFIED:20270301T000000Z"), second(older, "LAST-MODIFIED:20270201T000000Z"))}, []string{"01 08"}},
		{"the same stamp", [][]byte{object(first(older), second(older))}, []string{"01 08", "02 08"}},
		{"no stamp", [][]byte{object(first(newer), second())}, []string{"01 08", "02 08"}},
		{"a stamp that cannot be read", [][]byte{object(first(newer), second("DTSTAMP:20270110T090000"))}, []string{"01 08", "02 08"}},
		{"a sequence that cannot be read", [][]byte{object(first("SEQUENCE:5"), second("SEQUENCE:four"))}, []string{"01 08", "02 08"}},
		{"two files", [][]byte{object(first("SEQUENCE:3", newer)), object(second("SEQUENCE:0", older))}, []string{"01 08", "02 08"}},
		{"a newer copy marked as free", [][]byte{object(first(older), second("SEQUENCE:2", newer, "TRANSP:TRANSPARENT"))}, []string{"01 08"}},
		{"a newer cancellation", [][]byte{object(first(older), first(newer, "STATUS:CANCELLED"))}, nil},
		{"an older cancellation", [][]byte{object(first(newer), first(older, "STATUS:CANCELLED"))}, []string{"01 08"}},
		{"a cancellation without a stamp", [][]byte{object(first(older), first("STATUS:CANCELLED"))}, []string{"01 08"}},
		{"a cancellation in another file", [][]byte{object(first(older)), object(first(newer, "STATUS:CANCELLED"))}, []string{"01 08"}},
		{"a recurrence moved twice", [][]byte{object(series, moved(10, newer), moved(12, older))}, []string{"01 08", "02 10"}},
		{"a recurrence moved twice, without stamps", [][]byte{object(series, moved(10), moved(12))}, []string{"01 08", "02 10", "02 12"}},
		{"a moved recurrence, and a newer free copy", [][]byte{object(series, moved(10, older), moved(12, newer, "TRANSP:TRANSPARENT"))}, []string{"01 08", "02 10"}},
		{"a moved recurrence of another file", [][]byte{object(series), object(moved(10))}, []string{"01 08", "02 08", "02 10"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for i, text := range tt.files {
				if err := os.WriteFile(filepath.Join(dir, string(rune('a'+i))+".ics"), text, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			window := Interval{time.Date(2027, 3, 1, 0, 0, 0, 0, time.UTC), time.Date(2027, 4, 1, 0, 0, 0, 0, time.UTC)}
			busy, problems, err := Files{Path: dir}.Busy(t.Context(), window, berlin(t))
			if err != nil || len(problems) > 0 {
				t.Fatal(problems, err)
			}
			var got []string
			for _, i := range merge(busy) {
				got = append(got, i.Start.UTC().Format("02 15"))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("busy (-want +got):\n%s", diff)
			}
		})
	}
}

// TestUntilAtClockChange: an UNTIL in UTC is an instant. On the day when clocks change, the order of wall times is not
// the order of instants.
func TestUntilAtClockChange(t *testing.T) {
	for _, tt := range []struct {
		zone, start, until string
		n                  int
		last               string
	}{
		{"Europe/Berlin", "20271029T023000", "20271031T010000Z", 3, "2027-10-31 00:30"},
		{"Europe/Berlin", "20271029T023000", "20271031T003000Z", 3, "2027-10-31 00:30"},
		{"Europe/Berlin", "20271029T023000", "20271031T002959Z", 2, "2027-10-30 00:30"},
		{"Europe/Berlin", "20270326T023000", "20270328T011500Z", 2, "2027-03-27 01:30"},
		{"Europe/Berlin", "20270326T023000", "20270328T013000Z", 3, "2027-03-28 01:30"},
		{"America/New_York", "20271105T013000", "20271107T060000Z", 3, "2027-11-07 05:30"},
		{"Australia/Sydney", "20270402T023000", "20270403T160000Z", 3, "2027-04-03 15:30"},
	} {
		window := Interval{time.Date(2027, 3, 1, 0, 0, 0, 0, time.UTC), time.Date(2027, 12, 1, 0, 0, 0, 0, time.UTC)}
		d, err := parse(object(vevent("UID:u", "DTSTART;TZID="+tt.zone+":"+tt.start, "DURATION:PT30M", "RRULE:FREQ=DAILY;UNTIL="+tt.until)), time.UTC, window)
		if err != nil {
			t.Fatal(err)
		}
		busy, problems, err := d.busy(t.Context(), window)
		if err != nil || len(problems) > 0 {
			t.Fatal(problems, err)
		}
		if got := merge(busy); len(got) != tt.n || got[tt.n-1].Start.UTC().Format("2006-01-02 15:04") != tt.last {
			t.Errorf("%s %s until %s: %v, want %d with the last at %s", tt.zone, tt.start, tt.until, show(got), tt.n, tt.last)
		}
	}
}
