package wire

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// OneLine makes a stranger's text safe to show in one line anywhere, also in a log or on a terminal (THREATS 28). The
// result has no control, format or bidirectional characters, and a single space for each run of white space. A text of
// more than limit characters is cut, and "…" is added.
func OneLine(s string, limit int) string {
	var b strings.Builder
	n, gap := 0, ""
	for _, r := range s {
		switch {
		case unicode.IsSpace(r):
			if n > 0 {
				gap = " "
			}
			continue
		case r == utf8.RuneError || !unicode.IsPrint(r):
			continue
		}
		if n += len(gap) + 1; n > limit {
			b.WriteRune('…')
			break
		}
		b.WriteString(gap)
		b.WriteRune(r)
		gap = ""
	}
	return b.String()
}
