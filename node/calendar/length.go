package calendar

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/emersion/go-ical"
)

// parseLength parses DTEND or DURATION (RFC 5545 §3.6.1).
func (r *reader) parseLength(comp *ical.Component, start moment) (span, error) {
	if p := comp.Props.Get(ical.PropDateTimeEnd); p != nil {
		end, err := r.parseMoment(p)
		if err != nil {
			return span{}, fmt.Errorf("DTEND: %w", err)
		}
		return spanBetween(start, end)
	}
	if p := comp.Props.Get(ical.PropDuration); p != nil {
		return parseDuration(p.Value, start)
	}
	if start.day {
		return span{days: 1}, nil
	}
	return span{}, nil
}

// maxSpan bounds the length of an event, far below the 292 years that a time.Duration can hold.
const maxSpan = 100 * 366 * 24 * time.Hour

var errTooLong = errors.New("it takes more than a hundred years")

// spanBetween returns the span from start to end. If start is a whole day, end must be one too.
func spanBetween(start, end moment) (span, error) {
	d := end.instant().Sub(start.instant())
	if end.zone.blur > 0 && end.zone != start.zone {
		d += end.zone.blur
	}
	switch {
	case d < 0:
		return span{}, errors.New("it ends before it starts")
	case d > maxSpan:
		return span{}, errTooLong
	case start.day && !end.day:
		return span{}, errors.New("it starts on a day and ends at a time")
	case start.day:
		return span{days: max(1, int(end.wall.Sub(start.wall)/(24*time.Hour)))}, nil
	}
	return span{rest: d}, nil
}

// parseDuration parses the duration of an event that begins at start. Days and weeks are counted by the wall clock, so
// a day has 25 hours if daylight saving time ends in it.
func parseDuration(text string, start moment) (span, error) {
	text = strings.ToUpper(strings.TrimSpace(text))
	d, err := parsePositive(text)
	if err != nil || d > maxSpan {
		return span{}, errors.New("DURATION: is not a duration")
	}
	if start.day {
		return span{days: max(1, int(d/(24*time.Hour)))}, nil
	}
	var rest time.Duration
	if _, clock, hasTime := strings.Cut(text, "T"); hasTime {
		if rest, err = parsePositive("PT" + clock); err != nil {
			return span{}, err
		}
	}
	return span{days: int((d - rest) / (24 * time.Hour)), rest: rest}, nil
}

// parsePositive parses a duration, which must not be negative.
func parsePositive(text string) (time.Duration, error) {
	p := ical.Prop{Name: ical.PropDuration, Value: text, Params: ical.Params{}}
	d, err := p.Duration()
	if err != nil || d < 0 {
		return 0, errors.New("is not a duration")
	}
	return d, nil
}
