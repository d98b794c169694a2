package conversations

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Verdict is what an accept means for the proposal that it answers (AM-88).
type Verdict string

const (
	Agreed    Verdict = "agreed"    // the accept names only what was offered
	Counter   Verdict = "counter"   // the accept names something that was not offered, so it counts as a new proposal
	Ambiguous Verdict = "ambiguous" // several times were offered, and the accept selects none of them
)

// Terms are what a proposal offers or an agreement contains. The texts come from a peer, so they are untrusted. They
// are cut to a bounded length.
type Terms struct {
	Title       string   `json:"title,omitempty"`
	Times       []string `json:"times,omitempty"` // in the form in which the sender wrote them
	Duration    string   `json:"duration,omitempty"`
	Location    string   `json:"location,omitempty"`
	Description string   `json:"description,omitempty"`
	Price       string   `json:"price,omitempty"`
	Conditions  []string `json:"conditions,omitempty"`
}

// JudgeAccept returns what an accept means for proposal p, and the resulting terms: the agreed ones for Agreed, those
// of the new proposal for Counter, and none for Ambiguous. Agreed terms have at most one time of p. Their location is
// that of the accept if p left the location open.
func JudgeAccept(p Proposal, accept wire.Value) (Verdict, Terms) {
	named := readTerms(p.Intent, accept)
	selected := named.selected
	if len(selected) == 0 && len(named.Times) == 1 {
		selected = named.Times // the only time that the accept names is its choice
	}
	isOffered := func(at string) bool { return hasTime(p.Times, at) }
	allOffered := !slices.ContainsFunc(slices.Concat(named.selected, named.Times), func(at string) bool { return !isOffered(at) })
	switch {
	case allOffered && len(selected) == 0 && len(p.Times) > 1:
		return Ambiguous, Terms{}
	case !allOffered || len(selected) > 1 || named.contradicts || !p.Terms.admits(named.Terms):
		return Counter, p.Terms.changedBy(named)
	}
	agreed := p.Terms
	if len(selected) == 1 {
		i := slices.IndexFunc(p.Times, func(at string) bool { return sameTime(at, selected[0]) })
		agreed.Times = p.Times[i : i+1 : i+1]
	}
	if named.Location != "" {
		agreed.Location = named.Location
	}
	return Agreed, agreed
}

// admits reports whether the terms that an accept names agree with t. It does not compare times.
func (t Terms) admits(named Terms) bool {
	same := func(offered, named string) bool { return named == "" || named == offered }
	return same(t.Title, named.Title) && same(t.Duration, named.Duration) &&
		(isOpenPlace(t.Location) || same(t.Location, named.Location)) &&
		same(t.Description, named.Description) && same(t.Price, named.Price) &&
		(len(named.Conditions) == 0 || slices.Equal(t.Conditions, named.Conditions))
}

// isOpenPlace reports whether the location of a proposal leaves the place open.
func isOpenPlace(location string) bool {
	return location == "" || slices.ContainsFunc([]string{"TBD", "TBA", "to be decided"}, func(open string) bool {
		return strings.EqualFold(location, open)
	})
}

// changedBy returns the terms of a counter-proposal to t: the terms that n names, and otherwise those of t.
func (t Terms) changedBy(n namedTerms) Terms {
	for _, text := range []struct {
		own   *string
		named string
	}{
		{&t.Title, n.Title}, {&t.Duration, n.Duration}, {&t.Location, n.Location}, {&t.Description, n.Description}, {&t.Price, n.Price},
	} {
		if text.named != "" {
			*text.own = text.named
		}
	}
	if len(n.Conditions) > 0 {
		t.Conditions = n.Conditions
	}
	if times := n.times(); len(times) > 0 {
		t.Times = times
	}
	return t
}

// namedTerms are the terms that a payload names.
type namedTerms struct {
	Terms
	selected    []string // the distinct values of selected_time
	contradicts bool     // payload and event name different values for the same term
}

// times returns the times that a proposal offers: the selected times if there are any, otherwise all.
func (n namedTerms) times() []string {
	if len(n.selected) > 0 {
		return n.selected
	}
	return n.Times
}

// readTerms reads the terms of a payload of mesh.schedule or mesh.negotiate. A member that is absent, null, "", [] or
// {} names nothing. A member of the wrong type counts as its JSON text, which differs from every offered value.
func readTerms(intent wire.Intent, payload wire.Value) (n namedTerms) {
	if intent == wire.Negotiate {
		terms, _ := payload.Get("terms")
		n.read(&n.Description, terms, "description", maxDescription)
		n.read(&n.Price, terms, "price", maxText)
		if list, ok := terms.Get("conditions"); ok {
			n.Conditions = cutList(textsOf(list, maxText), maxConditions)
		}
		if terms.Kind() != wire.Object { // any other value counts as the description
			n.read(&n.Description, payload, "terms", maxDescription)
		}
		return n
	}
	event, _ := payload.Get("event")
	if event.Kind() != wire.Object { // any other value counts as the title
		n.read(&n.Title, payload, "event", maxText)
	}
	for _, from := range []wire.Value{event, payload} {
		n.read(&n.Title, from, "title", maxText)
		n.read(&n.Duration, from, "duration", maxText)
		n.read(&n.Location, from, "location", maxText)
		if list, ok := from.Get("proposed_times"); ok {
			n.Times = addTimes(n.Times, textsOf(list, maxTime))
		}
		if at, ok := from.Get("selected_time"); ok {
			n.selected = addTimes(n.selected, textsOf(at, maxTime))
		}
	}
	return n
}

// read copies the text of a member of source to *term, a field of n. If *term already has another text, read sets
// n.contradicts instead.
func (n *namedTerms) read(term *string, source wire.Value, member string, limit int) {
	v, _ := source.Get(member)
	switch text := cut(textOf(v), limit); {
	case *term == "":
		*term = text
	case text != "" && text != *term:
		n.contradicts = true
	}
}

// textOf returns the text of v, its JSON if it is not a string, or "" if it names nothing.
func textOf(v wire.Value) string {
	text, isText := v.Str()
	switch {
	case isText:
		return text
	case v.IsNull(), (v.Kind() == wire.Object || v.Kind() == wire.Array) && v.Len() == 0:
		return ""
	}
	return string(v.JSON())
}

// textsOf returns the texts of a list, each cut to limit characters. Any other value counts as a list of one.
func textsOf(list wire.Value, limit int) (texts []string) {
	elems := slices.Values([]wire.Value{list})
	if list.Kind() == wire.Array {
		elems = list.Elems()
	}
	for v := range elems {
		if text := textOf(v); text != "" {
			texts = append(texts, cut(text, limit))
		}
	}
	return texts
}

// addTimes appends the times that the list does not contain yet. Beyond maxTimes, the last element becomes a hash, so
// that different lists stay different.
func addTimes(list, more []string) []string {
	for i, at := range more {
		switch {
		case hasTime(list, at):
		case len(list) < maxTimes:
			list = append(list, at)
		default:
			return cutList(append(list, more[i:]...), maxTimes)
		}
	}
	return list
}

func hasTime(list []string, at string) bool {
	return slices.ContainsFunc(list, func(other string) bool { return sameTime(other, at) })
}

// sameTime compares two times as instants if both have an offset, otherwise byte for byte.
func sameTime(a, b string) bool {
	ta, okA := wire.ParseInstant(a)
	tb, okB := wire.ParseInstant(b)
	if okA && okB {
		return ta.Equal(tb)
	}
	return a == b
}

// The bounds on a stored proposal: characters of a text, and elements of a list.
const (
	maxText        = 256
	maxDescription = 1024
	maxTime        = 64
	maxTimes       = 50
	maxConditions  = 16
)

// cut shortens a text to limit characters. A shortened text ends in a hash of the whole text, so that different texts
// stay different.
func cut(s string, limit int) string {
	runes := []rune(s)
	if len(runes) <= limit {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	suffix := fmt.Sprintf("…%x", sum[:12])
	return string(runes[:limit-len([]rune(suffix))]) + suffix
}

// cutList shortens a list to limit elements, of which the last becomes a hash of the whole list.
func cutList(list []string, limit int) []string {
	if len(list) <= limit {
		return list
	}
	sum := sha256.Sum256([]byte(strings.Join(list, "\x00")))
	return append(list[:limit-1:limit-1], fmt.Sprintf("…%x", sum[:12]))
}

// isCut reports whether terms may have been shortened, so that a message cannot repeat them. A shortened list of times
// does not matter: a clarification names only the first time.
func (t Terms) isCut() bool {
	atLimit := func(s string, limit int) bool { return len([]rune(s)) == limit && strings.Contains(s, "…") }
	return atLimit(t.Title, maxText) || atLimit(t.Duration, maxText) || atLimit(t.Location, maxText) ||
		atLimit(t.Description, maxDescription) || atLimit(t.Price, maxText) || len(t.Conditions) == maxConditions ||
		slices.ContainsFunc(t.Conditions, func(s string) bool { return atLimit(s, maxText) }) ||
		slices.ContainsFunc(t.Times, func(s string) bool { return atLimit(s, maxTime) })
}

// isAfter reports whether a message may have been written after moment. It returns false if moment is zero. written is
// the sender's timestamp. The sender may have rounded it down, so isAfter adds a second to whole seconds and a
// millisecond to whole milliseconds.
func isAfter(written, moment time.Time) bool {
	switch {
	case written.Nanosecond() == 0:
		written = written.Add(time.Second)
	case written.Nanosecond()%int(time.Millisecond) == 0:
		written = written.Add(time.Millisecond)
	}
	return !moment.IsZero() && written.After(moment)
}
