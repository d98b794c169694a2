package signing

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"filippo.io/age"
)

// AgeFile encrypts one file of any size in the age format, for recipients or with a passphrase, and can read back
// what it has just written although it has none of the recipients' keys.
type AgeFile struct {
	to   []age.Recipient
	kept *keeper // the first of them
}

// NewAgeFile encrypts to recipients ("age1…", at least one) or, where passphrase is not empty, with that alone.
func NewAgeFile(recipients []string, passphrase []byte) (*AgeFile, error) {
	if len(passphrase) > 0 {
		r, err := passphraseRecipient(passphrase)
		if err != nil {
			return nil, err
		}
		return newAgeFile(r), nil
	}
	to, err := age.ParseRecipients(strings.NewReader(strings.Join(recipients, "\n")))
	if err != nil {
		return nil, errors.New("a recipient is not of the form age1…")
	}
	return newAgeFile(to...), nil
}

func newAgeFile(to ...age.Recipient) *AgeFile {
	f := &AgeFile{to: to, kept: &keeper{Recipient: to[0]}}
	f.to[0] = f.kept
	return f
}

// Writer returns what encrypts into w. It must be closed to make the file whole.
func (f *AgeFile) Writer(w io.Writer) (io.WriteCloser, error) { return age.Encrypt(w, f.to...) }

// Reader decrypts what Writer wrote, from size bytes.
func (f *AgeFile) Reader(r io.ReaderAt, size int64) (plain io.ReaderAt, length int64, err error) {
	return age.DecryptReaderAt(r, size, age.NewInjectedFileKeyIdentity(f.kept.fileKey))
}

// WrapWithLabels keeps a passphrase apart from recipients, and those against quantum computers from the others.
func (k *keeper) WrapWithLabels(key []byte) ([]*age.Stanza, []string, error) {
	k.fileKey = bytes.Clone(key)
	if r, ok := k.Recipient.(age.RecipientWithLabels); ok {
		return r.WrapWithLabels(key)
	}
	stanzas, err := k.Recipient.Wrap(key)
	return stanzas, nil, err
}

// IsAgeFile says whether a file that begins so is encrypted in the age format.
func IsAgeFile(head []byte) bool { return bytes.HasPrefix(head, []byte("age-encryption.org/v1\n")) }

// OpenAgeFile decrypts a file of size bytes. identities is the content of an identity file, of which empty means none;
// passphrase is asked where the file has one. What none of them opens is [ErrAge].
func OpenAgeFile(r io.ReaderAt, size int64, identities []byte, passphrase func() ([]byte, error)) (plain io.ReaderAt, length int64, err error) {
	asked := &asked{ask: passphrase}
	with := []age.Identity{asked}
	if len(identities) > 0 {
		given, err := age.ParseIdentities(bytes.NewReader(identities))
		if err != nil {
			return nil, 0, errors.New("the identity file holds no age identity") // the cause may quote it
		}
		with = append(with, given...)
	}
	plain, length, err = age.DecryptReaderAt(r, size, with...)
	if _, none := errors.AsType[*age.NoIdentityMatchError](err); none {
		return nil, 0, ErrAge
	}
	return plain, length, err
}

// asked asks for the passphrase only of a file that has one.
type asked struct{ ask func() ([]byte, error) }

func (a *asked) Unwrap(stanzas []*age.Stanza) ([]byte, error) {
	if len(stanzas) != 1 || stanzas[0].Type != "scrypt" {
		return nil, age.ErrIncorrectIdentity
	}
	text, err := a.ask()
	if err != nil {
		return nil, err
	}
	identity, err := age.NewScryptIdentity(string(text))
	if err != nil {
		return nil, fmt.Errorf("passphrase: %w", err)
	}
	return identity.Unwrap(stanzas)
}
