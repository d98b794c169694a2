package mew

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

// The bounds of an envelope (MEW-1). What the protocol does not bound is bounded here.
const (
	MaxEnvelope = 1 << 20
	maxDepth    = 64
	maxValues   = 1 << 17
	maxKind     = 128
	maxID       = 256  // bytes of an envelope id
	maxName     = 128  // bytes of a participant id (MEW-J4)
	maxList     = 1024 // ids in to or correlation_id
)

// envelope is a message as it was sent, its fields checked for shape.
type envelope struct {
	tree        wire.Value
	id          string
	ts          string
	from        string
	hasFrom     bool
	kind        string
	context     string
	to          []string
	correlation []string
	payload     wire.Value // an object, or null where there is none
}

// parseEnvelope reads an envelope (MEW-1 to MEW-6). Where it is refused, the envelope holds what was read so far: its
// id names the trigger of the error (MEW-9).
func parseEnvelope(data []byte) (envelope, *refusal) {
	return parseWithin(data, MaxEnvelope, maxValues)
}

// parseWithin is parseEnvelope with other bounds on bytes and values.
func parseWithin(data []byte, size, values int) (envelope, *refusal) {
	if len(data) > size {
		return envelope{}, refuseTooLarge()
	}
	v, err := wire.ParseForeign(data, maxDepth, values)
	if err != nil {
		return envelope{}, refuseSyntax("the message is not valid JSON: " + err.Error())
	}
	e := envelope{tree: v}
	if v.Kind() != wire.Object {
		return e, refuseShape("a message must be a JSON object")
	}
	if id, ok := v.Get("id"); ok {
		if e.id, ok = id.Str(); !ok || e.id == "" || len(e.id) > maxID {
			e.id = ""
			return e, refuseShape("id must be a string of 1 to " + strconv.Itoa(maxID) + " bytes")
		}
	}
	return e, e.read()
}

func (e *envelope) read() *refusal {
	if p, ok := e.tree.Get("protocol"); ok {
		version, ok := p.Str()
		if !ok || version != Protocol {
			return refuseShape("Invalid protocol version: " + printable(version, 64))
		}
	}
	e.kind = e.tree.GetStr("kind")
	if e.kind == "" || len(e.kind) > maxKind {
		return refuseShape("kind must be a string of 1 to " + strconv.Itoa(maxKind) + " bytes")
	}
	var ok bool
	for _, m := range e.tree.Members() {
		switch m.Key {
		case "ts":
			if e.ts, ok = m.Value.Str(); !ok {
				return refuseShape("ts must be a string")
			}
		case "from":
			if e.from, ok = m.Value.Str(); !ok {
				return refuseShape("from must be a string")
			}
			e.hasFrom = true
		case "context":
			if e.context, ok = m.Value.Str(); !ok && !m.Value.IsNull() {
				return refuseShape("context must be a string")
			}
		case "to":
			if e.to, ok = idList(m.Value); !ok {
				return refuseShape("to must be an array of participant ids")
			}
		case "correlation_id":
			if e.correlation, ok = idList(m.Value); !ok {
				return refuseShape("correlation_id must be an array of message ids")
			}
		case "payload":
			if e.payload = m.Value; m.Value.Kind() != wire.Object {
				return refuseShape("payload must be an object")
			}
		}
	}
	return nil
}

// own cuts what may be remembered of an envelope off from the text that it stood in, which is up to [MaxEnvelope] long
// and would be kept whole. The tree stays as it is.
func (e *envelope) own() {
	e.id, e.from, e.context = strings.Clone(e.id), strings.Clone(e.from), strings.Clone(e.context)
	e.to, e.payload = cloned(e.to), owned(e.payload)
}

func cloned(list []string) []string {
	out := slices.Clone(list)
	for i, s := range out {
		out[i] = strings.Clone(s)
	}
	return out
}

// owned is a copy of a value that shares no memory with what it was parsed from.
func owned(v wire.Value) wire.Value {
	if v.IsNull() {
		return v
	}
	copied, err := wire.ParseForeign(v.JSON(), maxDepth, maxValues)
	if err != nil { // it was parsed within the same bounds
		return wire.Value{}
	}
	return copied
}

// idList reads an array of ids; a string is a list of one, null is none (MEW-4, MEW-5).
func idList(v wire.Value) ([]string, bool) {
	if s, ok := v.Str(); ok {
		return []string{s}, s != "" && len(s) <= maxID
	}
	if v.IsNull() {
		return nil, true
	}
	if v.Kind() != wire.Array || v.Len() > maxList {
		return nil, false
	}
	out := make([]string, 0, v.Len())
	for elem := range v.Elems() {
		s, ok := elem.Str()
		if !ok || s == "" || len(s) > maxID {
			return nil, false
		}
		out = append(out, s)
	}
	return out, true
}

// appendStamped appends the envelope as it is delivered: as received, but for fields that are filled in or made
// normal (MEW-3 to MEW-7). to is e.to with names resolved.
func (e *envelope) appendStamped(dst []byte, to []string) []byte {
	lead := make([]wire.Member, 0, 4)
	add := func(key, val string) {
		if _, ok := e.tree.Get(key); !ok {
			lead = append(lead, wire.TextField(key, val))
		}
	}
	add("protocol", Protocol)
	add("id", e.id)
	add("ts", e.ts)
	add("from", e.from)
	dst = append(dst, '{')
	for _, m := range slices.Concat(lead, e.tree.Members()) {
		val := m.Value
		switch m.Key {
		case "from":
			val = wire.Text(e.from)
		case "to":
			val = wire.Texts(to)
		case "correlation_id":
			val = wire.Texts(e.correlation)
		case "context":
			if val.IsNull() {
				continue
			}
		}
		if len(dst) > 0 && dst[len(dst)-1] != '{' {
			dst = append(dst, ',')
		}
		dst = append(wire.AppendQuoted(dst, m.Key), ':')
		dst = val.AppendJSON(dst)
	}
	return append(dst, '}')
}

// stamp formats a time as envelopes carry it.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

// newID returns an id for an envelope of ours, or for one that came without.
func newID() string { return "env-" + strings.ToLower(rand.Text()) }

// outgoing is an envelope that the gateway makes.
type outgoing struct {
	from, kind  string
	to          []string
	correlation []string
	payload     wire.Value
}

func (o outgoing) append(dst []byte, id, ts string) []byte {
	members := []wire.Member{
		{Key: "protocol", Value: wire.Text(Protocol)},
		{Key: "id", Value: wire.Text(id)},
		{Key: "ts", Value: wire.Text(ts)},
		{Key: "from", Value: wire.Text(o.from)},
	}
	if len(o.to) > 0 {
		members = append(members, wire.Field("to", wire.Texts(o.to)))
	}
	members = append(members, wire.TextField("kind", o.kind))
	if len(o.correlation) > 0 {
		members = append(members, wire.Field("correlation_id", wire.Texts(o.correlation)))
	}
	members = append(members, wire.Field("payload", o.payload))
	return wire.Obj(members...).AppendJSON(dst)
}

// validName says whether s can be a participant's id: printable UTF-8 of at most 128 bytes, without what means
// something in a path or a stream frame (MEW-J4).
func validName(s string) bool {
	return s != "" && len(s) <= maxName && utf8.ValidString(s) && s != fromStream && !strings.HasPrefix(s, "system:") &&
		!strings.Contains(s, "..") && !strings.ContainsAny(s, `/\#`) &&
		!strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// printable returns at most n bytes of s with what is not printable replaced.
func printable(s string, n int) string {
	s = strings.ToValidUTF8(s[:min(len(s), n)], "?")
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}
