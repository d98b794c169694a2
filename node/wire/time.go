package wire

import "time"

// timeLayout is the format in which we write times (AM-19): UTC, milliseconds, Z.
const timeLayout = "2006-01-02T15:04:05.000Z"

// Now returns the current time as it is stored and shown: in UTC and whole milliseconds (AM-19).
func Now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// FormatTime returns t in the format of AM-19.
func FormatTime(t time.Time) string { return t.UTC().Format(timeLayout) }

// inUTC reports whether t can be written in UTC: an offset may lead out of the years 0 to 9999, beyond which times have
// no JSON.
func inUTC(t time.Time) bool {
	year := t.UTC().Year()
	return year >= 0 && year <= 9999
}

// ParseTime reads an RFC 3339 time as AM-19 accepts it: upper-case T and Z, an offset or Z, up to nine fraction digits,
// no second 60. [time.Parse] alone also accepts one-digit hours, a comma instead of the point, any number of fraction
// digits, offsets up to 24:60, and times that lie outside of the years 0 to 9999 in UTC.
func ParseTime(s string) (time.Time, bool) {
	const date = len("2006-01-02T15:04:05")
	if len(s) <= date || len(s) > date+len(".123456789-07:00") || s[10] != 'T' || s[13] != ':' || s[16] != ':' {
		return time.Time{}, false
	}
	rest := s[date:]
	if rest[0] == '.' {
		n := 1
		for n < len(rest) && '0' <= rest[n] && rest[n] <= '9' {
			n++
		}
		if n == 1 || n > 10 {
			return time.Time{}, false
		}
		rest = rest[n:]
	}
	if rest != "Z" && !validOffset(rest) {
		return time.Time{}, false
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	return t, err == nil && inUTC(t)
}

// validOffset reports whether s is +hh:mm or -hh:mm up to 23:59 (RFC 3339 §5.6).
func validOffset(s string) bool {
	if len(s) != len("-07:00") || s[0] != '+' && s[0] != '-' || s[3] != ':' {
		return false
	}
	for _, i := range [...]int{1, 2, 4, 5} {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s[1:3] <= "23" && s[4:] <= "59"
}
