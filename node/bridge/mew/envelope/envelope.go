package envelope

import (
	"crypto/rand"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/agentmesh/agentmesh/node/wire"
)

// These are the bounds of an envelope (MEW-1). The protocol does not define all of them.
const (
	MaxEnvelope = 1 << 20 // bytes
	MaxDepth    = 64
	MaxValues   = 1 << 17
	MaxKind     = 128  // bytes of a kind
	MaxID       = 256  // bytes of an envelope id
	MaxName     = 128  // bytes of a participant id (MEW-J4)
	MaxList     = 1024 // ids in to or correlation_id
)

// Envelope is a message as it was sent. Its fields have the types of MEW-1 to MEW-6.
type Envelope struct {
	Tree        wire.Value // the whole message
	ID          string
	Time        string
	From        string
	HasFrom     bool
	Kind        string
	Context     string
	To          []string
	Correlation []string
	Payload     wire.Value // an object, or null if absent
}

// Parse reads an envelope (MEW-1 to MEW-6). Together with a refusal, it returns the fields that it has read so far: the
// answer to the sender refers to the refused envelope by its id, if it has one (MEW-9).
func Parse(data []byte) (Envelope, *Refusal) {
	return ParseWithin(data, MaxEnvelope, MaxValues)
}

// ParseWithin works like [Parse], with other bounds on bytes and values.
func ParseWithin(data []byte, size, values int) (Envelope, *Refusal) {
	if len(data) > size {
		return Envelope{}, RefuseTooLarge()
	}
	v, err := wire.ParseForeign(data, MaxDepth, values)
	if err != nil {
		return Envelope{}, RefuseSyntax("the message is not valid JSON: " + err.Error())
	}
	e := Envelope{Tree: v}
	if v.Kind() != wire.Object {
		return e, RefuseShape("a message must be a JSON object")
	}
	if id, ok := v.Get("id"); ok {
		if e.ID, ok = id.Str(); !ok || e.ID == "" || len(e.ID) > MaxID {
			e.ID = ""
			return e, RefuseShape("id must be a string of 1 to " + strconv.Itoa(MaxID) + " bytes")
		}
	}
	refusal := e.read()
	return e, refusal
}

// read fills in every field except ID from the tree.
func (e *Envelope) read() *Refusal {
	if p, ok := e.Tree.Get("protocol"); ok {
		version, ok := p.Str()
		if !ok || version != Protocol {
			return RefuseShape("Invalid protocol version: " + ToPrintable(version, 64))
		}
	}
	e.Kind = e.Tree.GetStr("kind")
	if e.Kind == "" || len(e.Kind) > MaxKind {
		return RefuseShape("kind must be a string of 1 to " + strconv.Itoa(MaxKind) + " bytes")
	}
	var ok bool
	for _, m := range e.Tree.Members() {
		switch m.Key {
		case "ts":
			if e.Time, ok = m.Value.Str(); !ok {
				return RefuseShape("ts must be a string")
			}
		case "from":
			if e.From, ok = m.Value.Str(); !ok {
				return RefuseShape("from must be a string")
			}
			e.HasFrom = true
		case "context":
			if e.Context, ok = m.Value.Str(); !ok && !m.Value.IsNull() {
				return RefuseShape("context must be a string")
			}
		case "to":
			if e.To, ok = ParseIDs(m.Value); !ok {
				return RefuseShape("to must be an array of participant ids")
			}
		case "correlation_id":
			if e.Correlation, ok = ParseIDs(m.Value); !ok {
				return RefuseShape("correlation_id must be an array of message ids")
			}
		case "payload":
			if e.Payload = m.Value; m.Value.Kind() != wire.Object {
				return RefuseShape("payload must be an object")
			}
		}
	}
	return nil
}

// Detach copies the fields that a receiver remembers, so that they do not keep the whole message in memory.
func (e *Envelope) Detach() {
	e.ID, e.From, e.Context = strings.Clone(e.ID), strings.Clone(e.From), strings.Clone(e.Context)
	e.To, e.Payload = CloneTexts(e.To), DetachValue(e.Payload)
}

// CloneTexts returns a copy of list that shares no memory with it.
func CloneTexts(list []string) []string {
	out := slices.Clone(list)
	for i, s := range out {
		out[i] = strings.Clone(s)
	}
	return out
}

// DetachValue returns a copy of v that shares no memory with the text from which v was parsed. It returns null if v has
// more than [MaxValues] values.
func DetachValue(v wire.Value) wire.Value {
	if v.IsNull() {
		return v
	}
	copied, err := wire.ParseForeign(v.JSON(), MaxDepth, MaxValues)
	if err != nil { // more than MaxValues, which a caller of ParseWithin may allow
		return wire.Value{}
	}
	return copied
}

// Depth returns how deeply objects and arrays are nested in v.
func Depth(v wire.Value) int {
	deepest := 0
	for i := range v.Len() {
		deepest = max(deepest, Depth(v.At(i)))
	}
	if k := v.Kind(); k == wire.Object || k == wire.Array {
		deepest++
	}
	return deepest
}

// ParseIDs reads an array of ids. A string is a list of one id, and null is an empty list (MEW-4, MEW-5).
func ParseIDs(v wire.Value) ([]string, bool) {
	if s, ok := v.Str(); ok {
		return []string{s}, s != "" && len(s) <= MaxID
	}
	if v.IsNull() {
		return nil, true
	}
	if v.Kind() != wire.Array || v.Len() > MaxList {
		return nil, false
	}
	out := make([]string, 0, v.Len())
	for elem := range v.Elems() {
		s, ok := elem.Str()
		if !ok || s == "" || len(s) > MaxID {
			return nil, false
		}
		out = append(out, s)
	}
	return out, true
}

// AppendDelivery appends the envelope in the form in which it is delivered: as received, except that missing fields are
// added, "from" is set to e.From, lists have their normal form, and a null context is left out (MEW-3 to MEW-7).
// recipients is e.To with each name replaced by the id under which that participant joined.
func (e *Envelope) AppendDelivery(dst []byte, recipients []string) []byte {
	lead := make([]wire.Member, 0, 4)
	add := func(key, val string) {
		if _, ok := e.Tree.Get(key); !ok {
			lead = append(lead, wire.TextField(key, val))
		}
	}
	add("protocol", Protocol)
	add("id", e.ID)
	add("ts", e.Time)
	add("from", e.From)
	dst = append(dst, '{')
	for _, m := range slices.Concat(lead, e.Tree.Members()) {
		val := m.Value
		switch m.Key {
		case "from":
			val = wire.Text(e.From)
		case "to":
			val = wire.Texts(recipients)
		case "correlation_id":
			val = wire.Texts(e.Correlation)
		case "context":
			if val.IsNull() {
				continue
			}
		}
		if dst[len(dst)-1] != '{' {
			dst = append(dst, ',')
		}
		dst = append(wire.AppendString(dst, m.Key), ':')
		dst = val.AppendJSON(dst)
	}
	return append(dst, '}')
}

// ParseSeconds reads a number of seconds above 0, from a number or a string, and reduces it to at most limit. It
// reports false if v is not a number above 0.
func ParseSeconds(v wire.Value, limit time.Duration) (time.Duration, bool) {
	number, _ := v.Num() // for a string, Num returns its text
	seconds, err := strconv.ParseFloat(number, 64)
	if err != nil || !(seconds > 0) { // NaN > 0 is false
		return 0, false
	}
	return time.Duration(min(seconds, limit.Seconds()) * float64(time.Second)), true
}

// FormatTime formats a time for an envelope.
func FormatTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

// NewID returns an id for a new envelope, or for an envelope that came without one.
func NewID() string { return "env-" + strings.ToLower(rand.Text()) }

// Outgoing is an envelope with a sender, but without an id and a time, which [Outgoing.Append] adds.
type Outgoing struct {
	From, Kind  string
	To          []string
	Correlation []string
	Context     string
	Payload     wire.Value
}

// Append appends the envelope as JSON.
func (o Outgoing) Append(dst []byte, id, ts string) []byte {
	members := []wire.Member{wire.TextField("protocol", Protocol), wire.TextField("id", id), wire.TextField("ts", ts), wire.TextField("from", o.From)}
	if len(o.To) > 0 {
		members = append(members, wire.Field("to", wire.Texts(o.To)))
	}
	members = append(members, wire.TextField("kind", o.Kind))
	if len(o.Correlation) > 0 {
		members = append(members, wire.Field("correlation_id", wire.Texts(o.Correlation)))
	}
	if o.Context != "" {
		members = append(members, wire.TextField("context", o.Context))
	}
	members = append(members, wire.Field("payload", o.Payload))
	return wire.Obj(members...).AppendJSON(dst)
}

// IsName reports whether s can be the id of a participant: printable UTF-8 of at most 128 bytes, without characters
// that have a meaning in a path or a stream frame, and not a name of the gateway (MEW-J4).
func IsName(s string) bool {
	return s != "" && len(s) <= MaxName && utf8.ValidString(s) && s != FromStream && !strings.HasPrefix(s, "system:") &&
		!strings.Contains(s, "..") && !strings.ContainsAny(s, `/\#`) &&
		!strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// ToPrintable returns at most n bytes of s, with unprintable characters replaced by "?".
func ToPrintable(s string, n int) string {
	s = strings.ToValidUTF8(s[:min(len(s), n)], "?")
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}
