package calendar

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/emersion/go-ical"
)

const (
	localLayout = "20060102T150405"
	utcLayout   = "20060102T150405Z"
	dateLayout  = "20060102"
)

// The bounds on input. A calendar beyond them is refused as a whole, because a part of a calendar would show busy time
// as free.
const (
	maxFile   = 8 << 20 // bytes of one file
	maxLine   = 256 << 10
	maxHead   = 4 << 10 // bytes of the name and the parameters of a content line
	maxNested = 8       // components inside components; RFC 5545 needs three
	maxEvents = 50_000
)

// Problem is an error in a calendar. Text is for the owner, and may quote text of a stranger.
type Problem struct {
	Source string `json:"source"`
	UID    string `json:"uid,omitempty"`
	Text   string `json:"text"`
	Unread bool   `json:"unread,omitempty"` // a file or object cannot be read, so busy times may be missing
}

// event is a VEVENT. Its times are not converted to instants yet.
type event struct {
	source    string // file or object
	uid       string
	version   version
	replaced  *moment // RECURRENCE-ID: the recurrence that this event replaces; nil if it replaces none
	start     moment
	length    span
	rule      string   // RRULE; empty: none
	excluded  []moment // EXDATE
	extra     []moment // RDATE
	free      bool     // transparent, cancelled, or marked as free: it takes no time
	cancelled bool
}

// version tells which of two descriptions of an event is newer (RFC 5545 §3.8.7.4). Zero times are not known.
type version struct {
	sequence        int // -1: not known
	stamp, modified time.Time
}

// isOlder reports whether v is certainly older than w.
func (v version) isOlder(w version) bool {
	switch {
	case v.sequence < 0:
		return false
	case v.sequence != w.sequence:
		return v.sequence < w.sequence
	case v.stamp.IsZero():
		return false
	case !v.stamp.Equal(w.stamp):
		return v.stamp.Before(w.stamp)
	}
	return !v.modified.IsZero() && v.modified.Before(w.modified)
}

// compare orders versions. What is not known comes first, so no version is older than one that comes before it.
func (v version) compare(w version) int {
	return cmp.Or(cmp.Compare(v.sequence, w.sequence), v.stamp.Compare(w.stamp), v.modified.Compare(w.modified))
}

// moment is a point in time as a calendar writes it.
type moment struct {
	wall time.Time // as a clock in zone shows it
	zone zone
	day  bool // a whole day: VALUE=DATE
}

func (m moment) instant() time.Time { return m.zone.instant(m.wall) }

// date identifies the day of the moment by the wall clock.
func (m moment) date() int64 { return m.wall.Truncate(24 * time.Hour).Unix() }

// span is how long an event takes: days by the wall clock, the rest in elapsed time.
type span struct {
	days int
	rest time.Duration
}

// from returns the interval that the span takes if it begins at start.
func (s span) from(start moment) Interval {
	end := moment{wall: start.wall.AddDate(0, 0, s.days), zone: start.zone}
	return Interval{start.instant(), end.instant().Add(s.rest)}
}

// estimate returns the length of the span, if its days have 24 hours.
func (s span) estimate() time.Duration { return time.Duration(s.days)*24*time.Hour + s.rest }

// calendarData is the content of one file or answer.
type calendarData struct {
	events   []event
	blocked  []Interval // busy times of events whose time is unclear
	problems []Problem
}

// reader turns iCalendar text into events.
type reader struct {
	owner  *time.Location // zone of times without a zone
	window Interval
	out    calendarData
}

// parse parses one file. owner is the zone of times without a zone. An error means that the file, or a part of it,
// cannot be read. An error in a single event is a Problem, and all the time that the event may take counts as busy.
func parse(text []byte, owner *time.Location, window Interval) (calendarData, error) {
	text = bytes.TrimPrefix(text, []byte("\ufeff")) // Windows programs write a byte order mark
	if err := checkBounds(text); err != nil {
		return calendarData{}, err
	}
	r := reader{owner: owner, window: window}
	dec := ical.NewDecoder(bytes.NewReader(text))
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("<")) {
		return calendarData{}, errWebPage
	}
	for {
		cal, err := decode(dec)
		if errors.Is(err, io.EOF) {
			return r.out, nil
		}
		if err != nil {
			return r.out, err
		}
		if err := r.addCalendar(cal); err != nil {
			return r.out, err
		}
	}
}

// unfold joins the continuations of content lines, as go-ical does.
var unfold = strings.NewReplacer("\r\n ", "", "\r\n\t", "", "\n ", "", "\n\t", "")

// lineHead matches the name and the parameters of a content line.
var lineHead = regexp.MustCompile(`^[^;:]+(?:;[^=:;"]+=(?:"[^"]*"|[^";:,]*)(?:,(?:"[^"]*"|[^";:,]*))*)*:`)

// checkBounds refuses text that would be too expensive to read: go-ical descends into components without a bound, and
// needs quadratic time for the value of a parameter.
func checkBounds(text []byte) error {
	if len(text) > maxFile {
		return fmt.Errorf("larger than %d MiB", maxFile>>20)
	}
	for line := range bytes.Lines(text) {
		if len(line) > maxLine {
			return fmt.Errorf("a line is longer than %d KiB", maxLine>>10)
		}
	}
	nested := 0
	for line := range strings.Lines(unfold.Replace(string(text))) {
		end := max(0, strings.IndexAny(line, ";:"))
		if line[end] == ';' {
			if head := lineHead.FindString(line); head == "" {
				return errors.New("malformed parameters of a line")
			} else if len(head) > maxHead {
				return fmt.Errorf("the parameters of a line are longer than %d KiB", maxHead>>10)
			}
		}
		switch strings.ToUpper(line[:end]) {
		case "BEGIN":
			nested++
		case "END":
			nested--
		}
		if nested > maxNested {
			return fmt.Errorf("components nested more than %d deep", maxNested)
		}
		if nested < 0 {
			return errors.New("it ends a component that did not begin")
		}
	}
	if nested != 0 {
		return errors.New("it ends inside a component")
	}
	return nil
}

// decode reads the next VCALENDAR. The library panics on some malformed lines; decode turns that into an error.
func decode(dec *ical.Decoder) (cal *ical.Calendar, err error) {
	defer func() {
		if p := recover(); p != nil {
			cal, err = nil, errors.New("malformed line")
		}
	}()
	return dec.Decode()
}

// addCalendar adds the events of one VCALENDAR.
func (r *reader) addCalendar(cal *ical.Calendar) error {
	for _, child := range cal.Children {
		switch child.Name {
		case ical.CompEvent:
			if len(r.out.events) >= maxEvents {
				return fmt.Errorf("more than %d events", maxEvents)
			}
			r.addEvent(child)
		case ical.CompFreeBusy:
			r.out.addProblem(Problem{Text: "it has busy times without events (VFREEBUSY), which are not read; all the time counts as busy"})
			r.out.blocked = append(r.out.blocked, r.window)
		}
	}
	return nil
}

// value returns the text of a property, or "".
func value(comp *ical.Component, name string) string {
	if p := comp.Props.Get(name); p != nil {
		return strings.TrimSpace(p.Value)
	}
	return ""
}

const maxProblems = 100

// addProblem records a problem. The last place is for something unread, which must not be lost.
func (d *calendarData) addProblem(p Problem) {
	if len(d.problems) < maxProblems {
		d.problems = append(d.problems, p)
	} else if p.Unread {
		d.problems[maxProblems-1] = p
	}
}

// addEvent adds one VEVENT. If the time of the event is unclear, all the time that it may take counts as busy.
func (r *reader) addEvent(comp *ical.Component) {
	e := event{uid: value(comp, ical.PropUID), version: parseVersion(comp), cancelled: strings.EqualFold(value(comp, ical.PropStatus), "CANCELLED")}
	e.free = e.cancelled || isMarkedFree(comp)
	e.rule = value(comp, ical.PropRecurrenceRule)
	blockWindow := func(err error) {
		if e.free {
			return
		}
		r.out.addProblem(Problem{UID: e.uid, Text: err.Error() + "; all the time that it may take counts as busy"})
		r.out.blocked = append(r.out.blocked, r.window)
	}
	if len(comp.Props[ical.PropRecurrenceRule]) > 1 {
		blockWindow(errors.New("it has more than one rule"))
		return
	}
	start, problem, err := r.parseMoment(comp.Props.Get(ical.PropDateTimeStart))
	if err != nil {
		blockWindow(fmt.Errorf("DTSTART: %w", err))
		return
	}
	e.start = start
	if e.length, err = r.parseLength(comp, start); err != nil {
		blockWindow(err)
		return
	}
	if problem != "" && !e.free {
		r.out.addProblem(Problem{UID: e.uid, Text: problem})
		if e.rule != "" || comp.Props.Get(ical.PropRecurrenceDates) != nil {
			blockWindow(errors.New("it recurs in a zone that is not known"))
			return
		}
		busy := e.length.from(start) // in the zone of the owner; zones are at most 26 hours apart
		r.out.blocked = append(r.out.blocked, Interval{busy.Start.Add(-26 * time.Hour), busy.End.Add(26 * time.Hour)})
		return
	}
	if p := comp.Props.Get(ical.PropRecurrenceID); p != nil {
		id, _, err := r.parseMoment(p)
		if err != nil {
			blockWindow(fmt.Errorf("RECURRENCE-ID: %w", err))
			return
		}
		if e.replaced = &id; strings.EqualFold(p.Params.Get(ical.ParamRange), "THISANDFUTURE") {
			blockWindow(errors.New("it changes all later recurrences (RANGE)"))
			return
		}
	}
	if e.excluded, err = r.parseMoments(comp, ical.PropExceptionDates); err == nil {
		e.extra, err = r.parseMoments(comp, ical.PropRecurrenceDates)
	}
	if err != nil {
		blockWindow(err)
		return
	}
	r.out.events = append(r.out.events, e)
}

// isMarkedFree reports whether an event leaves its time free (RFC 5545 §3.8.2.7; Microsoft's property).
func isMarkedFree(comp *ical.Component) bool {
	return strings.EqualFold(value(comp, ical.PropTransparency), "TRANSPARENT") ||
		strings.EqualFold(value(comp, "X-MICROSOFT-CDO-BUSYSTATUS"), "FREE")
}

func parseVersion(comp *ical.Component) version {
	n, err := strconv.Atoi(cmp.Or(value(comp, ical.PropSequence), "0"))
	if err != nil || n < 0 {
		n = -1
	}
	stamp, _ := time.Parse(utcLayout, value(comp, ical.PropDateTimeStamp)) // zero if it is missing or unclear
	modified, _ := time.Parse(utcLayout, value(comp, ical.PropLastModified))
	return version{n, stamp, modified}
}

// parseMoment parses a date or a time. If its zone is unknown, problem is set and the time is in the owner's zone.
func (r *reader) parseMoment(p *ical.Prop) (m moment, problem string, err error) {
	if p == nil {
		return m, "", errors.New("is missing")
	}
	layout, text := localLayout, strings.TrimSpace(p.Value)
	m.zone = zone{r.owner}
	switch len(text) {
	case len(dateLayout):
		layout, m.day = dateLayout, true
	case len(utcLayout):
		layout, m.zone = utcLayout, zone{time.UTC}
	}
	if m.wall, err = time.Parse(layout, text); err != nil {
		return m, "", errNoTime
	}
	if id := p.Params.Get(ical.PropTimezoneID); id != "" && layout == localLayout {
		z, ok := findZone(id)
		if !ok {
			return m, "its time zone is not known", nil
		}
		m.zone = z
	}
	return m, "", nil
}

var errNoTime = errors.New("is neither a date nor a time")

// parseMoments parses every value of a list such as EXDATE. It refuses the periods that RDATE may have.
func (r *reader) parseMoments(comp *ical.Component, name string) (out []moment, err error) {
	for _, p := range comp.Props[name] {
		for text := range strings.SplitSeq(p.Value, ",") {
			prop := p
			prop.Value = text
			m, problem, err := r.parseMoment(&prop)
			if err == nil && problem != "" {
				err = errors.New(problem)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			out = append(out, m)
		}
	}
	return out, nil
}
