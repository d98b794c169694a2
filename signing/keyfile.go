package signing

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"

	"filippo.io/age"
	agearmor "filippo.io/age/armor"

	"github.com/agentmesh/agentmesh/node/atomicfile"
	"github.com/agentmesh/agentmesh/node/wire"
)

// ErrKeyFileMode means that other users of the machine can read or write a key file (AM-7).
var ErrKeyFileMode = errors.New("the key file is open to other users")

// ErrNoPassphrase means that a file is encrypted and nobody can enter the passphrase.
var ErrNoPassphrase = errors.New("no passphrase was given")

// maxKeyFile bounds the bytes of a key file, which may be encrypted and armored.
const maxKeyFile = 2 * MaxKeyText

// ReadKeyFile reads a private key. The file must be a regular file and not a link. If other users can read or write it,
// the error matches [ErrKeyFileMode] (not checked on Windows). passphrase is called only for an encrypted file.
func ReadKeyFile(path string, passphrase func() ([]byte, error)) (*PrivateKey, error) {
	data, err := ReadPrivateFile(path)
	if err != nil {
		return nil, fmt.Errorf("read key file: %w", err)
	}
	return ParseKeyFile(data, passphrase)
}

// ParseKeyFile parses the content of a key file. passphrase is called only for an encrypted file.
func ParseKeyFile(data []byte, passphrase func() ([]byte, error)) (*PrivateKey, error) {
	if bytes.HasPrefix(data, []byte(agearmor.Header)) {
		var err error
		if data, err = decryptArmored(data, passphrase); err != nil {
			return nil, fmt.Errorf("open key file: %w", err)
		}
	}
	return ParsePrivateKey(data)
}

// ReadPublicKeys reads the public keys of an agent from a file or, if no file has this name, from the text itself. The
// content is a card, or a key in a form that a card may have. The first result is the public key; the others are the
// other keys of the card, see [OtherKeys]. No error quotes the text, because it may be a private key.
func ReadPublicKeys(fileOrText string) ([]*PublicKey, error) {
	text := fileOrText
	data, fileErr := os.ReadFile(fileOrText)
	switch {
	case fileErr == nil:
		if data, fileErr = wire.FileText(data); fileErr != nil {
			return nil, fileErr
		}
		text = string(data)
	case errors.Is(fileErr, fs.ErrPermission):
		return nil, fileErr
	}
	if tree, err := wire.ParseObject([]byte(text)); err == nil {
		metadata, _ := tree.Get("metadata")
		card := wire.Card{PublicKey: tree.GetStr("public_key"), Metadata: metadata}
		key, err := ParsePublicKey(card.PublicKey)
		return append([]*PublicKey{key}, OtherKeys(card, 1+MaxKeyChain)...), err // 1: the age recipient
	}
	key, err := ParsePublicKey(text)
	if err != nil && errors.Is(fileErr, fs.ErrNotExist) {
		err = fmt.Errorf("there is no file with this name, and the text is not a public key: %w", err)
	}
	return []*PublicKey{key}, err
}

// ReadPrivateFile reads a small file with a secret, with the checks of [ReadKeyFile].
func ReadPrivateFile(path string) ([]byte, error) {
	before, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !before.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	after, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !os.SameFile(before, after) {
		return nil, errors.New("the file changed while it was opened")
	}
	if runtime.GOOS != "windows" && after.Mode().Perm()&0o077 != 0 {
		return nil, ErrKeyFileMode
	}
	data, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err == nil && len(data) > maxKeyFile {
		return nil, errors.New("the file is too large for a key")
	}
	if err != nil {
		return nil, err
	}
	return wire.FileText(data)
}

func decryptArmored(data []byte, passphrase func() ([]byte, error)) ([]byte, error) {
	if passphrase == nil {
		return nil, ErrNoPassphrase
	}
	secret, err := passphrase()
	if err != nil {
		return nil, err
	}
	identity, err := age.NewScryptIdentity(string(secret))
	if err != nil {
		return nil, err
	}
	plain, err := age.Decrypt(agearmor.NewReader(bytes.NewReader(data)), identity)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(plain, maxKeyFile))
}

// WriteKeyFile writes a private key with mode 0600, encrypted if passphrase is not empty. It never overwrites: if path
// exists, the error matches [fs.ErrExist]. After a crash, the file is complete or missing.
func WriteKeyFile(path string, k *PrivateKey, passphrase []byte) error {
	data, err := k.MarshalKeyFile(passphrase)
	if err == nil {
		err = atomicfile.WriteNew(path, data)
	}
	if err != nil {
		return fmt.Errorf("write key file: %w", err)
	}
	return nil
}

// MarshalKeyFile returns the content of a key file, encrypted if passphrase is not empty.
func (k *PrivateKey) MarshalKeyFile(passphrase []byte) ([]byte, error) {
	data, err := k.MarshalText()
	if err == nil && len(passphrase) > 0 {
		data, err = encryptArmored(data, passphrase)
	}
	return data, err
}

// PassphraseWork is log2 of the scrypt cost of encryption with a passphrase: the default of age, about a second. It is
// a variable so that tests can encrypt faster.
var PassphraseWork = 18

func passphraseRecipient(passphrase []byte) (*age.ScryptRecipient, error) {
	r, err := age.NewScryptRecipient(string(passphrase))
	if err != nil {
		return nil, fmt.Errorf("passphrase: %w", err)
	}
	r.SetWorkFactor(PassphraseWork)
	return r, nil
}

func encryptArmored(data, passphrase []byte) ([]byte, error) {
	recipient, err := passphraseRecipient(passphrase)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	armored := agearmor.NewWriter(&out)
	if err := errors.Join(encryptAge(armored, recipient, data), armored.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
