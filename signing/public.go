package signing

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Kind is the algorithm family that the text of a key decides.
type Kind string

// The kinds. XEdDSA is how an age key signs; OpenPGP keys bring their own algorithm.
const (
	KindEd25519 Kind = "ed25519"
	KindAge     Kind = "age"
	KindOpenPGP Kind = "openpgp"
)

// Kinds returns the kinds of keys that verify (AM-81).
func Kinds() []Kind { return []Kind{KindEd25519, KindAge, KindOpenPGP} }

// MaxKeyText bounds the bytes of a key's text (AM-8).
const MaxKeyText = 32 << 10

// KeyError says why a key is refused. Reason is fixed text and quotes nothing from the key.
type KeyError struct {
	Reason string
	cause  error
}

func (e *KeyError) Error() string { return "key refused: " + e.Reason }

// Unwrap returns what a library said, for the log.
func (e *KeyError) Unwrap() error { return e.cause }

const tooLong = "the key text is longer than 32 KiB"

func refuse(reason string) error { return &KeyError{Reason: reason} }

// ErrBadSignature is what every failed verification is.
var ErrBadSignature = errors.New("bad signature")

func badSignature(reason string) error { return fmt.Errorf("%w: %s", ErrBadSignature, reason) }

func badSignatureBecause(reason string, cause error) error {
	return fmt.Errorf("%w: %s: %w", ErrBadSignature, reason, cause)
}

// Window bounds when an OpenPGP signature may have been made, ends included (AM-9). The other kinds carry no time.
type Window struct{ From, To time.Time }

// PublicKey is a key of a card that passed every check which needs no clock. It is immutable.
type PublicKey struct {
	kind      Kind
	canonical []byte
	scheme    scheme
}

// scheme is how one kind of key verifies.
type scheme interface {
	// prepare judges what does not depend on the signed bytes and returns the check that does.
	prepare(signature string, w Window, now time.Time) (check func(data []byte) error, err error)
	usable(now time.Time) error
}

// ParsePublicKey reads the text of a card's public_key under AM-8. The grammar decides the kind; nothing is
// tried in turn. White space around the text is ignored. The error is a *[KeyError].
//
// A key of mixed order (a prime-order point plus a small one) is taken: AM-8 does not name it, it is not low
// order, and since verification is the cofactorless equation of the standard library, one signature has one
// outcome for everybody.
func ParsePublicKey(text string) (*PublicKey, error) {
	if len(text) > MaxKeyText {
		return nil, refuse(tooLong)
	}
	text = strings.Trim(text, " \t\r\n")
	switch {
	case strings.HasPrefix(text, pemBegin):
		return parsePEM(text)
	case strings.HasPrefix(text, armorBegin):
		return parseOpenPGP(text)
	case strings.HasPrefix(text, "-----BEGIN ") && strings.Contains(text, "PRIVATE KEY"),
		strings.HasPrefix(strings.ToUpper(text), "AGE-SECRET-KEY-"):
		return nil, refuse("this is a private key")
	case strings.HasPrefix(text, "ed25519:"):
		return parseRawEd25519(text[len("ed25519:"):], true)
	case strings.HasPrefix(text, "ssh-ed25519 "):
		return parseSSH(text)
	case strings.HasPrefix(text, "age1pq1"): // the separator tells it from an X25519 recipient whose data begins with pq
		return nil, refuse("post-quantum age keys cannot sign")
	case strings.HasPrefix(text, "age1"):
		return parseAgeRecipient(text)
	}
	return parseRawEd25519(text, false)
}

// Kind returns the kind that the key's text decided.
func (k *PublicKey) Kind() Kind { return k.kind }

// Canonical returns the key's canonical bytes (AM-2): the 32 bytes of an Ed25519 point, the 32 bytes of an age
// u-coordinate, the body of an OpenPGP primary public-key packet.
func (k *PublicKey) Canonical() []byte { return bytes.Clone(k.canonical) }

// Fingerprint names the key: its kind, a colon, and the lower-case hex SHA-256 of its canonical bytes.
func (k *PublicKey) Fingerprint() string {
	sum := sha256.Sum256(k.canonical)
	return string(k.kind) + ":" + hex.EncodeToString(sum[:])
}

// AgentID returns the id that certifies itself with this key (AM-2).
func (k *PublicKey) AgentID() wire.AgentID { return wire.DeriveAgentID(k.canonical) }

// Usable says why the key cannot be used now: expired, revoked or without a key that may sign (AM-8). Only
// OpenPGP keys can become unusable. The error is a *[KeyError].
func (k *PublicKey) Usable(now time.Time) error { return k.scheme.usable(now) }

// Verify checks a signature over data. An error matches [ErrBadSignature].
func (k *PublicKey) Verify(data []byte, signature string, w Window, now time.Time) error {
	check, err := k.scheme.prepare(signature, w, now)
	if err != nil {
		return err
	}
	return check(data)
}

// Verified is what a signature was found to be over.
type Verified struct {
	Form      Form
	Canonical []byte
	Digest    [32]byte // SHA-256 of Canonical
}

// VerifyValue checks a signature over v, which must not hold its signature any more, in each form of AM-14 whose
// bytes differ from those tried before. An error matches [ErrBadSignature].
func (k *PublicKey) VerifyValue(v wire.Value, signature string, w Window, now time.Time) (Verified, error) {
	check, err := k.scheme.prepare(signature, w, now)
	if err != nil {
		return Verified{}, err
	}
	var tried [][]byte
	for _, f := range Forms() {
		data := Canonical(v, f)
		if slices.ContainsFunc(tried, func(t []byte) bool { return bytes.Equal(t, data) }) {
			continue
		}
		if err = check(data); err == nil {
			return Verified{Form: f, Canonical: data, Digest: sha256.Sum256(data)}, nil
		}
		tried = append(tried, data)
	}
	return Verified{}, err
}

// AnyTime is the window for checks that have no clock of their own, such as a look at a stored message.
func AnyTime() Window { return Window{To: time.Unix(1<<40, 0)} }
