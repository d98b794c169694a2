package manual

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/alecthomas/kong"
)

// roff writes a manual page with the macros of man(7). It escapes texts, but not requests and labels.
type roff struct{ strings.Builder }

func (r *roff) request(line string) { r.WriteString(line + "\n") }

// title begins a page. The date is the date of the commit, so that builds of one commit make the same page.
func (r *roff) title(name string, b build) {
	date := ""
	if t, err := time.Parse(time.RFC3339, b.date); err == nil {
		date = t.UTC().Format(time.DateOnly)
	}
	r.request(fmt.Sprintf(`.TH "%s" "1" "%s" "agentmesh %s" "AgentMesh"`, escape(strings.ToUpper(name)), escape(date), escape(b.version)))
	r.request(".nh\n.ad l")
}

func (r *roff) section(name string)    { r.request(".SH " + name) }
func (r *roff) subsection(name string) { r.request(`.SS "` + escape(name) + `"`) }
func (r *roff) text(s string)          { r.request(roffLine(s)) }
func (r *roff) paragraph(s string)     { r.request(".PP\n" + roffLine(s)) }

func (r *roff) item(label, meaning string) {
	r.request(".TP\n" + label + "\n" + roffLine(meaning))
}

func (r *roff) synopsis(leaf *kong.Node) {
	r.request(`\fB` + escape(CommandPath(leaf)) + `\fR`)
	if len(leaf.Flags) > 0 {
		r.request("[flags]")
	}
	for _, p := range leaf.Positional {
		text := `\fI` + escape(strings.ToUpper(p.Name)) + `\fR`
		if p.IsCumulative() {
			text += " ..."
		}
		if !p.Required {
			text = "[" + text + "]"
		}
		r.request(text)
	}
}

func (r *roff) flags(flags []*kong.Flag) {
	for _, f := range flags {
		if f.Name == "help" || f.Hidden {
			continue
		}
		label := `\fB\-\-` + escape(f.Name) + `\fR`
		if !f.IsBool() {
			label += `=\fI` + escape(Placeholder(f)) + `\fR`
		}
		text := expandEnum(f.Help, f.Enum)
		if f.HasDefault && !f.IsBool() && f.Default != "" {
			text += " Default: " + f.Default + "."
		}
		if len(f.Envs) > 0 {
			text += " Environment: " + strings.Join(f.Envs, ", ") + "."
		}
		r.item(label, text)
	}
}

// Placeholder returns the word that stands for the value of a flag, such as FILE.
func Placeholder(f *kong.Flag) string {
	if f.HasDefault && f.PlaceHolder == "" { // kong would show the default value
		return strings.ToUpper(f.Name)
	}
	return strings.ToUpper(strings.Trim(f.FormatPlaceHolder(), `"`))
}

func (r *roff) examples(list []Example) {
	if len(list) == 0 {
		return
	}
	r.section("EXAMPLES")
	for _, e := range list {
		r.paragraph(e.About)
		r.request(".PP\n.RS 4\n.nf\n" + roffLine(e.Command) + "\n.fi\n.RE")
	}
}

// expandEnum replaces ${enum} in a help text with the permitted values. Kong does this only when it prints a help text.
func expandEnum(help, enum string) string {
	return strings.ReplaceAll(help, "${enum}", strings.ReplaceAll(enum, ",", ", "))
}

// roffLine escapes a line of text. A line that begins with a dot would otherwise be a request.
func roffLine(s string) string {
	s = escape(s)
	if strings.HasPrefix(s, ".") {
		s = `\&` + s
	}
	return s
}

// escape escapes the characters that roff would change: backslashes, quotes, carets, tildes, characters outside ASCII,
// and hyphens, which must stay hyphens when the user copies them.
func escape(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\\':
			b.WriteString(`\e`)
		case r == '-':
			b.WriteString(`\-`)
		case r == '\'':
			b.WriteString(`\(aq`)
		case r == '"':
			b.WriteString(`\(dq`)
		case r == '`':
			b.WriteString(`\(ga`)
		case r == '^':
			b.WriteString(`\(ha`)
		case r == '~':
			b.WriteString(`\(ti`)
		case r == '…':
			b.WriteString(`...`)
		case r >= utf8.RuneSelf:
			fmt.Fprintf(&b, `\[u%04X]`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
