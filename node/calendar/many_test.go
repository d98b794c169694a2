package calendar

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestManyOverrides: the work for a series grows linearly with the changes to it, not with their square. Otherwise a
// stranger who sends invitations into the owner's calendar could occupy the node.
func TestManyOverrides(t *testing.T) {
	day := time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)
	var b strings.Builder
	b.WriteString("BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:x\r\n")
	extra := make([]string, 10_000)
	for n := range extra {
		extra[n] = day.Add(time.Duration(n)*time.Minute + 30*time.Second).Format(utcLayout)
	}
	fmt.Fprintf(&b, "BEGIN:VEVENT\r\nUID:a\r\nDTSTART:%s\r\nDURATION:PT1M\r\nRDATE:%s\r\nEND:VEVENT\r\n", day.Format(utcLayout), strings.Join(extra, ","))
	for n := range maxEvents - 1 {
		id := day.Add(time.Duration(n) * time.Minute).Format(utcLayout)
		fmt.Fprintf(&b, "BEGIN:VEVENT\r\nUID:a\r\nRECURRENCE-ID:%s\r\nDTSTART:%s\r\nDURATION:PT1M\r\nEND:VEVENT\r\n", id, id)
	}
	b.WriteString("END:VCALENDAR\r\n")
	window := Interval{day.AddDate(0, 0, -1), day.AddDate(0, 0, 60)}
	d, err := parse([]byte(b.String()), time.UTC, window)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	busy, problems, err := d.busy(t.Context(), window)
	if err != nil || len(problems) > 0 || len(busy) != maxEvents-1+len(extra) {
		t.Fatalf("%d intervals, %.300v, %v", len(busy), problems, err)
	}
	// It takes 0.3 s on a quiet machine and more under the race detector. Quadratic work takes far longer than the
	// bound.
	if took := time.Since(began); took > 2*time.Minute {
		t.Errorf("%d changes of a series took %v", maxEvents, took)
	}
}

// TestManyRules: an event may have only a few rules, because a rule that never comes true is searched through thousands of
// years.
func TestManyRules(t *testing.T) {
	day := time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)
	window := Interval{day, day.AddDate(0, 0, 60)}
	rules := strings.Repeat("RRULE:FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30;COUNT=1\r\n", maxRules+1)
	d, err := parse([]byte("BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:x\r\nBEGIN:VEVENT\r\nUID:a\r\nDTSTART:20260301T090000Z\r\nDURATION:PT1H\r\n"+rules+
		"END:VEVENT\r\nEND:VCALENDAR\r\n"), time.UTC, window)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.problems) != 1 || !strings.Contains(d.problems[0].Text, "rule") || len(d.events) > 0 {
		t.Errorf("%d events, %v, want one problem", len(d.events), d.problems)
	}
}

// TestManyTimesADay: the times of a day are the product of three lists, so a short rule may ask for more memory than
// there is.
func TestManyTimesADay(t *testing.T) {
	zeros := strings.Repeat("0,", 200) + "0"
	listed := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, ",%d", i)
		}
		return b.String()[1:]
	}
	day := time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		rule string
		ok   bool
	}{
		"every quarter of an hour": {"BYHOUR=" + listed(24) + ";BYMINUTE=0,15,30,45", true},
		"repeated":                 {"BYHOUR=" + zeros + ";BYMINUTE=" + zeros, false},
		"every minute":             {"BYHOUR=" + listed(24) + ";BYMINUTE=" + listed(60), false},
		"seconds":                  {"BYMINUTE=0,30;BYSECOND=" + listed(60), false},
	} {
		budget := maxCount
		got, err := listRecurrences("FREQ=YEARLY;BYMONTH=3;BYDAY=MO;"+tc.rule, moment{wall: day, zone: zone{loc: time.UTC}}, Interval{day, day.AddDate(0, 0, 1)}, &budget)
		if ok := err == nil && len(got) == maxTimesADay; ok != tc.ok || !ok && err == nil {
			t.Errorf("%s: %d recurrences, %v", name, len(got), err)
		}
	}
}

// TestLongRule: a list with the same day again and again would make a rule take seconds.
func TestLongRule(t *testing.T) {
	day := time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
	for n, ok := range map[int]bool{31: true, 1000: false} {
		budget := maxCount
		rule := "FREQ=MONTHLY;BYMONTHDAY=2" + strings.Repeat(",2", n-1)
		got, err := listRecurrences(rule, moment{wall: day, zone: zone{loc: time.UTC}}, Interval{day, day.AddDate(0, 0, 1)}, &budget)
		if (err == nil) != ok || ok && len(got) != 1 {
			t.Errorf("%d days of a month: %v, %v", n, got, err)
		}
	}
}

// TestHoursWithoutMidnight: in Chile, the clock skips midnight of 2026-09-06, a Sunday.
func TestHoursWithoutMidnight(t *testing.T) {
	zone, err := time.LoadLocation("America/Santiago")
	if err != nil {
		t.Fatal(err)
	}
	hours, err := ParseHours("sun 10:00-11:00")
	if err != nil {
		t.Fatal(err)
	}
	start := time.Date(2026, 9, 6, 10, 0, 0, 0, zone)
	got := hours.within(Interval{start.Add(-24 * time.Hour), start.Add(24 * time.Hour)}, zone)
	if len(got) != 1 || !got[0].Start.Equal(start) || !got[0].End.Equal(start.Add(time.Hour)) {
		t.Errorf("hours of that Sunday: %v", got)
	}
}

// TestLoopbackCalendar: a name that looks like a loopback address may be any machine.
func TestLoopbackCalendar(t *testing.T) {
	for address, ok := range map[string]bool{
		"http://127.0.0.1:5232/a": true, "http://localhost/a": true, "http://[::1]/a": true, "https://127.example.com/a": true,
		"http://127.example.com/a": false, "http://10.0.0.1/a": false,
	} {
		if _, err := NewCalDAV(address, "ann", "secret", nil); ok != (err == nil) {
			t.Errorf("%s: %v", address, err)
		}
	}
}
