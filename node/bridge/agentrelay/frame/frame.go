// Package frame is the codec of Agent Relay Chat (ARC): what a client may send to a relay, what the relay delivers,
// and the bounds of both.
//
// The package stores nothing and sends nothing. A relay starts with [Parse] and [Frame.Stamp], a client with [Request].
//
// The rules cited as AR-… are those of docs/conformance/agentrelay.txt.
package frame

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// These bounds apply to a frame (AR-17, AR-19).
const (
	// MaxSize bounds a message, in bytes.
	MaxSize = 64 << 10
	// ReadLimit is the size above which a relay closes the connection. A frame between MaxSize and ReadLimit is
	// answered with an error.
	ReadLimit = 4 * MaxSize

	MaxDepth    = 32
	MaxValues   = MaxSize  // a frame has no more values than bytes
	MaxPayload  = 60 << 10 // bytes of a list in an answer, or of an AgentMesh message; MaxSize bounds all others
	MaxTypeText = 128      // bytes of type
	MaxRefText  = 512      // bytes of ref and id

	maxTargets  = 64
	maxMembers  = 256
	maxKeywords = 64
	maxKeyword  = 128 // bytes
)

const (
	// RelayID is the id of the relay in from and to. No agent may register it (AR-4).
	RelayID = "relay"
	// Everybody is the target that stands for all connected agents (AR-20).
	Everybody = "*"
)

// A relay closes a connection with one of these codes, or with a code of package websocket.
const (
	ClosePolicy   = 1008
	CloseBadToken = 4001
	CloseRate     = 4029
)

// These times govern the life of a connection (AR-12).
const (
	PingEvery = 20 * time.Second
	GoneAfter = 45 * time.Second
)

// Frame is a valid message from a client.
type Frame struct {
	To      []string
	Type    string // "" if absent
	Ref     string // links an answer to the frame that it answers; "" if absent
	Payload wire.Value
	Tree    wire.Value // as received, without id, from and ts
}

// Refusal says why a relay does not accept a frame.
type Refusal struct{ Code, Message string }

// A [Refusal] has one of these codes.
const (
	CodeInvalid     = "invalid_message"
	CodeTooLarge    = "message_too_large"
	CodeRate        = "rate_limit"
	CodeUnknown     = "unknown_command"
	CodeUnsupported = "unsupported"
	CodeUnavailable = "unavailable"
	CodeClosed      = "proposal_closed"
	CodeNoProposal  = "unknown_proposal"
)

// Refuse returns a refusal.
func Refuse(code, message string) *Refusal { return &Refusal{code, message} }

// Invalid returns the refusal of a frame that breaks a rule.
func Invalid(message string) *Refusal { return Refuse(CodeInvalid, message) }

// Credentials is the answer to a registration (AR-1).
type Credentials struct {
	AgentID string `json:"agent_id"`
	Token   string `json:"token"`
}

// Fault is the body of an error on a relay's HTTP routes (AR-3).
type Fault struct {
	Error   string `json:"error"`
	Message string `json:"message"`
}

// Parse reads a frame from a client (AR-14 to AR-19).
func Parse(data []byte) (Frame, *Refusal) {
	if len(data) > MaxSize {
		return Frame{}, Refuse(CodeTooLarge, "a message has at most 65536 bytes")
	}
	v, err := wire.ParseForeign(data, MaxDepth, MaxValues)
	if err != nil {
		return Frame{}, Invalid("the frame is not one strict JSON object")
	}
	if v.Kind() != wire.Object {
		return Frame{}, Invalid("the frame must be an object")
	}
	if v.Len() > maxMembers {
		return Frame{}, Invalid("the frame has too many members")
	}
	f := Frame{Tree: v.Without("id", "from", "ts")}
	if fault := f.readTargets(v); fault != nil {
		return Frame{}, fault
	}
	var ok bool
	if f.Type, ok = readOptional(v, "type", MaxTypeText); !ok {
		return Frame{}, Invalid("type must be a string of at most 128 bytes")
	}
	if f.Ref, ok = readOptional(v, "ref", MaxRefText); !ok {
		return Frame{}, Invalid("ref must be a string of at most 512 bytes")
	}
	onlyToRelay := len(f.To) == 1 && f.To[0] == RelayID
	if f.Payload, ok = v.Get("payload"); !ok && !onlyToRelay {
		return Frame{}, Invalid("payload is required")
	}
	return f, nil
}

func (f *Frame) readTargets(v wire.Value) *Refusal {
	to, ok := v.Get("to")
	if !ok || to.Kind() != wire.Array {
		return Invalid("to must be an array of strings")
	}
	if to.Len() == 0 || to.Len() > maxTargets {
		return Invalid("to must have 1 to 64 entries")
	}
	for target := range to.Elems() {
		s, ok := target.Str()
		if !ok {
			return Invalid("to must be an array of strings")
		}
		f.To = append(f.To, s)
	}
	return nil
}

// readOptional returns a string member, which may be absent. It reports false if the member is not a string or too
// long.
func readOptional(v wire.Value, key string, limit int) (string, bool) {
	m, ok := v.Get(key)
	if !ok {
		return "", true
	}
	s, ok := m.Str()
	return s, ok && len(s) <= limit
}

// IsCommand reports whether the frame is for the relay itself: the relay's id is among its targets (AR-21).
func (f *Frame) IsCommand() bool { return f.HasTarget(RelayID) }

// IsBroadcast reports whether the frame is for everybody.
func (f *Frame) IsBroadcast() bool { return f.HasTarget(Everybody) }

// HasTarget reports whether the frame is addressed to id.
func (f *Frame) HasTarget(id string) bool { return slices.Contains(f.To, id) }

// Stamp returns the frame as the relay delivers it: id, from and ts are the relay's, all other members are the client's
// (AR-15).
func (f *Frame) Stamp(id, from string, ts int64) []byte {
	tree := f.Tree.JSON()
	b := make([]byte, 0, len(tree)+160)
	b = append(b, `{"id":`...)
	b = wire.AppendString(b, id)
	b = append(b, `,"from":`...)
	b = wire.AppendString(b, from)
	b = append(b, ',') // the tree has at least "to"
	b = append(b, tree[1:len(tree)-1]...)
	b = append(b, `,"ts":`...)
	b = strconv.AppendInt(b, ts, 10)
	return append(b, '}')
}

// Notice is a frame from the relay itself.
type Notice struct {
	ID, Type, To, Ref string
	Payload           wire.Value
	TS                int64
}

// Encode returns the bytes of the notice. It omits an empty Ref.
func (n Notice) Encode() []byte {
	v := wire.Obj(wire.TextField("id", n.ID), wire.TextField("from", RelayID), wire.Field("to", wire.Texts([]string{n.To})), wire.TextField("type", n.Type))
	return v.WithOptional("ref", n.Ref).With("payload", n.Payload).With("ts", wire.Int(n.TS)).JSON()
}

// Request returns a frame from a client to one agent, to the relay or to everybody. It omits an empty kind or ref.
func Request(to, kind, ref string, payload wire.Value) wire.Value {
	v := wire.Obj(wire.Field("to", wire.Texts([]string{to})))
	return v.WithOptional("type", kind).WithOptional("ref", ref).With("payload", payload)
}

// NewID returns an id for a frame: 128 random bits.
func NewID() string { return string(wire.NewMessageID()) }

// ValidAgentID reports whether id has the form of AR-2.
func ValidAgentID(id string) bool {
	return len(id) >= 3 && len(id) <= 64 && id[0] != '-' && id[len(id)-1] != '-' &&
		strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// ReadKeywords reads a list of at most 64 words of at most 128 bytes, and returns them in lower case. It reports false
// if v is not such a list.
func ReadKeywords(v wire.Value) ([]string, bool) {
	if v.Kind() != wire.Array || v.Len() > maxKeywords {
		return nil, false
	}
	out := []string{}
	for e := range v.Elems() {
		word, ok := e.Str()
		if !ok || len(word) > maxKeyword {
			return nil, false
		}
		out = append(out, strings.ToLower(word))
	}
	return out, true
}

// SearchText returns the searchable text of a message: all strings of its payload, in lower case. An encrypted message
// has no searchable text (AR-46).
func SearchText(kind string, payload wire.Value) string {
	if kind == "encrypted" {
		return ""
	}
	var b strings.Builder
	appendStrings(&b, payload)
	return strings.ToLower(b.String())
}

func appendStrings(b *strings.Builder, v wire.Value) {
	if s, ok := v.Str(); ok {
		b.WriteString(s)
		b.WriteByte('\n')
	}
	for e := range v.Elems() {
		appendStrings(b, e)
	}
	for _, m := range v.Members() {
		appendStrings(b, m.Value)
	}
}

// Shorten cuts a text to at most n bytes, between two runes.
func Shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}
