package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	template "github.com/DataDog/datadog-agent/pkg/template/html"

	"github.com/agentmesh/agentmesh/node/zone"
)

// How much of a stranger's text a page shows at once. The rest is behind an expander.
const (
	openRunes = 800
	openLines = 20
	lineRunes = 120
	maxMarks  = 4 // combining marks on one character; more would overflow the line
)

// pageFuncs are the functions for all templates. text, line and json are for strangers' text: they escape it, isolate
// its direction from the surrounding text, and show invisible control characters by their codes.
var pageFuncs = template.FuncMap{
	"text": pageText,
	"line": pageLine,
	"json": pageJSON,
	"time": pageTime,
	"left": pageTimeLeft,
	"set":  func(t time.Time) bool { return !t.IsZero() },
	"id":   pageID,
	"hash": pageHash,
	"face": pageFace,
	// key returns the keyboard shortcut of the navigation entry at an index.
	"key": func(i int) int { return i + 1 },
	// words writes an internal name in plain words.
	"words": func(v any) string { return strings.ReplaceAll(textOf(v), "_", " ") },
}

// escapeText returns s as inert HTML. It escapes markup, and shows the codes of characters that control the
// direction of text, or join or hide other characters. Combining marks that pile up are counted instead of drawn.
// Line breaks and tabs stay.
func escapeText(s string) string {
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
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\ufffd"): // a byte that is not valid UTF-8
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

// cutText returns the beginning of s, with at most maxRunes and maxLines. complete reports whether head is all of s.
func cutText(s string, maxRunes, maxLines int) (head string, complete bool) {
	runes, lines := 0, 1
	for i, r := range s {
		if r == '\n' {
			lines++
		}
		if runes++; runes > maxRunes || lines > maxLines {
			return s[:i], false
		}
	}
	return s, true
}

// pageText shows a text of any length. The part that does not fit is behind an expander.
func pageText(v any) template.HTML { return block(textOf(v), "text") }

// pageJSON shows a JSON document, indented. It shows other text unchanged.
func pageJSON(raw json.RawMessage) template.HTML {
	var out bytes.Buffer
	if json.Indent(&out, raw, "", "  ") != nil {
		return block(string(raw), "text code")
	}
	return block(out.String(), "text code")
}

// block shows s in an element of a CSS class: all of it, or its beginning with an expander for the whole text. A CR LF
// is a line break, not a hidden character: browsers and Windows write it.
func block(s, class string) template.HTML {
	s = strings.ReplaceAll(s, "\r\n", "\n")
	head, complete := cutText(s, openRunes, openLines)
	if complete {
		return template.HTML(`<div class="` + class + `" dir="auto">` + escapeText(s) + `</div>`)
	}
	return template.HTML(fmt.Sprintf(
		`<div class="%s" dir="auto">%s<span class="cut">…</span></div><details class="more"><summary>Show all %s</summary><div class="%[1]s whole" dir="auto" tabindex="0" role="region" aria-label="All of the text">%[4]s</div></details>`,
		class, escapeText(head), formatLength(s), escapeText(s)))
}

func formatLength(s string) string {
	n := utf8.RuneCountInString(s)
	if n == 1 {
		return "1 character"
	}
	return FormatNumber(int64(n)) + " characters"
}

// FormatNumber formats a number with a comma between groups of three digits.
func FormatNumber(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// pageLine shows a name or title in one line and cuts it if it is too long.
func pageLine(v any) template.HTML {
	s := strings.Join(strings.Fields(textOf(v)), " ")
	head, complete := cutText(s, lineRunes, 1)
	if !complete {
		head += "…"
	}
	return template.HTML(`<bdi class="line">` + escapeText(head) + `</bdi>`)
}

func pageID(v any) template.HTML {
	return template.HTML(`<code class="id">` + escapeText(textOf(v)) + `</code>`)
}

// pageHash shows a digest in groups, so that people can compare it.
func pageHash(s string) template.HTML {
	var b strings.Builder
	b.WriteString(`<code class="hash">`)
	for i := 0; i < len(s); i += 8 {
		b.WriteString(`<span>` + escapeText(s[i:min(i+8, len(s))]) + `</span>`)
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

// pageTime shows a time relative to now or in the zone of the owner. The exact time is its title.
func pageTime(t time.Time) template.HTML {
	if t.IsZero() {
		return "—"
	}
	l := zone.In(t)
	return template.HTML(fmt.Sprintf(`<time datetime="%s" title="%s">%s</time>`,
		t.UTC().Format(time.RFC3339), l.Format("Monday, 2 January 2006, 15:04:05 MST"), formatTime(l, time.Now())))
}

// formatTime writes how long ago t was if that is less than twelve hours, otherwise the day and the time.
func formatTime(t, now time.Time) string {
	ago := now.Sub(t)
	switch {
	case ago >= 0 && ago < time.Minute:
		return "just now"
	case ago >= 0 && ago < time.Hour:
		return fmt.Sprintf("%d min ago", int(ago.Minutes()))
	case ago >= 0 && ago < 12*time.Hour:
		return fmt.Sprintf("%d h ago", int(ago.Hours()))
	case t.Year() == now.Year():
		return t.Format("2 Jan, 15:04")
	}
	return t.Format("2 Jan 2006, 15:04")
}

// pageTimeLeft writes in words how long it is until t.
func pageTimeLeft(t time.Time) string {
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
