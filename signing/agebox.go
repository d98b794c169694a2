package signing

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"filippo.io/age"
)

// ErrAge is what opening anything returns that is not an age file to this key, or too large.
var ErrAge = errors.New("not an age file to this key")

// maxAgeHeader bounds the header of an age file: each recipient in it costs a curve operation, and a sender chooses
// how many there are. Some thirty fit.
const maxAgeHeader = 4 << 10

// SealAge encrypts plain to one age recipient ("age1…"), as a binary file. It proves nothing about who did it.
func SealAge(recipient string, plain []byte) ([]byte, error) {
	sealed, _, err := SealAgeKeyed(recipient, plain)
	return sealed, err
}

// SealAgeKeyed is [SealAge] that also returns the key of this one file, for [OpenAgeWith]: who sealed it can still read
// it, and can show what is in it without showing anything else.
func SealAgeKeyed(recipient string, plain []byte) (sealed, fileKey []byte, err error) {
	to, err := age.ParseX25519Recipient(recipient)
	if err != nil {
		return nil, nil, fmt.Errorf("age recipient: %w", err)
	}
	watched := keeper{Recipient: to}
	var out bytes.Buffer
	w, err := age.Encrypt(&out, &watched)
	if err != nil {
		return nil, nil, err
	}
	if _, err := w.Write(plain); err != nil {
		return nil, nil, err
	}
	if err := w.Close(); err != nil {
		return nil, nil, err
	}
	return out.Bytes(), watched.fileKey, nil
}

// keeper is a recipient that keeps the key which age makes for a file.
type keeper struct {
	age.Recipient
	fileKey []byte
}

func (k *keeper) Wrap(fileKey []byte) ([]*age.Stanza, error) {
	k.fileKey = bytes.Clone(fileKey)
	return k.Recipient.Wrap(fileKey)
}

// OpenAge decrypts a binary age file with an identity ("AGE-SECRET-KEY-1…"). More than limit bytes is an error.
func OpenAge(identity string, sealed []byte, limit int) ([]byte, error) {
	id, err := age.ParseX25519Identity(identity)
	if err != nil {
		return nil, errors.New("the age identity is not usable") // the cause may quote it
	}
	return openAge(id, sealed, limit)
}

// OpenAgeWith decrypts a binary age file with the key of that file alone. A key that opens a file is the only one that
// does: the header authenticates it.
func OpenAgeWith(fileKey, sealed []byte, limit int) ([]byte, error) {
	const size = 16 // of every file key
	if len(fileKey) != size {
		return nil, ErrAge
	}
	return openAge(age.NewInjectedFileKeyIdentity(fileKey), sealed, limit)
}

func openAge(id age.Identity, sealed []byte, limit int) ([]byte, error) {
	r, err := age.Decrypt(bytes.NewReader(sealed), id)
	if err != nil {
		return nil, ErrAge
	}
	plain, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	if err != nil || len(plain) > limit {
		return nil, ErrAge
	}
	return plain, nil
}

// Unseal decrypts a binary age file that was encrypted to this key, and returns the key of the file with it. Any key but
// an age identity opens nothing. The error is [ErrAge].
func (k *PrivateKey) Unseal(sealed []byte, limit int) (plain, fileKey []byte, err error) {
	header, err := age.ExtractHeader(bytes.NewReader(sealed))
	if err != nil || len(header) > maxAgeHeader || k.age == nil {
		return nil, nil, ErrAge
	}
	if fileKey, err = age.DecryptHeader(header, k.age); err != nil {
		return nil, nil, ErrAge
	}
	plain, err = OpenAgeWith(fileKey, sealed, limit)
	return plain, fileKey, err
}

// AgeRecipient returns the recipient of an identity: what others encrypt to.
func AgeRecipient(identity string) (string, error) {
	id, err := age.ParseX25519Identity(identity)
	if err != nil {
		return "", errors.New("the age identity is not usable")
	}
	return id.Recipient().String(), nil
}

// ValidAgeRecipient says whether a text is an age recipient.
func ValidAgeRecipient(s string) bool {
	_, err := age.ParseX25519Recipient(s)
	return err == nil
}
