package signing

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"golang.org/x/crypto/nacl/box"
)

// NonceSize is the length of the nonce of a box.
const NonceSize = 24

// ErrBox means that a box does not open.
var ErrBox = errors.New("the box does not open")

const boxKeyPrefix = "X25519-SECRET-KEY-"

// BoxKey is an X25519 key that opens NaCl boxes, X25519-XSalsa20-Poly1305 (MS-18). Printed, logged or encoded as JSON,
// it shows as [redacted]. Only [BoxKey.MarshalText] returns the secret.
type BoxKey struct {
	secret *ecdh.PrivateKey
	public BoxPublic
}

// BoxPublic is the public half of a [BoxKey].
type BoxPublic [32]byte

func (k *BoxKey) String() string               { return redacted }
func (k *BoxKey) GoString() string             { return redacted }
func (k *BoxKey) Format(s fmt.State, _ rune)   { fmt.Fprint(s, redacted) }
func (k *BoxKey) LogValue() slog.Value         { return slog.StringValue(redacted) }
func (k *BoxKey) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// GenerateBoxKey returns a new random key.
func GenerateBoxKey() (*BoxKey, error) {
	secret, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate X25519 key: %w", err)
	}
	return newBoxKey(secret), nil
}

// NewBoxKey returns the key with these 32 secret bytes. It panics if the length is wrong.
func NewBoxKey(secret []byte) *BoxKey {
	k, err := ecdh.X25519().NewPrivateKey(secret)
	if err != nil {
		panic("signing: " + err.Error())
	}
	return newBoxKey(k)
}

func newBoxKey(secret *ecdh.PrivateKey) *BoxKey {
	return &BoxKey{secret: secret, public: BoxPublic(secret.PublicKey().Bytes())}
}

// ParseBoxKey reads the text that [BoxKey.MarshalText] wrote. The error is a *[KeyError].
func ParseBoxKey(data []byte) (*BoxKey, error) {
	text, hasPrefix := strings.CutPrefix(strings.TrimSpace(string(data)), boxKeyPrefix)
	raw, ok := strictBase64(text, 32)
	if !hasPrefix || !ok {
		return nil, refuse("the text is not an X25519 key")
	}
	return NewBoxKey(raw), nil
}

// MarshalText returns the secret itself, on one line.
func (k *BoxKey) MarshalText() ([]byte, error) {
	return []byte(boxKeyPrefix + encodeBase64(k.secret.Bytes()) + "\n"), nil
}

// Public returns the public half, with which others seal to this key.
func (k *BoxKey) Public() BoxPublic { return k.public }

// ParseBoxPublic reads a public key: 32 bytes in padded standard base64. It refuses a point of low order, because with
// such a point, anybody can compute the shared key. The error is a *[KeyError].
func ParseBoxPublic(text string) (BoxPublic, error) {
	raw, ok := strictBase64(text, 32)
	if !ok {
		return BoxPublic{}, refuse("the text is not an X25519 key")
	}
	point, err := ecdh.X25519().NewPublicKey(raw)
	if err != nil {
		return BoxPublic{}, refuse("the text is not an X25519 key")
	}
	if _, err := lowOrderProbe.ECDH(point); err != nil {
		return BoxPublic{}, refuse("the point has low order")
	}
	return BoxPublic(raw), nil
}

// lowOrderProbe is any fixed scalar. Its product with a point is zero if, and only if, the point has low order.
var lowOrderProbe = func() *ecdh.PrivateKey {
	k, err := ecdh.X25519().NewPrivateKey(bytes.Repeat([]byte{1}, 32))
	if err != nil {
		panic(err) // any 32 bytes are a scalar
	}
	return k
}()

// String returns the key as [ParseBoxPublic] reads it.
func (p BoxPublic) String() string { return encodeBase64(p[:]) }

// Seal encrypts plain for the holder of the recipient's key, under a new random nonce.
func (k *BoxKey) Seal(plain []byte, recipient BoxPublic) (sealed []byte, nonce [NonceSize]byte) {
	rand.Read(nonce[:]) // never fails
	return k.sealWith(plain, recipient, nonce), nonce
}

func (k *BoxKey) sealWith(plain []byte, to BoxPublic, nonce [NonceSize]byte) []byte {
	secret := [32]byte(k.secret.Bytes())
	return box.Seal(nil, plain, &nonce, (*[32]byte)(&to), &secret)
}

// Open decrypts what the holder of the sender's key sealed to this key. The error is [ErrBox].
func (k *BoxKey) Open(sealed []byte, nonce [NonceSize]byte, sender BoxPublic) ([]byte, error) {
	secret := [32]byte(k.secret.Bytes())
	plain, ok := box.Open(nil, sealed, &nonce, (*[32]byte)(&sender), &secret)
	if !ok {
		return nil, ErrBox
	}
	return plain, nil
}

// ReadBoxKeyFile reads a key from a file with the checks of [ReadKeyFile].
func ReadBoxKeyFile(path string) (*BoxKey, error) {
	data, err := ReadPrivateFile(path)
	if err != nil {
		return nil, fmt.Errorf("read key file: %w", err)
	}
	return ParseBoxKey(data)
}

// strictBase64 reads n bytes in padded standard base64, and no other spelling.
func strictBase64(text string, n int) ([]byte, bool) {
	raw, err := base64.StdEncoding.Strict().DecodeString(text)
	return raw, err == nil && len(raw) == n && base64.StdEncoding.EncodeToString(raw) == text
}

// ParseEd25519 reads a key in the form of MoltSpeak: 32 bytes in padded standard base64, and no other spelling (MS-12).
// It refuses the same weak keys as [ParsePublicKey]. The error is a *[KeyError].
func ParseEd25519(text string) (*PublicKey, error) {
	point, ok := strictBase64(text, 32)
	if !ok {
		return nil, refuse("the text is not an Ed25519 key in padded base64")
	}
	return newEd25519(point)
}

// Text64 returns an Ed25519 public key in the format of [ParseEd25519].
func (k *PublicKey) Text64() string { return encodeBase64(k.canonical) }

// VerifyStrict checks a signature of exactly 64 bytes in padded standard base64 (MS-15). The error matches
// [ErrBadSignature].
func (k *PublicKey) VerifyStrict(data []byte, signature string) error {
	sig, ok := strictBase64(signature, 64)
	if !ok {
		return badSignature("not 64 bytes in padded base64")
	}
	scheme, ok := k.scheme.(ed25519Scheme)
	if !ok {
		return badSignature("the key is not Ed25519")
	}
	return scheme.key.verify(data, sig)
}
