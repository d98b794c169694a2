package signing

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"filippo.io/age"
)

// ErrAge is what [OpenAge] returns for anything that is not a file to this identity, or too large.
var ErrAge = errors.New("not an age file to this key")

// SealAge encrypts plain to one age recipient ("age1…"), as a binary file. It proves nothing about who did it.
func SealAge(recipient string, plain []byte) ([]byte, error) {
	to, err := age.ParseX25519Recipient(recipient)
	if err != nil {
		return nil, fmt.Errorf("age recipient: %w", err)
	}
	var out bytes.Buffer
	w, err := age.Encrypt(&out, to)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(plain); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// OpenAge decrypts a binary age file with an identity ("AGE-SECRET-KEY-1…"). More than limit bytes is an error.
func OpenAge(identity string, sealed []byte, limit int) ([]byte, error) {
	id, err := age.ParseX25519Identity(identity)
	if err != nil {
		return nil, errors.New("the age identity is not usable") // the cause may quote it
	}
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
