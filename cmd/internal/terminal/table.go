package terminal

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/clipperhouse/displaywidth"
	"golang.org/x/term"
)

// columns returns the width of the terminal, or 0 if Out is not a terminal.
func (u *UI) columns() int {
	if f, ok := u.Out.(*os.File); ok && u.Columns == 0 {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil {
			return w
		}
	}
	return u.Columns
}

// paint gives a text a style of ECMA-48, such as "1" for bold, if the output is colored.
func (u *UI) paint(style, text string) string {
	isColored := u.Color == "always" ||
		u.Color != "never" && u.columns() > 0 && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	if !isColored || style == "" {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

// styles are the styles of the states in a table: green, yellow and red.
var styles = map[string]string{
	"completed": "32", "delivered": "32", "answered": "32", "registered": "32", "allowed": "32", "approved": "32", "connected": "32",
	"new": "33", "pending": "33", "held": "33", "queued": "33", "running": "33", "waiting": "33", "interrupted": "33",
	"failed": "31", "rejected": "31", "blocked": "31", "unknown": "31",
}

const (
	columnGap = 2
	minColumn = 6 // a column of a list is not cut below this width
)

// Table writes rows in aligned columns. It cleans every cell.
func (u *UI) Table(rows [][]string) {
	for _, row := range rows {
		for i, cell := range row {
			row[i] = Clean(cell)
		}
	}
	u.align(rows, widthsOf(rows))
}

// List writes a table whose first row has the column heads. If that is the only row, it writes emptyText to standard
// error instead, so that a script reads nothing. On a terminal, ids are short: as long as it takes to tell them apart, or
// with … where commands need the whole id; and the widest columns are cut until the rows fit.
func (u *UI) List(rows [][]string, emptyText string) {
	if len(rows) < 2 {
		u.Note("%s", emptyText)
		return
	}
	for _, row := range rows {
		for i, cell := range row {
			row[i] = Clean(cell)
		}
	}
	widths := widthsOf(rows)
	if max := u.columns(); max > 0 {
		for i := range rows[0] {
			shortenIDs(rows, i)
		}
		widths = widthsOf(rows)
		for total(widths) > max {
			widest := -1
			for i, w := range widths {
				if w > minColumn && (widest < 0 || w > widths[widest]) && !prefixable.MatchString(rows[1][i]) {
					widest = i
				}
			}
			if widest < 0 {
				break
			}
			widths[widest]--
		}
	}
	u.align(rows, widths, "1")
}

func total(widths []int) (sum int) {
	for _, w := range widths {
		sum += w + columnGap
	}
	return sum - columnGap
}

func widthsOf(rows [][]string) []int {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], displaywidth.String(cell))
		}
	}
	return widths
}

// align writes rows in columns of these widths, and cuts longer cells. styles are those of the first rows.
func (u *UI) align(rows [][]string, widths []int, headStyles ...string) {
	for n, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			if displaywidth.String(cell) > widths[i] {
				cell = displaywidth.TruncateString(cell, widths[i], "…")
			}
			style := styles[cell]
			if n < len(headStyles) {
				style = headStyles[n]
			}
			line.WriteString(u.paint(style, cell))
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-displaywidth.String(cell)+columnGap))
			}
		}
		fmt.Fprintln(u, line.String())
	}
}

// shortID is how many characters of an id a list shows at least.
const shortID = 11

// idForm matches an id. Commands accept the beginning of the ids of items, questions and conversations.
var (
	idForm     = regexp.MustCompile(`^[a-z]{1,5}_[0-9a-z]{12,}$`)
	prefixable = regexp.MustCompile(`^(in|ask|conv)_`)
)

// shortenIDs shortens the ids in a column of a list.
func shortenIDs(rows [][]string, column int) {
	var ids []string
	for _, row := range rows[1:] {
		if idForm.MatchString(row[column]) {
			ids = append(ids, row[column])
		}
	}
	for _, row := range rows[1:] {
		id := row[column]
		switch {
		case !idForm.MatchString(id):
		case prefixable.MatchString(id):
			n := shortID
			for n < len(id) && slices.ContainsFunc(ids, func(other string) bool { return other != id && strings.HasPrefix(other, id[:n]) }) {
				n++
			}
			row[column] = id[:n]
		default:
			row[column] = id[:shortID] + "…"
		}
	}
}
