// Package credential handles bearer tokens, called bearers here, that services issue and accept. It stores only the
// hashes of bearers and compares them in constant time. It also has the modes of registration, the invite codes of a
// service, a limit on registrations, shared by several processes, and the registry of the strangers to whom the bridges
// give keys. Start with [HashOf], [Invites] and [Registry].
package credential

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
)

// Hash is the SHA-256 of a bearer. A service stores it instead of the bearer. Its text form is lower-case hex.
type Hash [sha256.Size]byte

// HashOf returns the hash of a bearer.
func HashOf(bearer string) Hash { return sha256.Sum256([]byte(bearer)) }

// Equal reports whether two hashes are the same, in constant time.
func (h Hash) Equal(other Hash) bool { return subtle.ConstantTimeCompare(h[:], other[:]) == 1 }

// String returns the hash in hex.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// Name returns the first half of the hash in hex, a name that does not reveal the bearer.
func (h Hash) Name() string { return hex.EncodeToString(h[:sha256.Size/2]) }

// MarshalText implements [encoding.TextMarshaler].
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler]. An empty text is the zero hash, which no bearer has.
func (h *Hash) UnmarshalText(text []byte) error {
	*h = Hash{}
	if len(text) == 0 {
		return nil
	}
	if len(text) == hex.EncodedLen(len(h)) {
		if _, err := hex.Decode(h[:], text); err == nil {
			return nil
		}
	}
	*h = Hash{}
	return errors.New("the hash of a bearer must be 64 hexadecimal digits")
}

// New returns a new bearer: prefix and 128 random bits in hex.
func New(prefix string) string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return prefix + hex.EncodeToString(b[:])
}

// Mode decides who may register with a service.
type Mode string

// The modes of registration. A service offers some of them.
const (
	Open     Mode = "open"     // anybody
	Invite   Mode = "invite"   // anybody with an invite code of the owner
	Approval Mode = "approval" // anybody, if the owner approves
	Closed   Mode = "closed"   // only the owner
)
