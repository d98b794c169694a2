package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// How the commands speak: results go to standard output, everything else to standard error behind "agentmesh: ";
// lower case, no full stop, a hint where we know one; no colour, so nothing to switch off. With --json the result
// is one JSON document. Text that a stranger wrote passes [clean] before it reaches a terminal (THREATS 28).

// ui is the terminal, or what stands in for it.
type ui struct {
	in  io.Reader
	out io.Writer
	err io.Writer
}

// print writes a line of the result.
func (u *ui) print(format string, args ...any) {
	fmt.Fprintf(u.out, format+"\n", args...)
}

// note tells the user something that is not the result.
func (u *ui) note(format string, args ...any) {
	fmt.Fprintf(u.err, "agentmesh: "+format+"\n", args...)
}

// hint says what to do.
func (u *ui) hint(format string, args ...any) {
	fmt.Fprintf(u.err, "hint: "+format+"\n", args...)
}

// json writes v as the result.
func (u *ui) json(v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	_, err = fmt.Fprintf(u.out, "%s\n", escapeUnseen(data))
	return err
}

// escapeUnseen escapes in JSON what a terminal would act on instead of showing it. Such characters can only stand
// inside strings.
func escapeUnseen(data []byte) []byte {
	out := make([]byte, 0, len(data))
	for _, r := range string(data) {
		if r == '\n' || !unseen(r) {
			out = utf8.AppendRune(out, r)
			continue
		}
		for _, u := range utf16.Encode([]rune{r}) {
			out = fmt.Appendf(out, `\u%04x`, u)
		}
	}
	return out
}

// unseen says whether a terminal may act on r: control characters and those that reorder or hide text.
func unseen(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029'
}

// pour writes a stranger's file to standard output as it is; to a terminal only what that shows and does not act on.
func (u *ui) pour(data []byte, instead string) error {
	if isTerminal(u.out) && !plain(data) {
		return failHint(exitUsage, errors.New("the file is no plain text, and standard output is a terminal"), instead)
	}
	_, err := u.out.Write(data)
	return err
}

// plain says whether a terminal shows a file as text: UTF-8 without what it may act on, but for tabs and ends of lines.
func plain(data []byte) bool {
	text := strings.ReplaceAll(string(data), "\r\n", "\n")
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && r != '\t' && unseen(r) })
}

// table writes rows in aligned columns. Every cell is cleaned.
func (u *ui) table(rows [][]string) {
	w := tabwriter.NewWriter(u.out, 0, 8, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = clean(cell)
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	w.Flush() // an error here is an error of stdout, which the next write meets again
}

// list is a table whose first row are its heads. Where there is nothing below them it says so, on standard error: a
// script then reads nothing.
func (u *ui) list(rows [][]string, none string) {
	if len(rows) < 2 {
		u.note("%s", none)
		return
	}
	u.table(rows)
}

// clean makes a stranger's text harmless for a terminal: control characters, the invisible ones that reorder
// text, and line breaks become a visible mark or a blank, and invalid UTF-8 the replacement character.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case unseen(r):
			return unicode.ReplacementChar
		}
		return r
	}, strings.ToValidUTF8(s, string(unicode.ReplacementChar)))
}

// cleanJSON indents a stranger's JSON for a terminal. Its line breaks are ours: those inside strings are escaped.
func cleanJSON(data []byte) string {
	var b bytes.Buffer
	if err := json.Indent(&b, data, "", "  "); err != nil {
		return clean(string(data))
	}
	var out strings.Builder
	for line := range strings.Lines(b.String()) {
		out.WriteString(clean(strings.TrimSuffix(line, "\n")) + "\n")
	}
	return strings.TrimSuffix(out.String(), "\n")
}

// short cuts a text for a column.
func short(s string, n int) string {
	r := []rune(clean(s))
	if len(r) <= n {
		return string(r)
	}
	return string(r[:n-1]) + "…"
}

// when writes a time for people.
func when(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04:05")
}
