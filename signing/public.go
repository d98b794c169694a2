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

// Kind is the algorithm family of a key. The form of the key's text determines it.
type Kind string

// The kinds. XEdDSA is the signature scheme of age keys. OpenPGP keys name their own algorithm.
const (
	KindEd25519 Kind = "ed25519"
	KindAge     Kind = "age"
	KindOpenPGP Kind = "openpgp"
)

// MaxKeyText bounds the bytes of the text of a key (AM-8).
const MaxKeyText = 32 << 10

// KeyError means that a key is refused. Reason is a fixed text that quotes nothing from the key.
type KeyError struct {
	Reason string
	cause  error
}

func (e *KeyError) Error() string { return "key refused: " + e.Reason }

// Unwrap returns the error of a library, for the log.
func (e *KeyError) Unwrap() error { return e.cause }

const tooLong = "the key text is longer than 32 KiB"

func refuse(reason string) error { return &KeyError{Reason: reason} }

// ErrBadSignature matches the error of every failed verification.
var ErrBadSignature = errors.New("bad signature")

func badSignature(reason string) error { return fmt.Errorf("%w: %s", ErrBadSignature, reason) }

func badSignatureBecause(reason string, cause error) error {
	return fmt.Errorf("%w: %s: %w", ErrBadSignature, reason, cause)
}

// Window bounds the time at which an OpenPGP signature was made, ends included (AM-9). Other signatures have no time.
type Window struct{ From, To time.Time }

// PublicKey is a public key that passed all checks that do not depend on the time. It is immutable.
type PublicKey struct {
	kind      Kind
	canonical []byte
	scheme    scheme
}

// scheme is a way to verify signatures with one key.
type scheme interface {
	// prepare checks what does not depend on the signed bytes, and returns the check of the signed bytes.
	prepare(signature string, w Window, now time.Time) (check func(data []byte) error, err error)
	// usable implements [PublicKey.Usable].
	usable(now time.Time) error
}

// ParsePublicKey reads the text of public_key on a card under the rules of AM-8. The form of the text determines the
// kind of the key; the kinds are not tried one after the other. White space around the text is ignored. The error is a
// *[KeyError].
//
// A key of mixed order (the sum of a point of prime order and a point of small order) is accepted, because AM-8 refuses
// only low order.
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
		return parseRawEd25519(text[len("ed25519:"):], true) // or in hex
	case strings.HasPrefix(text, "ssh-ed25519 "):
		return parseSSH(text)
	case strings.HasPrefix(text, "age1pq1"): // an X25519 recipient never begins with age1pq1
		return nil, refuse("post-quantum age keys cannot sign")
	case strings.HasPrefix(text, "age1"):
		return parseAgeRecipient(text)
	}
	return parseRawEd25519(text, false)
}

// Kind returns the kind of the key.
func (k *PublicKey) Kind() Kind { return k.kind }

// Canonical returns the canonical bytes of the key (AM-2): the 32 bytes of an Ed25519 point, the 32 bytes of an age
// u-coordinate, or the body of the public-key packet of an OpenPGP primary key.
func (k *PublicKey) Canonical() []byte { return bytes.Clone(k.canonical) }

// Fingerprint returns the kind of the key, a colon, and the lower-case hex SHA-256 of its canonical bytes.
func (k *PublicKey) Fingerprint() string {
	sum := sha256.Sum256(k.canonical)
	return string(k.kind) + ":" + hex.EncodeToString(sum[:])
}

// AgentID returns the agent id that is derived from this key (AM-2).
func (k *PublicKey) AgentID() wire.AgentID { return wire.DeriveAgentID(k.canonical) }

// Usable returns nil if the key can be used at now. Otherwise the error is a *[KeyError]: the key has expired, is
// revoked, or has no part that may sign (AM-8). Only OpenPGP keys can become unusable.
func (k *PublicKey) Usable(now time.Time) error { return k.scheme.usable(now) }

// Verify checks a signature over data. The error matches [ErrBadSignature].
func (k *PublicKey) Verify(data []byte, signature string, w Window, now time.Time) error {
	check, err := k.scheme.prepare(signature, w, now)
	if err != nil {
		return err
	}
	return check(data)
}

// Verified describes the encoding that a signature covers.
type Verified struct {
	Form      Form
	Canonical []byte
	Digest    [32]byte // SHA-256 of Canonical
}

// VerifyValue checks a signature over v, which must no longer contain the signature. It tries each form of AM-14 whose
// bytes differ from those already tried. The error matches [ErrBadSignature].
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

// AnyTime returns the window of all times, for checks that do not depend on the clock, such as those of stored
// messages.
func AnyTime() Window { return Window{To: time.Unix(1<<40, 0)} }
