package agentrelay

import (
	"crypto/rand"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
)

// The bounds of a frame (AR-17, AR-19).
const (
	// MaxFrame bounds a message, in bytes.
	MaxFrame = 64 << 10
	// readLimit is where a connection is closed instead of answered: a frame between the two is refused politely.
	readLimit = 4 * MaxFrame

	maxDepth    = 32
	maxValues   = MaxFrame // more values than bytes there are none
	maxTargets  = 64
	maxMembers  = 256
	maxPayload  = 60 << 10
	maxTypeText = 128 // of type and ref: what is longer is no name
	maxRefText  = 512
)

// relayID is who the relay is in from and to. Nobody may register it (AR-4).
const relayID = "relay"

// everybody addresses all that are connected (AR-20).
const everybody = "*"

// frame is a message of a client that was found good.
type frame struct {
	to      []string
	kind    string // type; "" where there is none
	ref     string
	payload wire.Value
	has     bool       // a payload, be it null
	tree    wire.Value // as received, without id, from and ts
}

// refusal is why a frame was not taken.
type refusal struct{ code, message string }

// The codes of errors.
const (
	codeInvalid     = "invalid_message"
	codeTooLarge    = "message_too_large"
	codeRate        = "rate_limit"
	codeUnknown     = "unknown_command"
	codeUnsupported = "unsupported"
	codeUnavailable = "unavailable"
	codeClosed      = "proposal_closed"
	codeNoProposal  = "unknown_proposal"
)

func invalid(message string) *refusal { return &refusal{codeInvalid, message} }

// parseFrame reads what a client sent (AR-14 to AR-19).
func parseFrame(data []byte) (frame, *refusal) {
	if len(data) > MaxFrame {
		return frame{}, &refusal{codeTooLarge, "a message has at most 65536 bytes"}
	}
	v, err := wire.ParseForeign(data, maxDepth, maxValues)
	if err != nil {
		return frame{}, invalid("the frame is not one strict JSON object")
	}
	if v.Kind() != wire.Object {
		return frame{}, invalid("the frame must be an object")
	}
	if v.Len() > maxMembers {
		return frame{}, invalid("the frame has too many members")
	}
	f := frame{tree: v.Without("id", "from", "ts")}
	if fault := f.readTargets(v); fault != nil {
		return frame{}, fault
	}
	var ok bool
	if f.kind, ok = optional(v, "type", maxTypeText); !ok {
		return frame{}, invalid("type must be a string of at most 128 bytes")
	}
	if f.ref, ok = optional(v, "ref", maxRefText); !ok {
		return frame{}, invalid("ref must be a string of at most 512 bytes")
	}
	f.payload, f.has = v.Get("payload")
	if !f.has && !f.onlyRelay() {
		return frame{}, invalid("payload is required")
	}
	return f, nil
}

func (f *frame) readTargets(v wire.Value) *refusal {
	to, ok := v.Get("to")
	if !ok || to.Kind() != wire.Array {
		return invalid("to must be an array of strings")
	}
	if to.Len() == 0 || to.Len() > maxTargets {
		return invalid("to must have 1 to 64 entries")
	}
	for target := range to.Elems() {
		s, ok := target.Str()
		if !ok {
			return invalid("to must be an array of strings")
		}
		f.to = append(f.to, s)
	}
	return nil
}

// optional returns a string member that may be absent or null.
func optional(v wire.Value, key string, limit int) (string, bool) {
	m, ok := v.Get(key)
	if !ok {
		return "", true
	}
	s, ok := m.Str()
	return s, ok && len(s) <= limit
}

// command says whether the frame is for the relay itself: the name anywhere in to (AR-21).
func (f *frame) command() bool { return f.names(relayID) }

// broadcast says whether it is for everybody.
func (f *frame) broadcast() bool { return f.names(everybody) }

func (f *frame) onlyRelay() bool { return len(f.to) == 1 && f.to[0] == relayID }

func (f *frame) names(id string) bool {
	return slices.Contains(f.to, id)
}

// stamp writes the frame as it is delivered: every member as it came, id, from and ts the relay's (AR-15).
func (f *frame) stamp(id, from string, ts int64) []byte {
	tree := f.tree.JSON()
	b := make([]byte, 0, len(tree)+160)
	b = append(b, `{"id":`...)
	b = wire.AppendQuoted(b, id)
	b = append(b, `,"from":`...)
	b = wire.AppendQuoted(b, from)
	b = append(b, ',') // to is always there
	b = append(b, tree[1:len(tree)-1]...)
	b = append(b, `,"ts":`...)
	b = strconv.AppendInt(b, ts, 10)
	return append(b, '}')
}

// newID returns an id for a frame: 128 random bits.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return "msg_" + hex.EncodeToString(b[:])
}

// ValidAgentID says whether an id has the form of AR-2.
func ValidAgentID(id string) bool {
	return len(id) >= 3 && len(id) <= 64 && id[0] != '-' && id[len(id)-1] != '-' &&
		strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

func text(key, value string) wire.Member { return wire.Member{Key: key, Value: wire.Text(value)} }
