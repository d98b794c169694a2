// Package datadir has the data directory of an agent: its secrets, its card and its database, and how the whole is backed
// up, restored, checked and compacted.
package datadir

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/atomicfile"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// The files of a data directory.
const (
	FileKey        = "signing.key" // the private signing key
	FileAge        = "age.key"     // the age identity; its recipient stands on the card
	FileCredential = "credential"  // the bearer that owns the card in directories
	FileCard       = "card.json"   // the card as last published; it keeps the agent id
	FileDatabase   = "agentmesh.db"
	FileConfig     = "agentmesh.yaml"
	FilePID        = "pid" // of the process that has the database open
	FileRetired    = "retired-keys"
	DirACME        = "acme" // a folder for each ACME authority: account key and certificate
)

// Dir is a data directory: everything that one agent owns. It is 0700, and what is secret in it is 0600.
type Dir string

func (h Dir) Path(name string) string { return filepath.Join(string(h), name) }

// Open returns the data directory, made where it is missing. One that other users may look into is refused. A
// restore that was decided and not finished is finished.
func Open(dir string) (Dir, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", exit.FailHint(exit.Config, fmt.Errorf("make the data directory: %w", err), "name another one with --data")
	}
	info, err := os.Stat(dir)
	if err != nil {
		return "", exit.Fail(exit.Config, fmt.Errorf("open the data directory: %w", err))
	}
	if runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		return "", exit.FailHint(exit.Config, fmt.Errorf("the data directory %s is open to other users", dir), "chmod 700 "+dir)
	}
	if err := Dir(dir).finishReplace(); err != nil {
		return "", err
	}
	return Dir(dir), nil
}

// HasAgent says whether the directory holds an agent.
func (h Dir) HasAgent() bool {
	_, err := os.Lstat(h.Path(FileCard))
	return err == nil
}

// HasDatabase says whether a serve or an init ran here. A file without a byte is what is left of a database.
func (h Dir) HasDatabase() bool {
	info, err := os.Stat(h.Path(FileDatabase))
	return err == nil && info.Size() > 0 || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// LostDatabase says whether there is an agent whose database has gone: it is made before the card.
func (h Dir) LostDatabase() bool { return h.HasAgent() && !h.HasDatabase() }

var ErrNoDatabase = errors.New("the database is missing")

func NoAgent(dir string) error {
	return exit.FailHint(exit.Config, fmt.Errorf("there is no agent in %s", dir), "make one with: agentmesh init, or start with: agentmesh serve")
}

// maxAgesBefore bounds the age keys that are read beside the one on the card.
const maxAgesBefore = 4

// Secrets are what a data directory holds beside the database.
type Secrets struct {
	Key        *signing.PrivateKey
	Age        *signing.PrivateKey   // the age identity: its recipient is on the card
	AgesBefore []*signing.PrivateKey // that were on it, and open what is still sealed to them
	Credential client.Credential
}

// Create makes what is missing of a new agent's secrets. passphrase, where it is not nil, encrypts both keys.
// In a directory that holds an agent already nothing is made anew: a lost key is a restore, not a new identity.
func (h Dir) Create(passphrase []byte) error {
	key, err := signing.GenerateEd25519()
	if err != nil {
		return fmt.Errorf("make the signing key: %w", err)
	}
	if err := signing.WriteKeyFile(h.Path(FileKey), key, passphrase); err != nil && !errors.Is(err, fs.ErrExist) {
		return exit.Fail(exit.Config, fmt.Errorf("write the signing key: %w", err))
	}
	age, err := GenerateKey(string(signing.KindAge))
	if err != nil {
		return fmt.Errorf("make the age key: %w", err)
	}
	if err := signing.WriteKeyFile(h.Path(FileAge), age, passphrase); err != nil && !errors.Is(err, fs.ErrExist) {
		return exit.Fail(exit.Config, fmt.Errorf("write the age key: %w", err))
	}
	if err := h.writeNew(FileCredential, string(client.NewCredential())+"\n"); err != nil {
		return exit.Fail(exit.Config, fmt.Errorf("write the credential: %w", err))
	}
	return nil
}

// GenerateKey makes a key of a kind: ed25519 or age.
func GenerateKey(kind string) (*signing.PrivateKey, error) {
	if kind == string(signing.KindEd25519) {
		return signing.GenerateEd25519()
	}
	identity, _, err := signing.GenerateAge()
	if err != nil {
		return nil, err
	}
	return signing.ParsePrivateKey([]byte(identity))
}

// writeNew writes a file of mode 0600 whole or not at all; one that exists stays.
func (h Dir) writeNew(name, content string) error {
	if _, err := os.Lstat(h.Path(name)); err == nil {
		return nil
	}
	return atomicfile.Write(h.Path(name), []byte(content))
}

// Secrets reads the secrets. A file that other users may read stops here (AM-7).
func (h Dir) Secrets(passphrase func() ([]byte, error)) (Secrets, error) {
	var s Secrets
	var err error
	if s.Key, err = signing.ReadKeyFile(h.Path(FileKey), passphrase); err != nil {
		return s, h.secretFault(FileKey, err)
	}
	if s.Age, err = signing.ReadKeyFile(h.Path(FileAge), passphrase); err != nil {
		return s, h.secretFault(FileAge, err)
	}
	if s.Age.Public().Kind() != signing.KindAge {
		return s, h.secretFault(FileAge, errors.New("no age identity"))
	}
	before, err := filepath.Glob(filepath.Join(h.Path(FileRetired), FileAge+"*"))
	if err != nil {
		return s, h.secretFault(FileRetired, err)
	}
	for _, path := range before[:min(len(before), maxAgesBefore)] {
		key, err := signing.ReadKeyFile(path, passphrase)
		if err != nil {
			return s, exit.Fail(exit.Config, fmt.Errorf("%s: %w", path, err))
		}
		s.AgesBefore = append(s.AgesBefore, key)
	}
	credential, err := h.readSecret(FileCredential)
	if err != nil {
		return s, h.secretFault(FileCredential, err)
	}
	s.Credential = client.Credential(bytes.TrimSpace(credential))
	return s, nil
}

func (h Dir) secretFault(name string, err error) error {
	err = fmt.Errorf("%s: %w", h.Path(name), err)
	switch {
	case errors.Is(err, signing.ErrKeyFileMode):
		return exit.FailHint(exit.Config, err, "chmod 600 "+h.Path(name))
	case errors.Is(err, fs.ErrNotExist) && name == FileCredential:
		return exit.FailHint(exit.Config, err, "restore it from a backup, or let agentmesh serve make a new one, which directories take when the card has ended")
	case errors.Is(err, fs.ErrNotExist):
		return exit.FailHint(exit.Config, err, "restore it from a backup, or make a new key that peers have to accept: agentmesh keys generate"+kindFlag(name)+" "+h.Path(name))
	}
	return exit.Fail(exit.Config, err)
}

// kindFlag is the flag with which keys generate makes a key for a file of the data directory.
func kindFlag(name string) string {
	if name == FileAge {
		return " --kind age"
	}
	return ""
}

// readSecret reads a file that nobody else may read.
func (h Dir) readSecret(name string) ([]byte, error) {
	info, err := os.Lstat(h.Path(name))
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		return nil, signing.ErrKeyFileMode
	}
	return os.ReadFile(h.Path(name))
}

// Card reads the stored card; a null value where there is none.
func (h Dir) Card() (wire.Value, error) {
	data, err := os.ReadFile(h.Path(FileCard))
	if errors.Is(err, fs.ErrNotExist) {
		return wire.Value{}, nil
	}
	if err != nil {
		return wire.Value{}, exit.Fail(exit.Config, fmt.Errorf("read the card: %w", err))
	}
	v, err := wire.ParseObject(data)
	if err != nil {
		return wire.Value{}, exit.Fail(exit.Config, fmt.Errorf("%s: %w", h.Path(FileCard), err))
	}
	return v, nil
}

// SaveCard stores the card whole.
func (h Dir) SaveCard(card wire.Value) error {
	if err := atomicfile.Write(h.Path(FileCard), append(card.JSON(), '\n')); err != nil {
		return exit.Fail(exit.Config, fmt.Errorf("write the card: %w", err))
	}
	return nil
}

// RetiredKey names the file of a signing key from before a rotation, by the first digits of its fingerprint.
func (h Dir) RetiredKey(digits string) string {
	return filepath.Join(h.Path(FileRetired), FileKey+"."+digits[:min(len(digits), 16)])
}

// SaveKey puts a new signing key in place of the old one, which is kept as it was, encrypted or not: until every directory
// has the new card, only the old key can vouch for the new one (AM-60).
func (h Dir) SaveKey(key, was *signing.PrivateKey, passphrase []byte) error {
	next := h.Path(FileKey + "." + strings.ToLower(rand.Text()[:8]))
	if err := signing.WriteKeyFile(next, key, passphrase); err != nil {
		return fmt.Errorf("write the new signing key: %w", err)
	}
	old, err := os.ReadFile(h.Path(FileKey))
	if err != nil {
		return fmt.Errorf("keep the old signing key: %w", err)
	}
	if err := os.MkdirAll(h.Path(FileRetired), 0o700); err != nil {
		return fmt.Errorf("keep the old signing key: %w", err)
	}
	_, digits, _ := strings.Cut(was.Public().Fingerprint(), ":")
	if err := atomicfile.Write(h.RetiredKey(digits), old); err != nil {
		return fmt.Errorf("keep the old signing key: %w", err)
	}
	if err := os.Rename(next, h.Path(FileKey)); err != nil {
		return fmt.Errorf("put the new signing key in place: %w", err)
	}
	return nil
}

// pid is the process that has the database open, 0 where nobody says so.
func (h Dir) pid() int {
	data, err := os.ReadFile(h.Path(FilePID))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0
	}
	return pid
}

// Holder names the process that has the database open.
func (h Dir) Holder() string {
	if pid := h.pid(); pid > 0 {
		return fmt.Sprintf("pid %d", pid)
	}
	return "another process"
}

// InUse says who has the database.
func (h Dir) InUse() error {
	return exit.FailHint(exit.Unavailable, fmt.Errorf("the data directory %s is %w by %s", string(h), ErrInUse, h.Holder()), "stop it, or use another directory with --data")
}

// hold says that this process has the database open; the returned function takes it back.
func (h Dir) hold() (release func(), err error) {
	if err := atomicfile.Write(h.Path(FilePID), []byte(strconv.Itoa(os.Getpid())+"\n")); err != nil {
		return nil, exit.Fail(exit.Config, fmt.Errorf("write the pid file: %w", err))
	}
	return func() { os.Remove(h.Path(FilePID)) }, nil // a file that stays names a pid that is gone; the lock decides
}

// ReplaceCredential makes a new credential if it was lost (AM-83): unlike the keys it is not who the agent is.
func (h Dir) ReplaceCredential() (lost bool, err error) {
	if _, err := os.Lstat(h.Path(FileCredential)); !errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err := h.writeNew(FileCredential, string(client.NewCredential())+"\n"); err != nil {
		return true, exit.Fail(exit.Config, fmt.Errorf("write the credential: %w", err))
	}
	return true, nil
}
