package yamltree

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Append appends v as YAML that every known parser reads as the same value (MESS-50): block style without comments,
// tags, anchors or aliases. It quotes every text that a parser could read as something else, such as a timestamp.
// [Parse] reads an equal value.
func Append(dst []byte, v wire.Value) []byte { return writer{}.append(dst, v) }

// AppendEscaped is [Append], but quotes every text with a character that [Limits.Marks] counts, and escapes the
// character. Use it for long texts, which could exceed that limit.
func AppendEscaped(dst []byte, v wire.Value) []byte { return writer{escaped: true}.append(dst, v) }

// marks are the characters that [Limits.Marks] may count in a text of one line.
const marks = "[]{},-?!&*"

type writer struct {
	escaped bool // escape the marks in texts
}

func (w writer) append(dst []byte, v wire.Value) []byte {
	if isInline(v) {
		return append(w.appendScalar(dst, v, 0), '\n')
	}
	return w.appendNode(dst, v, 0)
}

// isInline reports whether v is written on the line of its key.
func isInline(v wire.Value) bool {
	return v.Kind() != wire.Object && v.Kind() != wire.Array || v.Len() == 0
}

// appendNode appends a list or a map in block style.
func (w writer) appendNode(dst []byte, v wire.Value, indent int) []byte {
	if v.Kind() == wire.Array {
		for e := range v.Elems() {
			dst = append(pad(dst, indent), '-')
			dst = w.appendItem(dst, e, indent+2)
		}
		return dst
	}
	for _, m := range v.Members() {
		dst = w.appendMember(pad(dst, indent), m, indent)
	}
	return dst
}

// appendItem appends a list item after its dash. A map or an inner list begins on the same line.
func (w writer) appendItem(dst []byte, v wire.Value, indent int) []byte {
	dst = append(dst, ' ')
	switch {
	case isInline(v):
		return append(w.appendScalar(dst, v, indent), '\n')
	case v.Kind() == wire.Array:
		inner := w.appendNode(nil, v, indent)
		return append(dst, inner[indent:]...) // without the indentation of its first line
	}
	for i, m := range v.Members() {
		if i > 0 {
			dst = pad(dst, indent)
		}
		dst = w.appendMember(dst, m, indent)
	}
	return dst
}

func (w writer) appendMember(dst []byte, m wire.Member, indent int) []byte {
	dst = append(w.appendText(dst, m.Key), ':')
	if isInline(m.Value) {
		return append(w.appendScalar(append(dst, ' '), m.Value, indent+2), '\n')
	}
	if m.Value.Kind() == wire.Array {
		return w.appendNode(append(dst, '\n'), m.Value, indent)
	}
	return w.appendNode(append(dst, '\n'), m.Value, indent+2)
}

func pad(dst []byte, n int) []byte { return append(dst, strings.Repeat(" ", n)...) }

// appendScalar appends a scalar or an empty container. It indents a literal block by indent, but at least by 2.
func (w writer) appendScalar(dst []byte, v wire.Value, indent int) []byte {
	text, ok := v.Str()
	if !ok {
		return v.AppendJSON(dst) // null, booleans, numbers, {} and []
	}
	if w.escaped || !isLiteral(text) {
		return w.appendText(dst, text)
	}
	body, ended := strings.CutSuffix(text, "\n")
	dst = append(dst, '|')
	if !ended {
		dst = append(dst, '-')
	}
	for line := range strings.SplitSeq(body, "\n") {
		dst = append(dst, '\n')
		if line != "" {
			dst = append(pad(dst, max(indent, 2)), line...)
		}
	}
	return dst
}

// isLiteral reports whether a text is written as a literal block: it has several lines that every parser reads
// unchanged.
func isLiteral(s string) bool {
	body := strings.TrimSuffix(s, "\n")
	if !strings.Contains(body, "\n") || strings.HasSuffix(body, "\n") || strings.HasPrefix(s, " ") || strings.HasPrefix(s, "\n") {
		return false
	}
	for line := range strings.SplitSeq(body, "\n") {
		if strings.TrimSpace(line) == "" && line != "" || strings.HasSuffix(line, " ") {
			return false
		}
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return r != '\n' && needsEscape(r) })
}

// needsEscape reports whether r must be escaped: control and format characters, and line breaks of YAML.
func needsEscape(r rune) bool {
	return !unicode.IsPrint(r) || unicode.Is(unicode.Cf, r) || r == '\u0085' || r == '\u2028' || r == '\u2029' || r == '\ufeff'
}

// appendText appends a key or a text on one line. It quotes texts that are not plain.
func (w writer) appendText(dst []byte, s string) []byte {
	if isPlain(s) && !(w.escaped && strings.ContainsAny(s, marks)) {
		return append(dst, s...)
	}
	quoted := wire.AppendString(nil, s)
	for _, r := range string(quoted) {
		switch {
		case needsEscape(r) && r > 0x7e:
			dst = append(dst, escape(r)...)
		case w.escaped && strings.ContainsRune(marks, r):
			dst = fmt.Appendf(dst, `\x%02x`, r)
		default:
			dst = append(dst, string(r)...)
		}
	}
	return dst
}

func escape(r rune) string {
	const hex = "0123456789abcdef"
	width, mark := 4, `\u`
	if r > 0xffff {
		width, mark = 8, `\U`
	}
	out := make([]byte, width)
	for i := width - 1; i >= 0; i-- {
		out[i] = hex[r&15]
		r >>= 4
	}
	return mark + string(out)
}

// isPlain reports whether YAML 1.1 and 1.2 read s without quotes as the same text: it begins with a letter, contains
// only letters, digits and harmless marks, and does not stand for another value.
func isPlain(s string) bool {
	if s == "" || len(s) > 200 || !isLetter(s[0]) || s[len(s)-1] == ' ' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !isLetter(c) && (c < '0' || c > '9') && !strings.ContainsRune(" _-./(),;", rune(c)) {
			return false
		}
	}
	switch strings.ToLower(s) {
	case "y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf":
		return false
	}
	return true
}

func isLetter(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }
