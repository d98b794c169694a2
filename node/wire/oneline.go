package wire

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// OneLine makes a stranger's text safe to show in one line anywhere, also in a log or on a terminal: at most most
// characters, without control, format and bidirectional characters, and with white space folded (THREATS 28).
func OneLine(s string, most int) string {
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
		if n += len(gap) + 1; n > most {
			b.WriteRune('…')
			break
		}
		b.WriteString(gap)
		b.WriteRune(r)
		gap = ""
	}
	return b.String()
}
