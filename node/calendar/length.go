package calendar

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/emersion/go-ical"
)

// until reads the second half of a period: when it ends, or how long it is.
func (r *reader) until(p *ical.Prop, text string, start moment) (span, error) {
	one := *p
	if one.Value = strings.TrimSpace(text); strings.HasPrefix(strings.ToUpper(one.Value), "P") {
		return lasting(one.Value, start)
	}
	end, _, err := r.moment(&one)
	if err != nil {
		return span{}, err
	}
	return between(start, end)
}

// length reads DTEND or DURATION (RFC 5545 §3.6.1).
func (r *reader) length(comp *ical.Component, start moment) (span, error) {
	if p := comp.Props.Get(ical.PropDateTimeEnd); p != nil {
		end, _, err := r.moment(p)
		if err != nil {
			return span{}, fmt.Errorf("DTEND: %w", err)
		}
		return between(start, end)
	}
	if p := comp.Props.Get(ical.PropDuration); p != nil {
		return lasting(p.Value, start)
	}
	if start.day {
		return span{days: 1}, nil
	}
	return span{}, nil
}

// maxLasting is how long an event may be. What is longer does not fit into the arithmetic of time.
const maxLasting = 100 * 366 * 24 * time.Hour

// between is the time from start to end.
func between(start, end moment) (span, error) {
	d := end.instant().Sub(start.instant())
	switch {
	case d < 0:
		return span{}, errors.New("it ends before it starts")
	case d > maxLasting:
		return span{}, errors.New("it takes more than a hundred years")
	case start.day && !end.day:
		return span{}, errors.New("it starts on a day and ends at a time")
	case start.day:
		return span{days: max(1, int(end.wall.Sub(start.wall)/(24*time.Hour)))}, nil
	}
	return span{rest: d}, nil
}

// lasting reads a duration. Its days and weeks are those of the clock on the wall, so that one from nine to nine has 25
// hours when summer time ends.
func lasting(text string, start moment) (span, error) {
	text = strings.ToUpper(strings.TrimSpace(text))
	d, err := duration(text)
	if err != nil || d > maxLasting {
		return span{}, errors.New("DURATION: is no duration")
	}
	if start.day {
		return span{days: max(1, int(d/(24*time.Hour)))}, nil
	}
	var rest time.Duration
	if _, clock, timed := strings.Cut(text, "T"); timed {
		if rest, err = duration("PT" + clock); err != nil {
			return span{}, err
		}
	}
	return span{days: int((d - rest) / (24 * time.Hour)), rest: rest}, nil
}

// duration reads a duration that is none of the past.
func duration(text string) (time.Duration, error) {
	p := ical.Prop{Name: ical.PropDuration, Value: text, Params: ical.Params{}}
	d, err := p.Duration()
	if err != nil || d < 0 {
		return 0, errors.New("is no duration")
	}
	return d, nil
}

// period reads start/end or start/duration, in UTC.
func period(text string) (Interval, error) {
	from, to, _ := strings.Cut(strings.TrimSpace(text), "/")
	start, err := time.Parse(utcLayout, from)
	if err != nil {
		return Interval{}, notATime(err)
	}
	if end, err := time.Parse(utcLayout, to); err == nil && !end.Before(start) {
		return Interval{start, end}, nil
	}
	d, err := duration(to)
	if err != nil {
		return Interval{}, errors.New("is no period")
	}
	return Interval{start, start.Add(d)}, nil
}
