package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"html/template"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// How much of a text of strangers stands open on a page; the rest is behind an expander, and it is all there.
const (
	openRunes = 800
	openLines = 20
	lineRunes = 120
	maxMarks  = 4 // combining marks on one character; more only grow out of the line
)

// pageFuncs are what every template may use. text, line and json are for what strangers wrote: it is escaped, isolated
// from the direction of what surrounds it, and what acts without being seen is shown by its name.
var pageFuncs = template.FuncMap{
	"text": pageText,
	"line": pageLine,
	"json": pageJSON,
	"time": pageTime,
	"left": pageLeft,
	"id":   pageID,
	"hash": pageHash,
	// words is a name of ours as people write it.
	"words": func(v any) string { return strings.ReplaceAll(textOf(v), "_", " ") },
}

// visible writes s as HTML in which nothing acts: markup is escaped, characters that control direction, join or hide
// are shown as their code, and marks that pile up are counted instead of drawn. Line breaks and tabs stay.
func visible(s string) string {
	var b strings.Builder
	marks, dropped := 0, 0
	flush := func() {
		if dropped > 0 {
			fmt.Fprintf(&b, `<span class="ctl">+%d marks</span>`, dropped)
		}
		marks, dropped = 0, 0
	}
	for i, r := range s {
		if unicode.In(r, unicode.Mn, unicode.Me) {
			if marks++; marks > maxMarks {
				dropped++
				continue
			}
			b.WriteRune(r)
			continue
		}
		flush()
		switch {
		case r == '\n' || r == '\t':
			b.WriteRune(r)
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\ufffd"):
			b.WriteString(`<span class="ctl">?</span>`)
		case r == '&' || r == '<' || r == '>' || r == '"' || r == '\'':
			b.WriteString(html.EscapeString(string(r)))
		case r == ' ' || unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, `<span class="ctl">U+%04X</span>`, r)
		}
	}
	flush()
	return b.String()
}

// cut returns the beginning of s: at most runes characters and lines lines. whole says that it is all of it.
func cut(s string, runes, lines int) (head string, whole bool) {
	n := 0
	for i, r := range s {
		if r == '\n' {
			lines--
		}
		if n++; n > runes || lines <= 0 {
			return s[:i], false
		}
	}
	return s, true
}

// pageText is a text of any length: as much as fits a page, and the rest behind an expander.
func pageText(v any) template.HTML { return block(textOf(v), "text") }

// pageJSON is a document as it was sent, with line breaks for reading.
func pageJSON(raw json.RawMessage) template.HTML {
	var out bytes.Buffer
	if json.Indent(&out, raw, "", "  ") != nil {
		return block(string(raw), "text code")
	}
	return block(out.String(), "text code")
}

func block(s, class string) template.HTML {
	head, whole := cut(s, openRunes, openLines)
	if whole {
		return template.HTML(`<div class="` + class + `" dir="auto">` + visible(s) + `</div>`)
	}
	return template.HTML(fmt.Sprintf(
		`<div class="%s" dir="auto">%s<span class="cut">…</span></div><details class="more"><summary>Show all %s</summary><div class="%[1]s whole" dir="auto" tabindex="0" role="region" aria-label="All of the text">%[4]s</div></details>`,
		class, visible(head), extent(s), visible(s)))
}

func extent(s string) string {
	n := utf8.RuneCountInString(s)
	if n == 1 {
		return "1 character"
	}
	digits := fmt.Sprint(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits + " characters"
}

// pageLine is a text in one line: a name, a title. What is too long is cut.
func pageLine(v any) template.HTML {
	s := strings.Join(strings.Fields(textOf(v)), " ")
	head, whole := cut(s, lineRunes, 1)
	if !whole {
		head += "…"
	}
	return template.HTML(`<bdi class="line">` + visible(head) + `</bdi>`)
}

// pageID is an id of ours or of the protocol, which may break anywhere.
func pageID(v any) template.HTML {
	return template.HTML(`<code class="id">` + visible(textOf(v)) + `</code>`)
}

// pageHash is a digest in groups, for comparing by eye.
func pageHash(s string) template.HTML {
	var b strings.Builder
	b.WriteString(`<code class="hash">`)
	for i := 0; i < len(s); i += 8 {
		b.WriteString(`<span>` + visible(s[i:min(i+8, len(s))]) + `</span>`)
	}
	b.WriteString(`</code>`)
	return template.HTML(b.String())
}

func textOf(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	return fmt.Sprint(v)
}

// pageTime is a moment in the zone of this machine.
func pageTime(t time.Time) template.HTML {
	if t.IsZero() {
		return "—"
	}
	l := t.Local()
	form := "2 Jan 2006, 15:04"
	if now := time.Now(); l.Year() == now.Year() {
		form = "2 Jan, 15:04"
	}
	return template.HTML(fmt.Sprintf(`<time datetime="%s" title="%s">%s</time>`,
		t.UTC().Format(time.RFC3339), l.Format("Monday, 2 January 2006, 15:04:05 MST"), l.Format(form)))
}

// pageLeft says in words how long it is until t.
func pageLeft(t time.Time) string {
	d := time.Until(t)
	switch {
	case t.IsZero():
		return "never"
	case d <= 0:
		return "over"
	case d < 2*time.Minute:
		return "in a moment"
	case d < 2*time.Hour:
		return fmt.Sprintf("in %d minutes", int(d.Round(time.Minute).Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("in %d hours", int(d.Round(time.Hour).Hours()))
	}
	return fmt.Sprintf("in %d days", int((d+12*time.Hour).Hours()/24))
}
