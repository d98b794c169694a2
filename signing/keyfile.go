package signing

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"filippo.io/age"
	agearmor "filippo.io/age/armor"

	"github.com/agentmesh/agentmesh/node/atomicfile"
)

// ErrKeyFileMode is what reading a key file returns that other users of the machine may read or write (AM-7).
var ErrKeyFileMode = errors.New("the key file is open to other users")

// ErrNoPassphrase is what reading an encrypted file returns where nobody can give the passphrase.
var ErrNoPassphrase = errors.New("it is encrypted and no passphrase was given")

// maxKeyFile bounds what is read of a key file: an armored, encrypted key of [MaxKeyText].
const maxKeyFile = 2 * MaxKeyText

// ReadKeyFile reads a private key. The file must be a regular one, not a link, and not open to other users, else
// the error matches [ErrKeyFileMode] (not checked on Windows). passphrase is called for a file that is encrypted.
func ReadKeyFile(path string, passphrase func() ([]byte, error)) (*PrivateKey, error) {
	data, err := readPrivateFile(path)
	if err != nil {
		return nil, fmt.Errorf("read key file: %w", err)
	}
	if bytes.HasPrefix(data, []byte(agearmor.Header)) {
		if data, err = unlock(data, passphrase); err != nil {
			return nil, fmt.Errorf("open key file: %w", err)
		}
	}
	return ParsePrivateKey(data)
}

func readPrivateFile(path string) ([]byte, error) {
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
	return data, err
}

func unlock(data []byte, passphrase func() ([]byte, error)) ([]byte, error) {
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

// WriteKeyFile writes a private key with mode 0600, encrypted where a passphrase is given. It never overwrites:
// where path exists the error matches [fs.ErrExist]. After a crash there is the whole file or none.
func WriteKeyFile(path string, k *PrivateKey, passphrase []byte) error {
	data, err := k.MarshalText()
	if err == nil && len(passphrase) > 0 {
		data, err = lock(data, passphrase)
	}
	if err == nil {
		err = atomicfile.WriteNew(path, data)
	}
	if err != nil {
		return fmt.Errorf("write key file: %w", err)
	}
	return nil
}

// PassphraseWork is log2 of the scrypt cost of what is encrypted under a passphrase: age's own default, about a second. It is
// a variable for tests, which encrypt much that nobody guesses at.
var PassphraseWork = 18

// passphraseRecipient returns what encrypts under a passphrase.
func passphraseRecipient(passphrase []byte) (*age.ScryptRecipient, error) {
	r, err := age.NewScryptRecipient(string(passphrase))
	if err != nil {
		return nil, fmt.Errorf("passphrase: %w", err)
	}
	r.SetWorkFactor(PassphraseWork)
	return r, nil
}

func lock(data, passphrase []byte) ([]byte, error) {
	recipient, err := passphraseRecipient(passphrase)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	armored := agearmor.NewWriter(&out)
	w, err := age.Encrypt(armored, recipient)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	if err := errors.Join(w.Close(), armored.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
