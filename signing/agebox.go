package signing

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"filippo.io/age"
)

// ErrAge means that the data is not an age file, is not encrypted to this key, or is larger than the caller allows.
var ErrAge = errors.New("not an age file that this key opens")

// maxAgeHeader bounds the header, in bytes, of an age file for [PrivateKey.Unseal]: each recipient in the header costs
// a curve operation, and the sender chooses the number of recipients.
const maxAgeHeader = 4 << 10

// SealAge encrypts plain to one age recipient ("age1…"), as a binary file. The file does not prove who encrypted it.
func SealAge(recipient string, plain []byte) ([]byte, error) {
	sealed, _, err := SealAgeFileKey(recipient, plain)
	return sealed, err
}

// SealAgeFileKey encrypts like [SealAge] and also returns the key of this file, for [OpenAgeWith]. With this key, the
// sender can still read the file, and can let others read this file and nothing else.
func SealAgeFileKey(recipient string, plain []byte) (sealed, fileKey []byte, err error) {
	to, err := age.ParseX25519Recipient(recipient)
	if err != nil {
		return nil, nil, fmt.Errorf("age recipient: %w", err)
	}
	recorder := fileKeyRecorder{Recipient: to}
	var out bytes.Buffer
	if err := encryptAge(&out, &recorder, plain); err != nil {
		return nil, nil, err
	}
	return out.Bytes(), recorder.fileKey, nil
}

// encryptAge encrypts plain into an age file and writes the file to out.
func encryptAge(out io.Writer, to age.Recipient, plain []byte) error {
	w, err := age.Encrypt(out, to)
	if err != nil {
		return err
	}
	if _, err := w.Write(plain); err != nil {
		return err
	}
	return w.Close()
}

// fileKeyRecorder is an age recipient that records the key of the file that is encrypted to it.
type fileKeyRecorder struct {
	age.Recipient
	fileKey []byte
}

// OpenAgeWith decrypts a binary age file with the key of that file. A wrong key fails, because the key of a file
// authenticates its header.
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

// Unseal decrypts a binary age file that was encrypted to this key, and returns the plain text and the key of the file.
// It always fails if this key is not an age key. The error is [ErrAge].
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

// ValidAgeRecipient reports whether s is an age recipient.
func ValidAgeRecipient(s string) bool {
	_, err := age.ParseX25519Recipient(s)
	return err == nil
}
