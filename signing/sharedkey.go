package signing

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"filippo.io/age"
)

// ErrOtherKey means that a document was sealed with a key that is not in the key file.
var ErrOtherKey = errors.New("sealed with another key")

// ErrSeal means that a sealed document is damaged, or was not sealed with the key file for this purpose.
var ErrSeal = errors.New("the sealed document is damaged or forged")

// SharedKey seals documents for everybody who has the same key file. Anybody who knows a recipient can make an age file
// for it, but only a holder of the key file can make a sealed document.
type SharedKey struct {
	identities []*age.X25519Identity // the first one seals
}

// Sealed is a document that [SharedKey.Seal] sealed.
type Sealed struct {
	Recipient string `json:"recipient"` // of the identity that opens Age
	Age       []byte `json:"age"`       // an age file: a MAC of [macSize] bytes, then the document
}

// ReadSharedKey reads a file of age identities, one per line. It follows links. If other users can read or write the
// file, the error matches [ErrKeyFileMode].
func ReadSharedKey(path string) (*SharedKey, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	data, err := ReadPrivateFile(path)
	if err != nil {
		return nil, err
	}
	var key SharedKey
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		identity, err := age.ParseX25519Identity(line)
		if err != nil {
			return nil, errors.New("a line is not an age identity") // the cause may quote the line
		}
		key.identities = append(key.identities, identity)
	}
	if len(key.identities) == 0 {
		return nil, errors.New("the file has no age identity")
	}
	return &key, nil
}

// Recipient returns the recipient to which the key seals.
func (k *SharedKey) Recipient() string { return k.identities[0].Recipient().String() }

// Seal seals a document. Only an Open with the same purpose accepts it.
func (k *SharedKey) Seal(purpose string, document []byte) (Sealed, error) {
	mac, err := macOf(k.identities[0], purpose, document)
	if err != nil {
		return Sealed{}, err
	}
	sealed, err := SealAge(k.Recipient(), append(mac, document...))
	return Sealed{k.Recipient(), sealed}, err
}

const maxSealed = 8 << 20 // bytes of a document with its MAC

// Open returns the document that was sealed for purpose with a key in the file. The error is [ErrOtherKey] or
// [ErrSeal].
func (k *SharedKey) Open(purpose string, sealed Sealed) ([]byte, error) {
	for _, identity := range k.identities {
		if identity.Recipient().String() != sealed.Recipient {
			continue
		}
		plain, err := openAge(identity, sealed.Age, maxSealed)
		if err != nil || len(plain) < macSize {
			return nil, ErrSeal
		}
		document := plain[macSize:]
		mac, err := macOf(identity, purpose, document)
		if err != nil {
			return nil, err
		}
		if !hmac.Equal(mac, plain[:macSize]) {
			return nil, ErrSeal
		}
		return document, nil
	}
	return nil, ErrOtherKey
}

const macSize = sha256.Size

// macOf returns the MAC of a document, which only a holder of the identity can make.
func macOf(identity *age.X25519Identity, purpose string, document []byte) ([]byte, error) {
	key, err := hkdf.Key(sha256.New, []byte(identity.String()), nil, "agentmesh shared key "+purpose, macSize)
	if err != nil {
		return nil, fmt.Errorf("derive a key: %w", err)
	}
	h := hmac.New(sha256.New, key)
	h.Write(document)
	return h.Sum(nil), nil
}
