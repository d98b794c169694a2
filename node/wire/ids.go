package wire

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"strings"
)

// The ids that cross the wire (AM-1). They are compared byte for byte.
type (
	AgentID        string // "am_…"
	MessageID      string // "msg_…"
	ConversationID string // "conv_…"
)

// Version is what we send in the field "agentmesh" (AM-3).
const Version = "0.1.0"

// Valid reports whether id has the form of AM-1.
func (id AgentID) Valid() bool { return validID(string(id), "am_") }

// Valid reports whether id has the form of AM-1.
func (id MessageID) Valid() bool { return validID(string(id), "msg_") }

// Valid reports whether id has the form of AM-1.
func (id ConversationID) Valid() bool { return validID(string(id), "conv_") }

const maxName = 128

func validID(id, prefix string) bool {
	rest, ok := strings.CutPrefix(id, prefix)
	return ok && validName(rest)
}

// validName reports whether s matches [A-Za-z0-9._-]{1,128}.
func validName(s string) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// NewMessageID returns an id of 128 random bits (AM-2).
func NewMessageID() MessageID { return MessageID("msg_" + randomHex()) }

// NewConversationID returns an id of 128 random bits (AM-2).
func NewConversationID() ConversationID { return ConversationID("conv_" + randomHex()) }

func randomHex() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

var lowerBase32 = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// DeriveAgentID returns the id that is derived from the parts: a hash of the parts, with NUL between them. For the id
// of AM-2 the only part is the canonical key; bridges derive pseudonyms from several parts.
func DeriveAgentID(parts ...[]byte) AgentID {
	h := sha256.New()
	for i, p := range parts {
		if i > 0 {
			h.Write([]byte{0})
		}
		h.Write(p)
	}
	return AgentID("am_" + lowerBase32.EncodeToString(h.Sum(nil))[:derivedLength])
}

// HashOf returns a short hash of the parts, in hex, with NUL between them, so only the last part may be a text with NUL.
// It turns long texts into keys and ids.
func HashOf(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:16])
}

const derivedLength = 26

// HasDerivedShape reports whether id has the shape of [DeriveAgentID]: am_ and 26 of [a-z2-7]. Such an id is reserved
// for the key that it is derived from (AM-2).
func (id AgentID) HasDerivedShape() bool {
	hash, ok := strings.CutPrefix(string(id), "am_")
	return ok && len(hash) == derivedLength && strings.Trim(hash, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// KeyDigits returns the first 32 hex digits of the fingerprint of the key from which id is derived, or "" if id has
// another shape.
func (id AgentID) KeyDigits() string {
	if !id.HasDerivedShape() {
		return ""
	}
	hash, _ := lowerBase32.DecodeString(strings.TrimPrefix(string(id), "am_")) // the shape has only letters of base32
	return hex.EncodeToString(hash)
}

// validVersion reports whether s is 0.1.<n> with an optional pre-release suffix (AM-3).
func validVersion(s string) bool {
	patch, ok := strings.CutPrefix(s, "0.1.")
	if !ok || len(s) > 64 {
		return false
	}
	patch, suffix, hasSuffix := strings.Cut(patch, "-")
	if patch == "" || strings.Trim(patch, "0123456789") != "" || len(patch) > 1 && patch[0] == '0' {
		return false
	}
	return !hasSuffix || validName(suffix) && !strings.Contains(suffix, "_")
}
