package calendar

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
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
	future    bool     // it also changes all later recurrences (RANGE=THISANDFUTURE)
	rules     []string // RRULE, in upper case
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
	return Interval{start.instant(), end.instant().Add(s.rest + start.zone.blur)}
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
	owner    *time.Location // zone of days, and of times without a zone if the calendar names none
	window   Interval
	floating zone            // of times without a zone
	zones    map[string]zone // described by the calendar (VTIMEZONE)
	out      calendarData
}

// parse parses one file. owner is the zone of times without a zone. An error means that the file, or a part of it,
// cannot be read. An error in a single event is a Problem, and all the time that the event may take counts as busy.
func parse(text []byte, owner *time.Location, window Interval) (calendarData, error) {
	text = bytes.TrimPrefix(text, []byte("\ufeff")) // Windows programs write a byte order mark
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("<")) {
		return calendarData{}, errWebPage
	}
	if len(text) > maxFile {
		return calendarData{}, fmt.Errorf("larger than %d MiB", maxFile>>20)
	}
	for line := range bytes.Lines(text) {
		if len(line) > maxLine {
			return calendarData{}, fmt.Errorf("a line is longer than %d KiB", maxLine>>10)
		}
	}
	r := reader{owner: owner, window: window}
	err := r.read(string(text))
	return r.out, err
}

// unfold joins the continuations of content lines.
var unfold = strings.NewReplacer("\r\n ", "", "\r\n\t", "", "\n ", "", "\n\t", "")

// stands lists the components that stand beside each other in a calendar, never inside each other.
var stands = []string{ical.CompEvent, ical.CompToDo, ical.CompJournal, ical.CompFreeBusy, ical.CompTimezone}

// read reads the calendars of a file. An item that is malformed is a problem, and what can be read of it counts. We do
// not use go-ical's decoder, because it gives up everything for one such item.
func (r *reader) read(text string) error {
	var open []*ical.Component // the components that did not end yet; the first is the calendar
	// end closes all components from open[i] on.
	end := func(i int) {
		for ; len(open) > max(i, 1); open = open[:len(open)-1] {
			parent := open[len(open)-2]
			parent.Children = append(parent.Children, open[len(open)-1])
		}
	}
	for line := range strings.Lines(unfold.Replace(text)) {
		line = strings.TrimRight(line, "\r\n")
		if strings.TrimSpace(line) == "" {
			continue
		}
		p, err := parseLine(line)
		name := strings.ToUpper(strings.TrimSpace(p.Value))
		switch {
		case err != nil:
			return err
		case p.Name == "BEGIN" && len(open) == 0 && name == ical.CompCalendar:
			open = append(open, &ical.Component{Name: name, Props: ical.Props{}})
		case len(open) == 0:
			return errors.New("it is not a calendar")
		case p.Name == "BEGIN" && name == ical.CompCalendar:
			return errCut
		case p.Name == "BEGIN":
			if slices.Contains(stands, name) && len(open) > 1 {
				r.addMalformed(open[1], "has no end")
				end(1)
			}
			if len(open) == maxNested {
				return fmt.Errorf("components nested more than %d deep", maxNested)
			}
			open = append(open, &ical.Component{Name: name, Props: ical.Props{}})
		case p.Name == "END":
			i := len(open) - 1
			if open[i].Name != name {
				found := slices.IndexFunc(open, func(c *ical.Component) bool { return c.Name == name })
				if found < 0 && i == 0 {
					return errors.New("it ends a component that did not begin")
				}
				r.addMalformed(open[min(i, 1)], "does not end as it begins")
				if found >= 0 {
					i = found
				} else if name == ical.CompEvent || name == ical.CompFreeBusy {
					open[i].Name = name
				}
			}
			if end(i); i == 0 {
				if err := r.addCalendar(open[0]); err != nil {
					return err
				}
				open = nil
			}
		default:
			props := open[len(open)-1].Props
			props[p.Name] = append(props[p.Name], p)
		}
	}
	if len(open) == 0 {
		return nil
	}
	if err := r.addCalendar(open[0]); err != nil { // what ended before the cut
		return err
	}
	return errCut
}

var errCut = errors.New("it ends inside a component")

func (r *reader) addMalformed(comp *ical.Component, what string) {
	r.out.addProblem(Problem{UID: value(comp, ical.PropUID), Text: fmt.Sprintf("a component %.20q %s", comp.Name, what)})
}

var (
	lineName   = regexp.MustCompile(`^[A-Za-z0-9-]*`)
	lineHead   = regexp.MustCompile(`^[^;:]+(?:;[^=:;"]+=(?:"[^"]*"|[^";:,]*)(?:,(?:"[^"]*"|[^";:,]*))*)*:`)
	lineParams = regexp.MustCompile(`;([^=:;"]+)=("[^"]*"|[^";:,]*)(?:,(?:"[^"]*"|[^";:,]*))*`)
)

// parseLine parses a content line. A malformed line has an empty value: who reads the property finds it unclear.
func parseLine(line string) (ical.Prop, error) {
	p := ical.Prop{Params: ical.Params{}}
	head := ""
	if i := strings.IndexAny(line, ";:"); i > 0 && line[i] == ':' {
		head = line[:i+1]
	} else {
		head = lineHead.FindString(line)
	}
	if head == "" {
		p.Name = strings.ToUpper(lineName.FindString(line))
		return p, nil
	}
	if len(head) > maxHead {
		return p, fmt.Errorf("the parameters of a line are longer than %d KiB", maxHead>>10)
	}
	name, _, _ := strings.Cut(head[:len(head)-1], ";")
	p.Name, p.Value = strings.ToUpper(strings.TrimSpace(name)), line[len(head):]
	for _, m := range lineParams.FindAllStringSubmatch(head, -1) {
		p.Params.Set(strings.ToUpper(m[1]), strings.Trim(m[2], `"`))
	}
	return p, nil
}

// addCalendar adds the events of one VCALENDAR.
func (r *reader) addCalendar(cal *ical.Component) error {
	r.zones, r.floating = make(map[string]zone), zone{loc: r.owner}
	for _, child := range cal.Children {
		if child.Name == ical.CompTimezone {
			r.zones[value(child, ical.PropTimezoneID)] = describedZone(child)
		}
	}
	// Programs publish calendars with times that are meant in the calendar's own zone, which RFC 5545 does not know.
	if id := value(cal, "X-WR-TIMEZONE"); id != "" {
		r.floating = r.findZone(id)
	}
	for _, child := range cal.Children {
		switch child.Name {
		case ical.CompEvent:
			if len(r.out.events) >= maxEvents {
				return fmt.Errorf("more than %d events", maxEvents)
			}
			r.addEvent(child)
		case ical.CompFreeBusy:
			for _, p := range child.Props["FREEBUSY"] {
				if !strings.EqualFold(p.Params.Get("FBTYPE"), "FREE") {
					r.addPeriods(p)
				}
			}
		}
	}
	return nil
}

// addPeriods adds the periods of a list, such as FREEBUSY, as busy times.
func (r *reader) addPeriods(p ical.Prop) {
	for text := range strings.SplitSeq(p.Value, ",") {
		from, to, _ := strings.Cut(text, "/")
		var length span
		start, err := r.parseMoment(&ical.Prop{Value: from, Params: p.Params})
		if err == nil {
			if strings.HasPrefix(strings.ToUpper(strings.TrimSpace(to)), "P") {
				length, err = parseDuration(to, start)
			} else if end, endErr := r.parseMoment(&ical.Prop{Value: to, Params: p.Params}); endErr == nil {
				length, err = spanBetween(start, end)
			} else {
				err = endErr
			}
		}
		if err != nil {
			r.block("", fmt.Errorf("%s: a period is not readable", p.Name))
			return
		}
		r.out.blocked = append(r.out.blocked, length.from(start))
	}
}

// block counts all the time as busy, because nothing is known about an event.
func (r *reader) block(uid string, err error) {
	r.out.addProblem(Problem{UID: uid, Text: err.Error() + "; all the time that it may take counts as busy"})
	r.out.blocked = append(r.out.blocked, r.window)
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
	note := func(err error) {
		if err != nil && !e.free {
			r.out.addProblem(Problem{UID: e.uid, Text: err.Error()})
		}
	}
	block := func(err error) {
		if !e.free {
			r.block(e.uid, err)
		}
	}
	if len(comp.Props[ical.PropRecurrenceRule]) > maxRules {
		block(fmt.Errorf("it has more than %d rules", maxRules))
		return
	}
	for _, p := range comp.Props[ical.PropRecurrenceRule] {
		e.rules = append(e.rules, strings.ToUpper(strings.TrimSpace(p.Value)))
	}
	var err error
	if e.start, err = r.parseMoment(comp.Props.Get(ical.PropDateTimeStart)); err != nil {
		block(fmt.Errorf("DTSTART: %w", err))
		return
	}
	if e.start.zone.blur > 0 {
		note(fmt.Errorf("its time zone is not known exactly; it may begin up to %v later, and this time counts as busy", e.start.zone.blur))
	}
	if e.length, err = r.parseLength(comp, e.start); errors.Is(err, errTooLong) {
		block(err)
		return
	} else if err != nil {
		note(fmt.Errorf("%w; two days count as busy", err))
		e.length = span{days: 2}
	}
	if p := comp.Props.Get(ical.PropRecurrenceID); p != nil {
		id, err := r.parseMoment(p)
		if e.replaced = &id; err != nil {
			note(fmt.Errorf("RECURRENCE-ID: %w; it replaces nothing", err))
			e.uid, e.replaced = "", nil
		} else if e.future = strings.EqualFold(p.Params.Get(ical.ParamRange), "THISANDFUTURE"); e.future {
			note(errors.New("it changes all later recurrences (RANGE); their old times count as busy, too"))
		}
	}
	e.excluded, err = r.parseMoments(comp.Props[ical.PropExceptionDates])
	note(err)
	for _, p := range comp.Props[ical.PropRecurrenceDates] {
		if strings.Contains(p.Value, "/") {
			if !e.free {
				r.addPeriods(p)
			}
			continue
		}
		extra, err := r.parseMoments([]ical.Prop{p})
		if err != nil {
			block(err)
			return
		}
		e.extra = append(e.extra, extra...)
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

// parseMoment parses a date or a time.
func (r *reader) parseMoment(p *ical.Prop) (m moment, err error) {
	if p == nil {
		return m, errors.New("is missing")
	}
	layout, text := localLayout, strings.TrimSpace(p.Value)
	m.zone = r.floating
	switch len(text) {
	case len(dateLayout):
		layout, m.day, m.zone = dateLayout, true, zone{loc: r.owner}
	case len(utcLayout):
		layout, m.zone = utcLayout, zone{loc: time.UTC}
	}
	if m.wall, err = time.Parse(layout, text); err != nil {
		return m, errors.New("is neither a date nor a time")
	}
	if id := p.Params.Get(ical.PropTimezoneID); id != "" && layout == localLayout {
		m.zone = r.findZone(id)
	}
	return m, nil
}

// parseMoments parses every value of a list such as EXDATE. It returns those that it can read, and the last error.
func (r *reader) parseMoments(props []ical.Prop) (out []moment, err error) {
	for _, p := range props {
		for text := range strings.SplitSeq(p.Value, ",") {
			m, mErr := r.parseMoment(&ical.Prop{Value: text, Params: p.Params})
			if mErr != nil {
				err = fmt.Errorf("%s: %w", p.Name, mErr)
				continue
			}
			out = append(out, m)
		}
	}
	return out, err
}
