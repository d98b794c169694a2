package thread

import (
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sosodev/duration"

	"github.com/agentmesh/agentmesh/node/wire"
)

// maxSpan is the longest duration. It also bounds how far in the future a time may be for [TimeOrSpan].
const maxSpan = 10 * 366 * 24 * time.Hour

// spanPart matches one part of a duration in the short notation: 45m, 2h, 3d, 1w, 30s.
var spanPart = regexp.MustCompile(`^(\d{1,6})([wdhms])`)

var spanUnits = map[string]time.Duration{
	"w": 7 * 24 * time.Hour, "d": 24 * time.Hour, "h": time.Hour, "m": time.Minute, "s": time.Second,
}

// ParseSpan reads a duration in either notation of MESS-18: "2h15m", "3d", "1w", or ISO 8601 "PT45M", "P1D". A duration
// is positive and at most about ten years.
func ParseSpan(s string) (time.Duration, bool) {
	if len(s) > 64 || s == "" {
		return 0, false
	}
	if s[0] == 'P' {
		return parseISOSpan(s)
	}
	var total time.Duration
	unit := 8 * 24 * time.Hour // longer than every unit; units come in descending order, each at most once
	for s != "" {
		m := spanPart.FindStringSubmatch(s)
		if m == nil || spanUnits[m[2]] >= unit {
			return 0, false
		}
		unit = spanUnits[m[2]]
		n, err := strconv.Atoi(m[1])
		if err != nil || time.Duration(n) > maxSpan/unit { // the product would overflow
			return 0, false
		}
		total += time.Duration(n) * unit
		s = s[len(m[0]):]
		if total > maxSpan {
			return 0, false
		}
	}
	return total, total > 0
}

// isoForm matches the ISO 8601 durations that we accept, with a fraction only of seconds; the library accepts more.
// parseISOSpan also refuses "P" alone and a "T" at the end.
var isoForm = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^P(?:\d{1,6}W|(?:\d{1,4}Y)?(?:\d{1,4}M)?(?:\d{1,6}D)?(?:T(?:\d{1,6}H)?(?:\d{1,8}M)?(?:\d{1,10}(?:\.\d{1,9})?S)?)?)$`)
})

func parseISOSpan(s string) (time.Duration, bool) {
	if !isoForm().MatchString(s) || strings.HasSuffix(s, "T") || s == "P" {
		return 0, false
	}
	d, err := duration.Parse(s)
	if err != nil {
		return 0, false
	}
	hours := d.Years*365*24 + d.Months*365*24/12 + d.Weeks*7*24 + d.Days*24 + d.Hours + d.Minutes/60 + d.Seconds/3600
	if hours > maxSpan.Hours() { // the library adds without a check for overflow
		return 0, false
	}
	span := d.ToTimeDuration()
	return span, span > 0 && span <= maxSpan
}

// TimeOrSpan reads a point in time: RFC 3339 with an offset, or a duration from now.
func TimeOrSpan(s string, now time.Time) (time.Time, bool) {
	if t, ok := wire.ParseTime(s); ok {
		return t.UTC(), t.Sub(now) <= maxSpan
	}
	if d, ok := ParseSpan(s); ok {
		return now.Add(d).UTC(), true
	}
	return time.Time{}, false
}

// time reads an optional RFC 3339 time; the offset is required (MESS-18).
func (f *Fields) time(key string) (time.Time, bool) {
	v, ok := f.Get(key)
	if !ok {
		return time.Time{}, false
	}
	s, _ := v.Str()
	t, ok := wire.ParseTime(s)
	f.Check(ok, key, "must be an RFC 3339 time with an offset")
	return t.UTC(), ok
}

// timeOrSpan reads an optional time, or a duration from now.
func (f *Fields) timeOrSpan(key string, now time.Time) (time.Time, bool) {
	v, ok := f.Get(key)
	if !ok {
		return time.Time{}, false
	}
	s, _ := v.Str()
	t, ok := TimeOrSpan(s, now)
	f.Check(ok, key, "must be an RFC 3339 time with an offset, or a duration such as 2h15m or PT45M")
	return t, ok
}

// timeOrSpanText reads an optional time or duration that is kept as sent.
func (f *Fields) timeOrSpanText(key string) string {
	s := f.Text(key, 64)
	_, isTime := wire.ParseTime(s)
	_, isSpan := ParseSpan(s)
	f.Check(s == "" || isTime || isSpan, key, "must be a time or a duration")
	return s
}

// TimeText returns a time as a JSON value.
func TimeText(t time.Time) wire.Value { return wire.Text(wire.FormatTime(t)) }
