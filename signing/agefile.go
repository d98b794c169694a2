package signing

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"filippo.io/age"
)

// AgeFile encrypts one file of any size in the age format, for recipients or with a passphrase. It can decrypt that
// file without the keys of the recipients.
type AgeFile struct {
	to       []age.Recipient
	recorder *fileKeyRecorder // the first element of to
}

// NewAgeFile returns a file that is encrypted to recipients ("age1…", at least one), or with passphrase if that is not
// empty.
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
	f := &AgeFile{to: to, recorder: &fileKeyRecorder{Recipient: to[0]}}
	f.to[0] = f.recorder
	return f
}

// Writer returns a writer that encrypts into w. The caller must close it to complete the file.
func (f *AgeFile) Writer(w io.Writer) (io.WriteCloser, error) { return age.Encrypt(w, f.to...) }

// Reader decrypts the file of size bytes that Writer wrote. length is the size of its plain text.
func (f *AgeFile) Reader(r io.ReaderAt, size int64) (plain io.ReaderAt, length int64, err error) {
	return age.DecryptReaderAt(r, size, age.NewInjectedFileKeyIdentity(f.recorder.fileKey))
}

// WrapWithLabels records the key of the file, and then calls the recipient. It passes on the recipient's labels, by which
// age refuses a passphrase mixed with recipients, and post-quantum recipients mixed with others.
func (k *fileKeyRecorder) WrapWithLabels(key []byte) ([]*age.Stanza, []string, error) {
	k.fileKey = bytes.Clone(key)
	if r, ok := k.Recipient.(age.RecipientWithLabels); ok {
		return r.WrapWithLabels(key)
	}
	stanzas, err := k.Recipient.Wrap(key)
	return stanzas, nil, err
}

// IsAgeFile reports whether a file that begins with head is in the age format.
func IsAgeFile(head []byte) bool { return bytes.HasPrefix(head, []byte("age-encryption.org/v1\n")) }

// OpenAgeFile decrypts a file of size bytes. identities is the content of an identity file; it may be empty. passphrase
// is called only for a file that is encrypted with one. The error is [ErrAge] if neither opens the file.
func OpenAgeFile(r io.ReaderAt, size int64, identities []byte, passphrase func() ([]byte, error)) (plain io.ReaderAt, length int64, err error) {
	prompt := &passphrasePrompt{ask: passphrase}
	all := []age.Identity{prompt}
	if len(identities) > 0 {
		given, err := age.ParseIdentities(bytes.NewReader(identities))
		if err != nil {
			return nil, 0, errNoIdentities // the cause may quote the file
		}
		all = append(all, given...)
	}
	plain, length, err = age.DecryptReaderAt(r, size, all...)
	if _, noMatch := errors.AsType[*age.NoIdentityMatchError](err); noMatch {
		return nil, 0, ErrAge
	}
	return plain, length, err
}

// errNoIdentities refuses a file without an identity, or with a line that is neither an identity nor a comment.
var errNoIdentities = errors.New("the identity file must have at least one age identity, one per line, and otherwise only comments")

// passphrasePrompt is an identity that asks for the passphrase only if the file needs one.
type passphrasePrompt struct{ ask func() ([]byte, error) }

// Unwrap implements [age.Identity].
func (a *passphrasePrompt) Unwrap(stanzas []*age.Stanza) ([]byte, error) {
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
