package signing

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"filippo.io/age"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	openpgp "github.com/ProtonMail/go-crypto/openpgp/v2"

	"github.com/agentmesh/agentmesh/node/wire"
)

// redacted is the text that a secret shows when printed (AM-77).
const redacted = "[redacted]"

// PrivateKey makes signatures. Printed, logged or encoded as JSON, it shows as [redacted]. Only
// [PrivateKey.MarshalText] and [PrivateKey.MarshalKeyFile] return the secret.
type PrivateKey struct {
	public     *PublicKey
	publicText string
	text       []byte // the secret, as MarshalText returns it
	sign       func(data []byte) ([]byte, error)
	age        *age.X25519Identity // nil if this is not an age key
}

func (k *PrivateKey) String() string               { return redacted }
func (k *PrivateKey) GoString() string             { return redacted }
func (k *PrivateKey) Format(s fmt.State, _ rune)   { fmt.Fprint(s, redacted) }
func (k *PrivateKey) LogValue() slog.Value         { return slog.StringValue(redacted) }
func (k *PrivateKey) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalText returns the secret itself, for [ParsePrivateKey]: PKCS#8 PEM for Ed25519, the identity line for age,
// armor for OpenPGP.
func (k *PrivateKey) MarshalText() ([]byte, error) { return bytes.Clone(k.text), nil }

// Public returns the key that verifies the signatures of k.
func (k *PrivateKey) Public() *PublicKey { return k.public }

// PublicText returns the text of the public key for a card: PEM SPKI, age1…, or OpenPGP armor.
func (k *PrivateKey) PublicText() string { return k.publicText }

// GenerateEd25519 returns a new random signing key.
func GenerateEd25519() (*PrivateKey, error) {
	_, secret, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate Ed25519 key: %w", err)
	}
	return newPrivateEd25519(secret)
}

// NewEd25519FromSeed returns the key of a 32-byte seed, for tests and demonstrations. It panics if the length is wrong.
func NewEd25519FromSeed(seed []byte) *PrivateKey {
	k, err := newPrivateEd25519(ed25519.NewKeyFromSeed(seed))
	if err != nil {
		panic(err)
	}
	return k
}

func newPrivateEd25519(secret ed25519.PrivateKey) (*PrivateKey, error) {
	point := []byte(secret.Public().(ed25519.PublicKey))
	public, err := newEd25519(point)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(secret)
	if err != nil {
		return nil, fmt.Errorf("encode Ed25519 key: %w", err)
	}
	spki := append(bytes.Clone(spkiPrefix), point...)
	return &PrivateKey{
		public:     public,
		publicText: string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: spki})),
		text:       pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
		sign:       func(data []byte) ([]byte, error) { return ed25519.Sign(secret, data), nil },
	}, nil
}

// GenerateAge returns a new age identity and its recipient, for encryption (AM-7).
func GenerateAge() (identity, recipient string, err error) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return "", "", fmt.Errorf("generate age key: %w", err)
	}
	return id.String(), id.Recipient().String(), nil
}

// ParsePrivateKey reads a private key: Ed25519 in PKCS#8 PEM, one age identity (with the comments of age-keygen), or an
// armored OpenPGP private key without its own passphrase. The error is a *[KeyError].
func ParsePrivateKey(data []byte) (*PrivateKey, error) {
	if len(data) > MaxKeyText {
		return nil, refuse(tooLong)
	}
	text := strings.TrimSpace(string(data))
	switch {
	case strings.HasPrefix(text, "-----BEGIN PRIVATE KEY-----"):
		return parsePKCS8(text)
	case strings.HasPrefix(text, "-----BEGIN "+armorPrivate+"-----"):
		return parsePrivateOpenPGP(text)
	case strings.HasPrefix(text, "AGE-SECRET-KEY-") || strings.HasPrefix(text, "#"):
		return parseAgeIdentity(text)
	}
	return nil, refuse("the text is not a private key of a known kind")
}

func parsePKCS8(text string) (*PrivateKey, error) {
	block, rest := pem.Decode([]byte(text))
	if block == nil || block.Type != "PRIVATE KEY" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, refuse("the PEM block is damaged")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	secret, ok := key.(ed25519.PrivateKey)
	if err != nil || !ok {
		return nil, refuse("a PEM key must be Ed25519")
	}
	return newPrivateEd25519(secret)
}

func parseAgeIdentity(text string) (*PrivateKey, error) {
	line := ""
	for l := range strings.Lines(text) {
		switch l = strings.TrimSpace(l); {
		case l == "" || l[0] == '#':
		case line != "":
			return nil, refuse("there is more than one key")
		default:
			line = l
		}
	}
	identity, err := age.ParseX25519Identity(line)
	if err != nil {
		return nil, refuse("the age identity is damaged")
	}
	publicText := identity.Recipient().String()
	public, err := ParsePublicKey(publicText)
	if err != nil {
		return nil, err
	}
	secret := bech32Payload(identity.String())
	return &PrivateKey{
		public:     public,
		publicText: publicText,
		text:       []byte(identity.String() + "\n"),
		age:        identity,
		sign: func(data []byte) ([]byte, error) {
			var z [64]byte
			rand.Read(z[:])
			return signXEdDSA(secret, data, z[:])
		},
	}, nil
}

func parsePrivateOpenPGP(text string) (*PrivateKey, error) {
	data, ok := dearmor(text, armorPrivate)
	if !ok {
		return nil, refuse("the OpenPGP armor is damaged or holds more than one block")
	}
	r := packet.NewReader(bytes.NewReader(data))
	entity, err := openpgp.ReadEntity(r)
	if err != nil || entity.PrivateKey == nil {
		return nil, refuse("the OpenPGP key is damaged or of an unknown version")
	}
	if _, err := openpgp.ReadEntity(r); err == nil {
		return nil, refuse("there is more than one key")
	}
	if entity.PrivateKey.Encrypted {
		return nil, refuse("the OpenPGP key is locked with its own passphrase")
	}
	publicText, err := armorEntity(entity)
	if err != nil {
		return nil, &KeyError{Reason: "the OpenPGP key is damaged", cause: err}
	}
	public, err := ParsePublicKey(publicText)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex // guards the entity, which caches its verifications
	return &PrivateKey{
		public:     public,
		publicText: publicText,
		text:       []byte(text + "\n"),
		sign: func(data []byte) ([]byte, error) {
			mu.Lock()
			defer mu.Unlock()
			var out bytes.Buffer
			err := openpgp.DetachSign(&out, []*openpgp.Entity{entity}, bytes.NewReader(data), nil)
			return out.Bytes(), err
		},
	}, nil
}

func armorEntity(e *openpgp.Entity) (string, error) {
	var out bytes.Buffer
	w, err := armor.Encode(&out, armorPublic, nil)
	if err != nil {
		return "", err
	}
	if err := errors.Join(e.Serialize(w), w.Close()); err != nil {
		return "", err
	}
	return out.String() + "\n", nil
}

// Sign returns a signature over data in padded standard base64. An OpenPGP signature is one binary packet.
func (k *PrivateKey) Sign(data []byte) (string, error) {
	sig, err := k.sign(data)
	if err != nil {
		return "", fmt.Errorf("sign: %w", err)
	}
	return encodeBase64(sig), nil
}

// SignValue returns the object v with a new last member "signature", which covers the JCS form of the rest (AM-15).
func (k *PrivateKey) SignValue(v wire.Value) (wire.Value, error) {
	signed, _, err := k.SignDigest(v)
	return signed, err
}

// SignDigest works like SignValue, and also returns the SHA-256 of the signed bytes.
func (k *PrivateKey) SignDigest(v wire.Value) (signed wire.Value, digest [sha256.Size]byte, err error) {
	if v.Kind() != wire.Object {
		return wire.Value{}, digest, errors.New("sign: only an object can carry a signature")
	}
	v = v.Without("signature")
	data := Canonical(v, JCS)
	sig, err := k.Sign(data)
	if err != nil {
		return wire.Value{}, digest, err
	}
	return v.With("signature", wire.Text(sig)), sha256.Sum256(data), nil
}
