package client

import (
	"strings"
	"unicode"
)

// printable makes a stranger's text safe to show in one line of a terminal or log: what is not a graphic character
// (controls, direction and format marks, line ends) becomes a question mark, and what is over max runes is cut.
func printable(s string, max int) string {
	var b strings.Builder
	n := 0
	for _, r := range s {
		if n++; n > max {
			b.WriteString("…")
			break
		}
		if !unicode.IsPrint(r) {
			r = '?'
		}
		b.WriteRune(r)
	}
	return b.String()
}
