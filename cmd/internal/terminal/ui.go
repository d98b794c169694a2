// Package terminal writes the output of the commands: lines, tables, JSON and progress. It makes the texts of strangers
// harmless before they reach a terminal.
package terminal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/clipperhouse/displaywidth"
)

// UI is the terminal, or a test's stand-in for it. Results go to Out, notes and hints to Err, in lower case and without
// a full stop. With --json the result is one JSON document, or one per line if it is a stream. Text that a stranger wrote must pass [Clean] before it reaches a terminal (THREATS 28).
type UI struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer
	// DataFlag completes "agentmesh" in hints, such as "--data me " if the user named that data directory.
	DataFlag string
	// Interrupted is closed when the user interrupts the command.
	Interrupted <-chan struct{}

	// Color is "always" or "never"; anything else colors a terminal, unless NO_COLOR is set.
	Color string
	// Columns is the width of the terminal; 0: that of Out, if Out is a terminal.
	Columns int

	writeErr error // the first error of writing to Out
}

// maxInput bounds the size of a file or of standard input. The JSON parser has stricter limits.
const maxInput = 16 << 20

// ReadInput returns the content of a file, or of standard input for "-".
func (u *UI) ReadInput(name string) ([]byte, error) {
	in, err := u.OpenInput(name)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	var data []byte
	err = u.AwaitInput(func() (err error) { data, err = io.ReadAll(io.LimitReader(in, maxInput+1)); return err })
	if err != nil {
		return nil, exit.Fail(exit.Input, err)
	}
	if len(data) > maxInput {
		return nil, exit.Fail(exit.Input, fmt.Errorf("%s is larger than %d bytes", name, maxInput))
	}
	return data, nil
}

// OpenInput opens a file, or standard input for "-". The caller closes it.
func (u *UI) OpenInput(name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(u.In), nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, exit.Fail(exit.Input, err)
	}
	return f, nil
}

// errInterrupted is the error of [UI.AwaitInput] after the user has interrupted the command.
var errInterrupted = errors.New("interrupted")

// AwaitInput calls read, which may wait for the user. If the user interrupts the command, AwaitInput returns an error,
// and read goes on until the process ends.
func (u *UI) AwaitInput(read func() error) error {
	done := make(chan error, 1)
	go func() { done <- read() }()
	select {
	case err := <-done:
		return err
	case <-u.Interrupted:
		return errInterrupted
	}
}

// Print writes a line of the result. Like all methods that write to Out, it leaves an error to [UI.WriteError].
func (u *UI) Print(format string, args ...any) { fmt.Fprintf(u, format+"\n", args...) }

// Write writes a part of the result as it is.
func (u *UI) Write(part []byte) (int, error) {
	n, err := u.Out.Write(part)
	if err != nil && u.writeErr == nil {
		u.writeErr = exit.Fail(exit.Unavailable, fmt.Errorf("write the result: %w", err))
	}
	return n, u.writeErr
}

// WriteError returns an error if a part of the result could not be written, for example because the disk is full.
func (u *UI) WriteError() error { return u.writeErr }

// Note writes a line that is not part of the result, perhaps with a hint at its end.
func (u *UI) Note(format string, args ...any) {
	fmt.Fprintf(u.Err, "agentmesh: %s\n", u.Command(fmt.Sprintf(format, args...)))
}

// Hint writes a line about what to do next.
func (u *UI) Hint(format string, args ...any) {
	fmt.Fprintf(u.Err, "hint: %s\n", u.Command(fmt.Sprintf(format, args...)))
}

// commandInHint matches the beginning of a command in a hint: at the start of the hint, or after a colon or semicolon.
// It also matches "is" and "must" after the name, so that [UI.Command] leaves such a text alone: "agentmesh is missing"
// is about the member agentmesh of a message.
var commandInHint = regexp.MustCompile(`(^|[:;] )agentmesh (is |must )?`)

// Command completes the commands in a hint, so that they use the same data directory as this command.
func (u *UI) Command(hint string) string {
	return commandInHint.ReplaceAllStringFunc(hint, func(s string) string {
		if !strings.HasSuffix(s, "agentmesh ") {
			return s
		}
		return s + u.DataFlag
	})
}

// DataFlag returns the flag that names the data directory dir, followed by a space. It returns "" if dir is empty or
// is the one in AGENTMESH_DATA, because commands then need no flag.
func DataFlag(dir string) string {
	if dir == "" || dir == os.Getenv("AGENTMESH_DATA") {
		return ""
	}
	return "--data " + QuoteShell(dir) + " "
}

// QuoteShell quotes an argument for a shell if it needs that.
func QuoteShell(arg string) string {
	if strings.Trim(arg, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./") == "" && arg != "" {
		return arg
	}
	return "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
}

// JSON writes v as the result.
func (u *UI) JSON(v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	u.Print("%s", EscapeUnsafe(data))
	return u.WriteError()
}

// EscapeUnsafe escapes the characters in JSON that a terminal would act on instead of showing them. data must have no
// tabs or carriage returns between its tokens, because the escapes are valid only inside strings.
func EscapeUnsafe(data []byte) []byte {
	out := make([]byte, 0, len(data))
	for _, r := range string(data) {
		if r == '\n' || !IsUnsafe(r) {
			out = utf8.AppendRune(out, r)
			continue
		}
		for _, u := range utf16.Encode([]rune{r}) {
			out = fmt.Appendf(out, `\u%04x`, u)
		}
	}
	return out
}

// IsUnsafe reports whether a terminal may act on r: control characters, and characters that reorder or hide text.
func IsUnsafe(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029'
}

// WriteFile writes a stranger's file to standard output unchanged. If standard output is a terminal, it refuses a file
// that is not plain text, with the given hint.
func (u *UI) WriteFile(data []byte, hint string) error {
	if IsTerminal(u.Out) && !isPlainText(data) {
		return exit.FailHint(exit.Usage, errors.New("the file is not plain text, and standard output is a terminal"), hint)
	}
	_, err := u.Write(data)
	return err
}

// isPlainText reports whether a file is UTF-8 without unsafe characters, except tabs and line ends.
func isPlainText(data []byte) bool {
	text := strings.ReplaceAll(string(data), "\r\n", "\n")
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && r != '\t' && IsUnsafe(r) })
}

// NoteMore tells the user, if more is true, that the list that was shown ends at its limit.
func (u *UI) NoteMore(more bool) {
	if more {
		u.Note("there is more: list more with --limit")
	}
}

// Clean makes a stranger's text harmless for a terminal. Line breaks and tabs become blanks. Other unsafe characters
// and invalid UTF-8 become the replacement character.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case IsUnsafe(r):
			return unicode.ReplacementChar
		}
		return r
	}, strings.ToValidUTF8(s, string(unicode.ReplacementChar)))
}

// CleanJSON indents a stranger's JSON for a terminal. Line breaks inside strings are escaped in JSON.
func CleanJSON(data []byte) string {
	var b bytes.Buffer
	if err := json.Indent(&b, []byte(wire.UnescapeHTML(data)), "", "  "); err != nil {
		return Clean(string(data))
	}
	var out strings.Builder
	for line := range strings.Lines(b.String()) {
		out.WriteString(Clean(strings.TrimSuffix(line, "\n")) + "\n")
	}
	return strings.TrimSuffix(out.String(), "\n")
}

// Truncate cleans a text and cuts it to n columns of a terminal.
func Truncate(s string, n int) string { return displaywidth.TruncateString(Clean(s), n, "…") }

// FormatTime returns a time as text for people, or "-" for the zero time.
func FormatTime(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

// IsTerminal reports whether file, an input or an output, is a terminal.
func IsTerminal(file any) bool {
	f, ok := file.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
