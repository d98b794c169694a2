package owner

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/node/zone"
)

// Said is what a payload says, as people and models read it. Everything in it except [Said.Deed] of a known action is the
// sender's text, and untrusted.
type Said struct {
	Action  string
	Text    string   // of a message, a question, an answer or a reason; a subject is its first line
	Meeting *Meeting // of a proposal
	Facts   []Fact   // everything else
}

// Fact is a value in a payload, or in a list of ours. Label is its path, such as "event › title", or our word for it.
type Fact struct{ Label, Value string }

// Meeting is a proposed event.
type Meeting struct {
	Title, Duration, Place string
	Times                  []string
}

const (
	maxFacts     = 60
	maxFactDepth = 6
)

// Say reads a payload. A payload that is not a JSON object, such as a message of another network, is its text. With isExact,
// times, lengths and names of members stay as they were sent, for a program; a person reads them in the owner's zone.
func Say(payload json.RawMessage, isExact bool) Said {
	v, err := wire.ParseObject(payload)
	if err != nil {
		return Said{Text: string(payload)}
	}
	s := Said{Action: v.GetStr("action")}
	rest := v.Without("action", "in_reply_to")
	if meta, ok := rest.Get("metadata"); ok && !isExact { // a page shows by its place what a message belongs to
		if rest, meta = rest.Without("metadata"), meta.Without("in_reply_to", "agreed_in", "resend_of"); meta.Len() > 0 {
			rest = rest.With("metadata", meta)
		}
	}
	message, _ := v.Get("message")
	if body := message.GetStr("body"); body != "" {
		s.Text = strings.TrimPrefix(message.GetStr("subject")+"\n"+body, "\n")
		rest = rest.Without("message")
		if more := message.Without("body", "subject", "priority", "reply_requested", "format"); more.Len() > 0 {
			rest = rest.With("message", more)
		}
	}
	for _, member := range []string{"question", "answer", "info", "reason"} {
		if text := rest.GetStr(member); text != "" && s.Text == "" {
			s.Text, rest = text, rest.Without(member)
		}
	}
	if event, ok := rest.Get("event"); ok {
		if s.Meeting = readMeeting(event, isExact); s.Meeting != nil {
			rest = rest.Without("event")
			if more := event.Without("title", "proposed_times", "duration", "location"); more.Len() > 0 {
				rest = rest.With("event", more)
			}
		}
	}
	s.Facts = FactsOf(rest, isExact)
	return s
}

// readMeeting returns the meeting that an event describes, or nil if the event has no times, more than ten of them, or
// one that is not a string.
func readMeeting(event wire.Value, isExact bool) *Meeting {
	const maxTimes = 10
	offered, _ := event.Get("proposed_times")
	m := Meeting{Title: event.GetStr("title"), Duration: event.GetStr("duration"), Place: event.GetStr("location"), Times: event.GetTexts("proposed_times")}
	if n := len(m.Times); n == 0 || n > maxTimes || n < offered.Len() { // the event then is a list of facts
		return nil
	}
	if !isExact {
		m.Duration = Length(m.Duration)
		for i, text := range m.Times {
			m.Times[i] = LocalTime(text)
		}
	}
	return &m
}

// FactsOf turns a payload into facts such as "event › title: Coffee". It cuts a large payload.
// isExact is as in [Say].
func FactsOf(v wire.Value, isExact bool) []Fact {
	var list []Fact
	var walk func(path string, v wire.Value, depth int)
	walk = func(path string, v wire.Value, depth int) {
		if len(list) >= maxFacts {
			return
		}
		switch {
		case v.Kind() == wire.Object && v.Len() > 0 && depth < maxFactDepth:
			members := slices.Clone(v.Members())
			slices.SortStableFunc(members, func(a, b wire.Member) int { return cmp.Compare(keyRank(b.Key), keyRank(a.Key)) })
			for _, m := range members {
				walk(strings.TrimPrefix(path+" › "+m.Key, " › "), m.Value, depth+1)
			}
		case v.Kind() == wire.Array && v.Len() > 0 && depth < maxFactDepth:
			for i := range v.Len() {
				walk(path+" "+strconv.Itoa(i+1), v.At(i), depth+1)
			}
		default:
			text, ok := v.Str()
			if !ok {
				text = string(v.JSON())
			}
			if !isExact {
				path, text = strings.ReplaceAll(path, "_", " "), LocalTime(text)
			}
			list = append(list, Fact{path, text})
		}
	}
	if v.Len() > 0 {
		walk("", v, 0)
	}
	return list
}

// Facts returns what was agreed, for the owner.
func (a Agreement) Facts() []Fact {
	facts := []Fact{{"When", LocalTime(a.Time)}, {"How long", Length(a.Duration)}, {"Where", a.Location}, {"Price", a.Price}, {"Details", a.Description}}
	for _, condition := range a.Conditions {
		facts = append(facts, Fact{"Condition", condition})
	}
	return slices.DeleteFunc(facts, func(f Fact) bool { return f.Value == "" })
}

// keyRank returns the rank of a member. Members with a higher rank are shown first: a name comes before a description.
func keyRank(key string) int {
	switch key {
	case "title", "name":
		return 2
	case "subject", "description":
		return 1
	}
	return 0
}

// deeds describes, for an intent and action, what the sender of the message did.
var deeds = map[string]string{
	"mesh.message deliver": "wrote", "mesh.request_info ask": "asked", "mesh.request_info answer": "answered",
	"mesh.schedule propose": "proposed a meeting", "mesh.schedule counter": "proposed another time", "mesh.schedule accept": "accepted",
	"mesh.schedule decline": "declined", "mesh.schedule cancel": "cancelled", "mesh.negotiate propose": "made an offer",
	"mesh.negotiate counter": "made another offer", "mesh.negotiate accept": "accepted", "mesh.negotiate reject": "rejected",
	"mesh.negotiate withdraw": "withdrew the offer", "mesh.handoff request_human": "asked for a person",
}

// Deed describes in plain words what the sender of the message did. For an unknown message it returns the intent and
// the action.
func (s Said) Deed(intent wire.Intent) string {
	if text := deeds[string(intent)+" "+s.Action]; text != "" {
		return text
	}
	switch {
	case s.Action == wire.ActionReceived:
		return "confirmed receipt"
	case s.Action == wire.ActionPending:
		return "will answer when the owner has decided"
	case s.Action == wire.ActionClose:
		return "closed the conversation"
	}
	return strings.Trim(string(intent)+" · "+s.Action, " ·")
}

// IsReport reports whether the message only says that something happened: that another message arrived or waits, that an
// offer is accepted or not, or that the matter ended. It has no words for a person.
func (s Said) IsReport() bool {
	switch s.Action {
	case wire.ActionPending:
		return true // its words are those of a program
	case wire.ActionReceived:
		return s.Text == "" && len(s.Facts) == 0
	case wire.ActionClose, "accept", "decline", "reject", "cancel", "withdraw":
		return s.Text == ""
	}
	return false
}

// Lines returns everything that the sender wrote.
func (s Said) Lines() []string {
	var lines []string
	if m := s.Meeting; m != nil {
		lines = append(lines, m.Title, strings.Join(m.Times, " or "), m.Duration, m.Place)
	}
	lines = append(lines, s.Text)
	for _, f := range s.Facts {
		lines = append(lines, f.Label+": "+f.Value)
	}
	return slices.DeleteFunc(lines, func(line string) bool { return line == "" })
}

// Words returns the lines as one text, with only the last part of each path.
func (s Said) Words() string {
	lines := s.Lines()
	for i, f := range s.Facts {
		path := strings.Split(f.Label, " › ")
		lines[len(lines)-len(s.Facts)+i] = path[len(path)-1] + ": " + f.Value
	}
	return strings.Join(lines, " · ")
}

// Sentence returns what the sender did and wrote: "asked: where do we meet?".
func (s Said) Sentence(intent wire.Intent) string {
	return strings.TrimSuffix(s.Deed(intent)+": "+s.Words(), ": ")
}

// SayMessage is [Say] for a message of a transcript, whose payload may be opened, with its intent; fallback is the intent
// of a message of another network.
func SayMessage(e Entry, fallback wire.Intent) (Said, wire.Intent) {
	var m struct {
		Intent  wire.Intent     `json:"intent"`
		Payload json.RawMessage `json:"payload"`
	}
	if json.Unmarshal(e.Message, &m) != nil || len(m.Payload) == 0 {
		m.Payload = e.Message
	}
	if e.Opened != nil {
		m.Payload = e.Opened.JSON()
	}
	return Say(m.Payload, false), cmp.Or(m.Intent, fallback)
}

// LocalTime formats a time in the zone of the owner. It returns other text unchanged, and
// also a time without a zone, because its instant is unknown.
func LocalTime(text string) string {
	at, ok := wire.ParseInstant(text)
	if !ok {
		return text
	}
	return zone.In(at).Format("Mon 2 Jan 2006, 15:04 MST")
}

// Length formats a duration such as "1h30m" in words. It returns other text unchanged.
func Length(text string) string {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d%time.Minute != 0 {
		return text
	}
	hours, minutes := int(d/time.Hour), int(d%time.Hour/time.Minute)
	var parts []string
	for _, p := range []struct {
		n    int
		unit string
	}{{hours, "hour"}, {minutes, "minute"}} {
		switch {
		case p.n == 1:
			parts = append(parts, "1 "+p.unit)
		case p.n > 1:
			parts = append(parts, strconv.Itoa(p.n)+" "+p.unit+"s")
		}
	}
	return strings.Join(parts, " ")
}
