// Package terminal has how the commands speak to the user: lines, tables, JSON, progress, and texts of strangers made
// harmless.
package terminal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
)

// How the commands speak: results go to standard output, everything else to standard error behind "agentmesh: ";
// lower case, no full stop, a hint where we know one; no colour, so nothing to switch off. With --json the result
// is one JSON document. Text that a stranger wrote passes [Clean] before it reaches a terminal (THREATS 28).

// UI is the terminal, or what stands in for it.
type UI struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer
}

// Print writes a line of the result.
func (u *UI) Print(format string, args ...any) {
	fmt.Fprintf(u.Out, format+"\n", args...)
}

// Note tells the user something that is not the result.
func (u *UI) Note(format string, args ...any) {
	fmt.Fprintf(u.Err, "agentmesh: "+format+"\n", args...)
}

// Hint says what to do.
func (u *UI) Hint(format string, args ...any) {
	fmt.Fprintf(u.Err, "hint: "+format+"\n", args...)
}

// JSON writes v as the result.
func (u *UI) JSON(v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	_, err = fmt.Fprintf(u.Out, "%s\n", EscapeUnseen(data))
	return err
}

// EscapeUnseen escapes in JSON what a terminal would act on instead of showing it. Such characters can only stand
// inside strings.
func EscapeUnseen(data []byte) []byte {
	out := make([]byte, 0, len(data))
	for _, r := range string(data) {
		if r == '\n' || !Unseen(r) {
			out = utf8.AppendRune(out, r)
			continue
		}
		for _, u := range utf16.Encode([]rune{r}) {
			out = fmt.Appendf(out, `\u%04x`, u)
		}
	}
	return out
}

// Unseen says whether a terminal may act on r: control characters and those that reorder or hide text.
func Unseen(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029'
}

// Pour writes a stranger's file to standard output as it is; to a terminal only what that shows and does not act on.
func (u *UI) Pour(data []byte, instead string) error {
	if IsTerminal(u.Out) && !plain(data) {
		return exit.FailHint(exit.Usage, errors.New("the file is no plain text, and standard output is a terminal"), instead)
	}
	_, err := u.Out.Write(data)
	return err
}

// plain says whether a terminal shows a file as text: UTF-8 without what it may act on, but for tabs and ends of lines.
func plain(data []byte) bool {
	text := strings.ReplaceAll(string(data), "\r\n", "\n")
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && r != '\t' && Unseen(r) })
}

// Table writes rows in aligned columns. Every cell is cleaned.
func (u *UI) Table(rows [][]string) {
	w := tabwriter.NewWriter(u.Out, 0, 8, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = Clean(cell)
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	w.Flush() // an error here is an error of stdout, which the next write meets again
}

// List is a table whose first row are its heads. Where there is nothing below them it says so, on standard error: a
// script then reads nothing.
func (u *UI) List(rows [][]string, none string) {
	if len(rows) < 2 {
		u.Note("%s", none)
		return
	}
	u.Table(rows)
}

// Clean makes a stranger's text harmless for a terminal: control characters, the invisible ones that reorder
// text, and line breaks become a visible mark or a blank, and invalid UTF-8 the replacement character.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case Unseen(r):
			return unicode.ReplacementChar
		}
		return r
	}, strings.ToValidUTF8(s, string(unicode.ReplacementChar)))
}

// CleanJSON indents a stranger's JSON for a terminal. Its line breaks are ours: those inside strings are escaped.
func CleanJSON(data []byte) string {
	var b bytes.Buffer
	if err := json.Indent(&b, data, "", "  "); err != nil {
		return Clean(string(data))
	}
	var out strings.Builder
	for line := range strings.Lines(b.String()) {
		out.WriteString(Clean(strings.TrimSuffix(line, "\n")) + "\n")
	}
	return strings.TrimSuffix(out.String(), "\n")
}

// Short cuts a text for a column.
func Short(s string, n int) string {
	r := []rune(Clean(s))
	if len(r) <= n {
		return string(r)
	}
	return string(r[:n-1]) + "…"
}

// When writes a time for people.
func When(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
