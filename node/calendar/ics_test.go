package calendar

import (
	"strings"
	"testing"
	"time"

	"github.com/emersion/go-ical"
	"github.com/google/go-cmp/cmp"
)

// berlin returns the owner's zone in these tests: an hour ahead of UTC, two in summer.
func berlin(t testing.TB) *time.Location {
	t.Helper()
	loc, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	return loc
}

// object wraps lines into a calendar.
func object(lines ...string) []byte {
	text := "BEGIN:VCALENDAR\nVERSION:2.0\nPRODID:-//test//EN\n" + strings.Join(lines, "\n") + "\nEND:VCALENDAR\n"
	return []byte(strings.ReplaceAll(text, "\n", "\r\n"))
}

// vevent wraps lines into an event.
func vevent(lines ...string) string {
	return "BEGIN:VEVENT\n" + strings.Join(lines, "\n") + "\nEND:VEVENT"
}

// timezone is Outlook's description of Berlin under a name of its own.
const timezone = `BEGIN:VTIMEZONE
TZID:Customized Time Zone
BEGIN:STANDARD
DTSTART:16010101T030000
TZOFFSETFROM:+0200
TZOFFSETTO:+0100
RRULE:FREQ=YEARLY;INTERVAL=1;BYDAY=-1SU;BYMONTH=10
END:STANDARD
BEGIN:DAYLIGHT
DTSTART:16010101T020000
TZOFFSETFROM:+0100
TZOFFSETTO:+0200
RRULE:FREQ=YEARLY;INTERVAL=1;BYDAY=-1SU;BYMONTH=3
END:DAYLIGHT
END:VTIMEZONE`

// wholeWindow is the result if everything has to count as busy.
var wholeWindow = []string{"2026-03-01 00:00 - 2026-04-15 00:00"}

// TestBusy reads oddities that real calendars contain. The window is 1 March to 15 April 2026 UTC, across the change
// to summer time on 29 March.
func TestBusy(t *testing.T) {
	for _, tt := range []struct {
		name     string
		text     []byte
		want     []string // UTC
		problems int
	}{
		{"utc", object(vevent("UID:1", "DTSTART:20260310T090000Z", "DTEND:20260310T100000Z")),
			[]string{"2026-03-10 09:00 - 2026-03-10 10:00"}, 0},
		{"floating is the owner's", object(vevent("UID:1", "DTSTART:20260310T090000", "DTEND:20260310T100000")),
			[]string{"2026-03-10 08:00 - 2026-03-10 09:00"}, 0},
		{"iana zone", object(vevent("UID:1", "DTSTART;TZID=America/New_York:20260310T090000", "DURATION:PT30M")),
			[]string{"2026-03-10 13:00 - 2026-03-10 13:30"}, 0},
		{"zone behind a vendor's prefix", object(vevent("UID:1", "DTSTART;TZID=/freeassociation.sourceforge.net/Europe/Berlin:20260310T090000", "DURATION:PT1H")),
			[]string{"2026-03-10 08:00 - 2026-03-10 09:00"}, 0},
		{"windows zone without description", object(vevent("UID:1", `DTSTART;TZID="W. Europe Standard Time":20260410T090000`, "DURATION:PT1H")),
			[]string{"2026-04-10 07:00 - 2026-04-10 08:00"}, 0},
		{"name of the database without description", object(vevent("UID:1", "DTSTART;TZID=UTC:20260410T090000", "DURATION:PT1H")),
			[]string{"2026-04-10 09:00 - 2026-04-10 10:00"}, 0},
		{"zone that only the calendar describes", object(timezone, vevent("UID:1", "DTSTART;TZID=Customized Time Zone:20260310T120000", "DURATION:PT1H")),
			[]string{"2026-03-10 10:00 - 2026-03-10 12:00"}, 1},
		{"series in a zone that only the calendar describes", object(timezone, vevent("UID:1", "DTSTART;TZID=Customized Time Zone:20260310T120000", "DURATION:PT1H", "RRULE:FREQ=DAILY;COUNT=3",
			"EXDATE;TZID=Customized Time Zone:20260311T120000")),
			[]string{"2026-03-10 10:00 - 2026-03-10 12:00", "2026-03-12 10:00 - 2026-03-12 12:00"}, 1},
		{"a described zone under a name of the database", object(strings.ReplaceAll(timezone, "Customized Time Zone", "EST"), vevent("UID:1", "DTSTART;TZID=EST:20260310T120000", "DURATION:PT1H")),
			[]string{"2026-03-10 10:00 - 2026-03-10 12:00"}, 1},
		{"offset as a zone", object(vevent("UID:1", "DTSTART;TZID=UTC+1:20260310T090000", "DURATION:PT1H", "RRULE:FREQ=DAILY;COUNT=2")),
			[]string{"2026-03-10 08:00 - 2026-03-10 09:00", "2026-03-11 08:00 - 2026-03-11 09:00"}, 0},
		{"offset with minutes", object(vevent("UID:1", "DTSTART;TZID=\"gmt-03:30\":20260310T090000", "DURATION:PT1H")),
			[]string{"2026-03-10 12:30 - 2026-03-10 13:30"}, 0},
		{"zone in lower case", object(vevent("UID:1", "DTSTART;TZID=europe/berlin:20260310T090000", "DURATION:PT1H")),
			[]string{"2026-03-10 08:00 - 2026-03-10 09:00"}, 0},
		{"windows zone in lower case", object(vevent("UID:1", `DTSTART;TZID="w. europe standard time":20260410T090000`, "DURATION:PT1H")),
			[]string{"2026-04-10 07:00 - 2026-04-10 08:00"}, 0},
		{"rule in lower case", object(vevent("UID:1", "DTSTART:20260310T090000Z", "DURATION:PT1H", "RRULE:freq=daily;until=20260311t120000z")),
			[]string{"2026-03-10 09:00 - 2026-03-10 10:00", "2026-03-11 09:00 - 2026-03-11 10:00"}, 0},
		{"every hour, three times", object(vevent("UID:1", "DTSTART:20260310T090000Z", "DURATION:PT30M", "RRULE:FREQ=HOURLY;COUNT=3")),
			[]string{"2026-03-10 09:00 - 2026-03-10 09:30", "2026-03-10 10:00 - 2026-03-10 10:30", "2026-03-10 11:00 - 2026-03-10 11:30"}, 0},
		{"every hour on mornings", object(vevent("UID:1", "DTSTART:20260310T090000Z", "DURATION:PT30M", "RRULE:FREQ=HOURLY;BYHOUR=9;UNTIL=20260311T120000Z")),
			[]string{"2026-03-10 09:00 - 2026-03-14 00:30"}, 1},
		{"named by nothing", object(vevent("UID:1", "DTSTART:20260310T090000Z", "DURATION:PT1H"), vevent("UID:1", "RECURRENCE-ID:soon", "DTSTART:20260311T090000Z", "DURATION:PT1H")),
			[]string{"2026-03-10 09:00 - 2026-03-10 10:00", "2026-03-11 09:00 - 2026-03-11 10:00"}, 1},
		{"exception that cannot be read", object(vevent("UID:1", "DTSTART:20260310T090000Z", "DURATION:PT1H", "EXDATE:soon")),
			[]string{"2026-03-10 09:00 - 2026-03-10 10:00"}, 1},
		{"this one and all that follow moved by 30 hours", object(
			vevent("UID:1", "DTSTART:20260310T090000Z", "DURATION:PT1H", "RRULE:FREQ=DAILY;COUNT=2"),
			vevent("UID:1", "RECURRENCE-ID;RANGE=THISANDFUTURE:20260310T090000Z", "DTSTART:20260311T150000Z", "DURATION:PT1H")),
			[]string{"2026-03-11 09:00 - 2026-03-11 10:00", "2026-03-11 15:00 - 2026-03-11 16:00", "2026-03-12 15:00 - 2026-03-12 16:00"}, 1},
		{"moved into the window with all that follow", object(
			vevent("UID:1", "DTSTART:20260201T090000Z", "DURATION:PT1H", "RRULE:FREQ=DAILY;COUNT=3"),
			vevent("UID:1", "RECURRENCE-ID;RANGE=THISANDFUTURE:20260202T090000Z", "DTSTART:20260310T090000Z", "DURATION:PT1H")),
			[]string{"2026-03-10 09:00 - 2026-03-10 10:00", "2026-03-11 09:00 - 2026-03-11 10:00"}, 1},
		{"a published calendar with a zone", object("X-WR-TIMEZONE:America/New_York", vevent("UID:1", "DTSTART:20260310T150000", "DURATION:PT1H"), vevent("UID:2", "DTSTART;VALUE=DATE:20260312")),
			[]string{"2026-03-10 19:00 - 2026-03-10 20:00", "2026-03-11 23:00 - 2026-03-12 23:00"}, 0},
		{"a published calendar with an unknown zone", object("X-WR-TIMEZONE:Nowhere", vevent("UID:1", "DTSTART:20260310T120000", "DURATION:PT1H")),
			[]string{"2026-03-09 22:00 - 2026-03-11 01:00"}, 1},
		{"a task with a wrong end", object(vevent("UID:1", "DTSTART:20260310T090000Z", "DURATION:PT1H"), "BEGIN:"+ical.CompToDo+"\nUID:t\nEND:VTOOD", vevent("UID:2", "DTSTART:20260311T090000Z", "DURATION:PT1H")),
			[]string{"2026-03-10 09:00 - 2026-03-10 10:00", "2026-03-11 09:00 - 2026-03-11 10:00"}, 1},
		{"a task without an end", object("BEGIN:"+ical.CompToDo+"\nUID:t\nBEGIN:VALARM", vevent("UID:2", "DTSTART:20260311T090000Z", "DURATION:PT1H")),
			[]string{"2026-03-11 09:00 - 2026-03-11 10:00"}, 1},
		{"an event without an end, with a line that is no property", object("BEGIN:VEVENT\nUID:1\nDTSTART:20260310T090000Z\nDURATION:PT1H\nand so on", vevent("UID:2", "DTSTART:20260311T090000Z", "DURATION:PT1H")),
			[]string{"2026-03-10 09:00 - 2026-03-10 10:00", "2026-03-11 09:00 - 2026-03-11 10:00"}, 1},
		{"an event with a wrong beginning", object("BEGIN:VEVNT\nUID:1\nDTSTART:20260310T090000Z\nDURATION:PT1H\nEND:VEVENT"),
			[]string{"2026-03-10 09:00 - 2026-03-10 10:00"}, 1},
		{"a rule without a colon", object(vevent("UID:1", "DTSTART:20260310T090000Z", "DURATION:PT1H", "RRULE=FREQ=DAILY")),
			[]string{"2026-03-10 09:00 - 2026-04-15 00:00"}, 1},
		{"junk behind a quoted value", object("BEGIN:VEVENT", `DTSTART;TZID="a"b:20260310T090000`, "END:VEVENT"), wholeWindow, 1},
		{"unknown zone blocks every hour it may be", object(vevent("UID:1", "DTSTART;TZID=Moon/Tycho:20260310T120000", "DURATION:PT1H")),
			[]string{"2026-03-09 22:00 - 2026-03-11 01:00"}, 1},
		{"unknown zone with more dates", object(vevent("UID:1", "DTSTART;TZID=Moon/Tycho:20260310T120000", "DURATION:PT1H", "RDATE;TZID=Moon/Tycho:20260312T120000")),
			[]string{"2026-03-09 22:00 - 2026-03-11 01:00", "2026-03-11 22:00 - 2026-03-13 01:00"}, 1},
		{"unknown zone that recurs", object(vevent("UID:1", "DTSTART;TZID=Moon/Tycho:20260310T120000", "DURATION:PT1H", "RRULE:FREQ=DAILY;COUNT=2")),
			[]string{"2026-03-09 22:00 - 2026-03-12 01:00"}, 1},
		{"time that the clock skips", object(vevent("UID:1", "DTSTART;TZID=America/New_York:20260308T023000", "DURATION:PT30M")),
			[]string{"2026-03-08 07:30 - 2026-03-08 08:00"}, 0},
		{"time that the clock shows twice", object(vevent("UID:1", "DTSTART;TZID=Australia/Sydney:20260405T023000", "DURATION:PT30M")),
			[]string{"2026-04-04 15:30 - 2026-04-04 16:00"}, 0},
		{"all day", object(vevent("UID:1", "DTSTART;VALUE=DATE:20260310", "DTEND;VALUE=DATE:20260311")),
			[]string{"2026-03-09 23:00 - 2026-03-10 23:00"}, 0},
		{"all day without an end", object(vevent("UID:1", "DTSTART;VALUE=DATE:20260310")),
			[]string{"2026-03-09 23:00 - 2026-03-10 23:00"}, 0},
		{"all day across the clock change", object(vevent("UID:1", "DTSTART;VALUE=DATE:20260328", "DTEND;VALUE=DATE:20260330")),
			[]string{"2026-03-27 23:00 - 2026-03-29 22:00"}, 0},
		{"date without VALUE=DATE", object(vevent("UID:1", "DTSTART:20260310")),
			[]string{"2026-03-09 23:00 - 2026-03-10 23:00"}, 0},
		{"no end takes no time", object(vevent("UID:1", "DTSTART:20260310T090000Z")), nil, 0},
		{"transparent", object(vevent("UID:1", "DTSTART:20260310T090000Z", "DURATION:PT1H", "TRANSP:TRANSPARENT")), nil, 0},
		{"cancelled", object(vevent("UID:1", "DTSTART:20260310T090000Z", "DURATION:PT1H", "STATUS:CANCELLED")), nil, 0},
		{"marked free by Outlook", object(vevent("UID:1", "DTSTART:20260310T090000Z", "DURATION:PT1H", "X-MICROSOFT-CDO-BUSYSTATUS:FREE")), nil, 0},
		{"outside the window", object(vevent("UID:1", "DTSTART:20250310T090000Z", "DURATION:PT1H")), nil, 0},
		{"reaches into the window", object(vevent("UID:1", "DTSTART:20260228T230000Z", "DURATION:PT2H")),
			[]string{"2026-03-01 00:00 - 2026-03-01 01:00"}, 0},
		{"weekly at nine, also in summer", object(vevent("UID:1", "DTSTART;TZID=Europe/Berlin:20260323T090000", "DURATION:PT1H", "RRULE:FREQ=WEEKLY;COUNT=3")),
			[]string{"2026-03-23 08:00 - 2026-03-23 09:00", "2026-03-30 07:00 - 2026-03-30 08:00", "2026-04-06 07:00 - 2026-04-06 08:00"}, 0},
		{"until in UTC", object(vevent("UID:1", "DTSTART;TZID=Europe/Berlin:20260310T090000", "DURATION:PT1H", "RRULE:FREQ=DAILY;UNTIL=20260311T080000Z")),
			[]string{"2026-03-10 08:00 - 2026-03-10 09:00", "2026-03-11 08:00 - 2026-03-11 09:00"}, 0},
		{"until a day", object(vevent("UID:1", "DTSTART;TZID=Europe/Berlin:20260310T200000", "DURATION:PT1H", "RRULE:FREQ=DAILY;UNTIL=20260311")),
			[]string{"2026-03-10 19:00 - 2026-03-10 20:00", "2026-03-11 19:00 - 2026-03-11 20:00"}, 0},
		{"exception", object(vevent("UID:1", "DTSTART;TZID=Europe/Berlin:20260310T090000", "DURATION:PT1H", "RRULE:FREQ=DAILY;COUNT=3", "EXDATE;TZID=Europe/Berlin:20260311T090000")),
			[]string{"2026-03-10 08:00 - 2026-03-10 09:00", "2026-03-12 08:00 - 2026-03-12 09:00"}, 0},
		{"exceptions in one line and in UTC", object(vevent("UID:1", "DTSTART;TZID=Europe/Berlin:20260310T090000", "DURATION:PT1H", "RRULE:FREQ=DAILY;COUNT=3", "EXDATE:20260310T080000Z,20260311T080000Z")),
			[]string{"2026-03-12 08:00 - 2026-03-12 09:00"}, 0},
		{"exception that names the day", object(vevent("UID:1", "DTSTART;TZID=Europe/Berlin:20260310T090000", "DURATION:PT1H", "RRULE:FREQ=DAILY;COUNT=2", "EXDATE;VALUE=DATE:20260310")),
			[]string{"2026-03-11 08:00 - 2026-03-11 09:00"}, 0},
		{"extra date", object(vevent("UID:1", "DTSTART:20260310T090000Z", "DURATION:PT1H", "RDATE:20260401T120000Z")),
			[]string{"2026-03-10 09:00 - 2026-03-10 10:00", "2026-04-01 12:00 - 2026-04-01 13:00"}, 0},
		{"one of a series moved", object(
			vevent("UID:1", "DTSTART:20260310T090000Z", "DURATION:PT1H", "RRULE:FREQ=DAILY;COUNT=2"),
			vevent("UID:1", "RECURRENCE-ID:20260311T090000Z", "DTSTART:20260311T150000Z", "DURATION:PT30M")),
			[]string{"2026-03-10 09:00 - 2026-03-10 10:00", "2026-03-11 15:00 - 2026-03-11 15:30"}, 0},
		{"one of a series moved, named by its day", object(
			vevent("UID:1", "DTSTART:20260310T090000Z", "DURATION:PT1H", "RRULE:FREQ=DAILY;COUNT=2"),
			vevent("UID:1", "RECURRENCE-ID;VALUE=DATE:20260311", "DTSTART:20260311T150000Z", "DURATION:PT30M")),
			[]string{"2026-03-10 09:00 - 2026-03-10 10:00", "2026-03-11 15:00 - 2026-03-11 15:30"}, 0},
		{"a day names neither of two recurrences", object(
			vevent("UID:1", "DTSTART:20260310T090000Z", "DURATION:PT1H", "RRULE:FREQ=DAILY;COUNT=4;BYHOUR=9,20", "EXDATE;VALUE=DATE:20260310"),
			vevent("UID:1", "RECURRENCE-ID;VALUE=DATE:20260311", "DTSTART:20260311T150000Z", "DURATION:PT30M")),
			[]string{"2026-03-10 09:00 - 2026-03-10 10:00", "2026-03-10 20:00 - 2026-03-10 21:00", "2026-03-11 09:00 - 2026-03-11 10:00",
				"2026-03-11 15:00 - 2026-03-11 15:30", "2026-03-11 20:00 - 2026-03-11 21:00"}, 0},
		{"one of a series cancelled", object(
			vevent("UID:1", "DTSTART:20260310T090000Z", "DURATION:PT1H", "RRULE:FREQ=DAILY;COUNT=2"),
			vevent("UID:1", "RECURRENCE-ID:20260311T090000Z", "DTSTART:20260311T090000Z", "DURATION:PT1H", "STATUS:CANCELLED")),
			[]string{"2026-03-10 09:00 - 2026-03-10 10:00"}, 0},
		{"moved twice: the newest counts", object(
			vevent("UID:1", "SEQUENCE:2", "DTSTART:20260312T090000Z", "DURATION:PT1H"),
			vevent("UID:1", "SEQUENCE:1", "DTSTART:20260311T090000Z", "DURATION:PT1H")),
			[]string{"2026-03-12 09:00 - 2026-03-12 10:00"}, 0},
		{"two events that share a missing UID", object(
			vevent("DTSTART:20260310T090000Z", "DURATION:PT1H"), vevent("DTSTART:20260311T090000Z", "DURATION:PT1H")),
			[]string{"2026-03-10 09:00 - 2026-03-10 10:00", "2026-03-11 09:00 - 2026-03-11 10:00"}, 0},
		{"last Friday of the month", object(vevent("UID:1", "DTSTART:20260130T090000Z", "DURATION:PT1H", "RRULE:FREQ=MONTHLY;BYDAY=-1FR")),
			[]string{"2026-03-27 09:00 - 2026-03-27 10:00"}, 0},
		{"the 31st of months that have one", object(vevent("UID:1", "DTSTART:20260131T090000Z", "DURATION:PT1H", "RRULE:FREQ=MONTHLY")),
			[]string{"2026-03-31 09:00 - 2026-03-31 10:00"}, 0},
		{"folded line and CRLF", object("BEGIN:VEVENT", "UID:1", "DTSTART:20260310T0900\n 00Z", "DURATION:PT1H", "END:VEVENT"),
			[]string{"2026-03-10 09:00 - 2026-03-10 10:00"}, 0},
		{"alarm inside", object("BEGIN:VEVENT", "UID:1", "DTSTART:20260310T090000Z", "DURATION:PT1H", "BEGIN:VALARM", "TRIGGER:-PT15M", "ACTION:DISPLAY", "END:VALARM", "END:VEVENT"),
			[]string{"2026-03-10 09:00 - 2026-03-10 10:00"}, 0},
		{"free-busy answer", object("BEGIN:VFREEBUSY", "FREEBUSY:20260310T090000Z/PT1H,20260311T090000Z/20260311T100000Z", "FREEBUSY;FBTYPE=FREE:20260312T090000Z/PT1H", "END:VFREEBUSY"),
			[]string{"2026-03-10 09:00 - 2026-03-10 10:00", "2026-03-11 09:00 - 2026-03-11 10:00"}, 0},
		{"two calendars in one file", append(object(vevent("UID:1", "DTSTART:20260310T090000Z", "DURATION:PT1H")), object(vevent("UID:2", "DTSTART:20260311T090000Z", "DURATION:PT1H"))...),
			[]string{"2026-03-10 09:00 - 2026-03-10 10:00", "2026-03-11 09:00 - 2026-03-11 10:00"}, 0},
		{"as Windows writes it, with a byte order mark", append([]byte("\ufeff"), object(vevent("UID:1", "DTSTART:20260310T090000Z", "DURATION:PT1H"))...),
			[]string{"2026-03-10 09:00 - 2026-03-10 10:00"}, 0},
		{"lines that end as on Unix", []byte(strings.ReplaceAll(string(object(vevent("UID:1", "DTSTART:20260310T090000Z", "DURATION:PT1H"))), "\r", "")),
			[]string{"2026-03-10 09:00 - 2026-03-10 10:00"}, 0},
		{"names in lower case", object("begin:vevent", "uid:1", "dtstart:20260310T090000Z", "duration:PT1H", "end:vevent"),
			[]string{"2026-03-10 09:00 - 2026-03-10 10:00"}, 0},
		{"folded inside a letter, and another character set", object("BEGIN:VEVENT", "UID:1", "SUMMARY:caf\xc3\n \xa9", "LOCATION:caf\xe9", "DTSTART:20260310T090000Z", "DURATION:PT1H", "END:VEVENT"),
			[]string{"2026-03-10 09:00 - 2026-03-10 10:00"}, 0},
		{"a time that the clocks leave out", object(vevent("UID:1", "DTSTART;TZID=Europe/Berlin:20260329T023000", "DURATION:PT1H")),
			[]string{"2026-03-29 01:30 - 2026-03-29 02:30"}, 0},
		{"zone and Z", object(vevent("UID:1", "DTSTART;TZID=Europe/Berlin:20260310T090000Z", "DURATION:PT1H")),
			[]string{"2026-03-10 09:00 - 2026-03-10 10:00"}, 0},
		{"begins in one zone and ends in another", object(vevent("UID:1", "DTSTART;TZID=Europe/Berlin:20260310T090000", "DTEND;TZID=America/New_York:20260310T090000")),
			[]string{"2026-03-10 08:00 - 2026-03-10 13:00"}, 0},
		{"this one and all that follow moved", object(
			vevent("UID:1", "DTSTART;TZID=Europe/Berlin:20260327T090000", "DURATION:PT1H", "RRULE:FREQ=DAILY;COUNT=4"),
			vevent("UID:1", "RECURRENCE-ID;RANGE=THISANDFUTURE:20260328T080000Z", "DTSTART;TZID=Europe/Berlin:20260328T150000", "DURATION:PT2H")),
			[]string{"2026-03-27 08:00 - 2026-03-27 09:00", "2026-03-28 14:00 - 2026-03-28 16:00", "2026-03-29 07:00 - 2026-03-29 08:00", "2026-03-29 13:00 - 2026-03-29 15:00",
				"2026-03-30 07:00 - 2026-03-30 08:00", "2026-03-30 13:00 - 2026-03-30 15:00"}, 1},
		{"a whole-day series of which one moved", object(
			vevent("UID:1", "DTSTART;VALUE=DATE:20260310", "RRULE:FREQ=DAILY;COUNT=2"), vevent("UID:1", "RECURRENCE-ID;VALUE=DATE:20260311", "DTSTART;VALUE=DATE:20260315")),
			[]string{"2026-03-09 23:00 - 2026-03-10 23:00", "2026-03-14 23:00 - 2026-03-15 23:00"}, 0},
		{"a moved recurrence without its series", object(vevent("UID:1", "RECURRENCE-ID:20260311T090000Z", "DTSTART:20260311T150000Z", "DURATION:PT1H")),
			[]string{"2026-03-11 15:00 - 2026-03-11 16:00"}, 0},
		{"extra dates with lengths of their own", object(vevent("UID:1", "DTSTART:20260310T090000Z", "DURATION:PT1H", "RDATE;VALUE=PERIOD:20260401T120000Z/PT2H,20260402T120000Z/20260402T150000Z")),
			[]string{"2026-03-10 09:00 - 2026-03-10 10:00", "2026-04-01 12:00 - 2026-04-01 14:00", "2026-04-02 12:00 - 2026-04-02 15:00"}, 0},
		{"two rules", object(vevent("UID:1", "DTSTART:20260310T090000Z", "DURATION:PT1H", "RRULE:FREQ=DAILY;COUNT=2", "RRULE:FREQ=WEEKLY;COUNT=2")),
			[]string{"2026-03-10 09:00 - 2026-03-10 10:00", "2026-03-11 09:00 - 2026-03-11 10:00", "2026-03-17 09:00 - 2026-03-17 10:00"}, 0},
		{"every other week on two days", object(vevent("UID:1", "DTSTART:20260302T090000Z", "DURATION:PT1H", "RRULE:FREQ=WEEKLY;INTERVAL=2;WKST=MO;BYDAY=MO,TH;COUNT=4")),
			[]string{"2026-03-02 09:00 - 2026-03-02 10:00", "2026-03-05 09:00 - 2026-03-05 10:00", "2026-03-16 09:00 - 2026-03-16 10:00", "2026-03-19 09:00 - 2026-03-19 10:00"}, 0},
		{"the last working day", object(vevent("UID:1", "DTSTART:20260130T090000Z", "DURATION:PT1H", "RRULE:FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1")),
			[]string{"2026-03-31 09:00 - 2026-03-31 10:00"}, 0},
		{"a day by the clock, shorter in spring", object(vevent("UID:1", "DTSTART;TZID=Europe/Berlin:20260328T090000", "DURATION:P1DT1H")),
			[]string{"2026-03-28 08:00 - 2026-03-29 08:00"}, 0},
		{"whole days that end before they start", object(vevent("UID:1", "DTSTART;VALUE=DATE:20260310", "DTEND;VALUE=DATE:20260308")),
			[]string{"2026-03-09 23:00 - 2026-03-11 23:00"}, 1},
		{"a day that ends at a time", object(vevent("UID:1", "DTSTART;VALUE=DATE:20260310", "DTEND:20260311T120000Z")),
			[]string{"2026-03-09 23:00 - 2026-03-11 23:00"}, 1},
		{"from the year 0 to 9999", object(vevent("UID:1", "DTSTART:00000101T000000Z", "DTEND:99991231T235959Z")), wholeWindow, 1},
		{"negative duration", object(vevent("UID:1", "DTSTART:20260310T090000Z", "DURATION:-PT1H")),
			[]string{"2026-03-10 09:00 - 2026-03-12 09:00"}, 1},
		{"ends before it starts", object(vevent("UID:1", "DTSTART:20260310T090000Z", "DTEND:20260310T080000Z")),
			[]string{"2026-03-10 09:00 - 2026-03-12 09:00"}, 1},
		{"start is not a time", object(vevent("UID:1", "DTSTART:soon", "DURATION:PT1H")), wholeWindow, 1},
		{"no start", object(vevent("UID:1", "DURATION:PT1H")), wholeWindow, 1},
		{"invalid duration", object(vevent("UID:1", "DTSTART:20260310T090000Z", "DURATION:long")),
			[]string{"2026-03-10 09:00 - 2026-03-12 09:00"}, 1},
		{"invalid rule", object(vevent("UID:1", "DTSTART:20260310T090000Z", "DURATION:PT1H", "RRULE:FREQ=OFTEN")), []string{"2026-03-10 09:00 - 2026-04-15 00:00"}, 1},
		{"every second", object(vevent("UID:1", "DTSTART:20260310T090000Z", "DURATION:PT1S", "RRULE:FREQ=SECONDLY")), []string{"2026-03-10 09:00 - 2026-04-15 00:00"}, 1},
		{"a rule that never fits", object(vevent("UID:1", "DTSTART:20260310T090000Z", "DURATION:PT1H", "RRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30")),
			[]string{"2026-03-10 09:00 - 2026-03-10 10:00"}, 0},
		{"a start that its rule leaves out", object(vevent("UID:1", "DTSTART:20260310T090000Z", "DURATION:PT1H", "RRULE:FREQ=WEEKLY;BYDAY=WE;COUNT=1")),
			[]string{"2026-03-10 09:00 - 2026-03-10 10:00", "2026-03-11 09:00 - 2026-03-11 10:00"}, 0},
		{"an end in an unknown zone", object(vevent("UID:1", "DTSTART:20260310T090000Z", "DTEND;TZID=Nowhere:20260310T100000")),
			[]string{"2026-03-10 09:00 - 2026-03-10 22:00"}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			window := Interval{time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 4, 15, 0, 0, 0, 0, time.UTC)}
			d, err := parse(tt.text, berlin(t), window)
			if err != nil {
				t.Fatal(err)
			}
			busy, problems, err := d.busy(t.Context(), window)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, show(merge(busy))); diff != "" {
				t.Errorf("busy (-want +got):\n%s", diff)
			}
			if len(problems) != tt.problems {
				t.Errorf("%d problems, want %d: %v", len(problems), tt.problems, problems)
			}
		})
	}
}

// TestUntilOfDays: an UNTIL in UTC includes the last day of an all-day event, on either side of Greenwich. Programs
// write it as midnight in UTC or in the owner's zone.
func TestUntilOfDays(t *testing.T) {
	window := Interval{time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 4, 15, 0, 0, 0, 0, time.UTC)}
	for _, tt := range []struct{ zone, until, end string }{
		{"America/Los_Angeles", "20260312T000000Z", "2026-03-13 07:00"},
		{"America/Los_Angeles", "20260312T070000Z", "2026-03-13 07:00"},
		{"Pacific/Auckland", "20260311T110000Z", "2026-03-12 11:00"},
		{"Pacific/Auckland", "20260312T000000Z", "2026-03-12 11:00"},
	} {
		loc, err := time.LoadLocation(tt.zone)
		if err != nil {
			t.Fatal(err)
		}
		d, err := parse(object(vevent("UID:1", "DTSTART;VALUE=DATE:20260310", "RRULE:FREQ=DAILY;UNTIL="+tt.until)), loc, window)
		if err != nil {
			t.Fatal(err)
		}
		busy, _, err := d.busy(t.Context(), window)
		if err != nil {
			t.Fatal(err)
		}
		if got := show(merge(busy)); len(got) != 1 || !strings.HasSuffix(got[0], tt.end) {
			t.Errorf("until %s in %s: %v, want the end %s", tt.until, tt.zone, got, tt.end)
		}
	}
}

func show(list []Interval) []string {
	const layout = "2006-01-02 15:04"
	var out []string
	for _, i := range list {
		out = append(out, i.Start.UTC().Format(layout)+" - "+i.End.UTC().Format(layout))
	}
	return out
}

// TestUnreadable: text that is not a calendar, or too large, is an error, so that nobody takes it for free time.
func TestUnreadable(t *testing.T) {
	window := Interval{time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 4, 15, 0, 0, 0, 0, time.UTC)}
	for _, tt := range []struct {
		name string
		text []byte
	}{
		{"no calendar", []byte("<html>not found</html>")},
		{"cut in the middle", object(vevent("UID:1", "DTSTART:20260310T090000Z"))[:60]},
		{"nested too deep", object(strings.Repeat("BEGIN:X\n", 20) + strings.Repeat("END:X\n", 20))},
		{"nested too deep, folded", object(strings.Repeat("BEG\n IN:X\n", 20) + strings.Repeat("EN\n D:X\n", 20))},
		{"nested too deep, with parameters", object(strings.Repeat("BEGIN;A=B:X\n", 20) + strings.Repeat("END;A=B:X\n", 20))},
		{"a long parameter, folded", object(vevent("UID:1", "DTSTART:20260310T090000Z", "X-A;B="+strings.Repeat("xxxx\n ", 2000)+":c"))},
		{"ten million bytes of one event", object(vevent("UID:1", "DTSTART:20260310T090000Z", "DESCRIPTION:"+strings.Repeat("x", 10<<20)))},
		{"one long line", object(vevent("UID:1", "DTSTART:20260310T090000Z", "DESCRIPTION:"+strings.Repeat("x", 1<<20)))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if d, err := parse(tt.text, time.UTC, window); err == nil {
				t.Errorf("read = %d events, want an error", len(d.events))
			}
		})
	}
}

// TestManyRecurrences: 10,000 recurrences are read; rules that are made to be slow take a bounded time.
func TestManyRecurrences(t *testing.T) {
	window := Interval{time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 3, 3, 0, 0, 0, 0, time.UTC)}
	d, err := parse(object(vevent("UID:1", "DTSTART:20000101T090000Z", "DURATION:PT1H", "RRULE:FREQ=DAILY;COUNT=10000")), time.UTC, window)
	if err != nil {
		t.Fatal(err)
	}
	busy, problems, err := d.busy(t.Context(), window)
	if err != nil || len(problems) != 0 || len(busy) != 2 {
		t.Errorf("busy = %v, %v, %v, want two", show(busy), problems, err)
	}
	var slow []string
	for range 200 {
		slow = append(slow, vevent("DTSTART:19700101T090000Z", "DURATION:PT1M", "RRULE:FREQ=YEARLY;BYDAY=MO,TU,WE,TH,FR,SA,SU;BYHOUR=1,2,3,4,5,6,7,8,9;BYMINUTE=1,2,3,4,5"))
	}
	if d, err = parse(object(slow...), time.UTC, window); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if _, problems, err = d.busy(t.Context(), window); err != nil || len(problems) == 0 {
		t.Errorf("problems = %v, %v, want a problem about too many recurrences", problems, err)
	}
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(object(timezone, vevent("UID:1", "DTSTART;TZID=Customized Time Zone:20260310T090000", "DURATION:PT1H", "RRULE:FREQ=DAILY")))
	f.Add([]byte("BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART;X=\"\":"))
	f.Add(object("BEGIN:VFREEBUSY", "FREEBUSY:20260310T090000Z/PT1H", "END:VFREEBUSY"))
	window := Interval{time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 3, 3, 0, 0, 0, 0, time.UTC)}
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := parse(text, time.UTC, window)
		if err != nil {
			return
		}
		busy, _, err := d.busy(t.Context(), window)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range busy {
			if !i.Start.Before(i.End) || i.Start.Before(window.Start) || i.End.After(window.End) {
				t.Errorf("busy outside the window: %v", i)
			}
		}
	})
}
