package main

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

	"github.com/agentmesh/agentmesh/node/atomicfile"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// The files of a data directory.
const (
	fileKey        = "signing.key" // the private signing key
	fileAge        = "age.key"     // the age identity; its recipient stands on the card
	fileCredential = "credential"  // the bearer that owns the card in directories
	fileCard       = "card.json"   // the card as last published; it keeps the agent id
	fileDatabase   = "agentmesh.db"
	fileConfig     = "agentmesh.yaml"
	filePID        = "pid" // of the process that has the database open
	fileRetired    = "retired-keys"
	dirACME        = "acme" // a folder for each ACME authority: account key and certificate
)

// home is a data directory: everything that one agent owns. It is 0700, and what is secret in it is 0600.
type home struct{ dir string }

func (h home) path(name string) string { return filepath.Join(h.dir, name) }

// openHome returns the data directory, made where it is missing. One that other users may look into is refused. A
// restore that was decided and not finished is finished.
func openHome(dir string) (home, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return home{}, failHint(exitConfig, fmt.Errorf("make the data directory: %w", err), "name another one with --data")
	}
	info, err := os.Stat(dir)
	if err != nil {
		return home{}, fail(exitConfig, fmt.Errorf("open the data directory: %w", err))
	}
	if runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		return home{}, failHint(exitConfig, fmt.Errorf("the data directory %s is open to other users", dir), "chmod 700 "+dir)
	}
	if err := (home{dir}).finishReplace(); err != nil {
		return home{}, err
	}
	return home{dir}, nil
}

// initialised says whether the directory holds an agent.
func (h home) initialised() bool {
	_, err := os.Lstat(h.path(fileCard))
	return err == nil
}

// hasDatabase says whether a serve or an init ran here. A file without a byte is what is left of a database.
func (h home) hasDatabase() bool {
	info, err := os.Stat(h.path(fileDatabase))
	return err == nil && info.Size() > 0 || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// lostDatabase says whether there is an agent whose database has gone: it is made before the card.
func (h home) lostDatabase() bool { return h.initialised() && !h.hasDatabase() }

var errNoDatabase = errors.New("the database is missing")

func noAgent(dir string) error {
	return failHint(exitConfig, fmt.Errorf("there is no agent in %s", dir), "make one with: agentmesh init, or start with: agentmesh serve")
}

// maxAgesBefore bounds the age keys that are read beside the one on the card.
const maxAgesBefore = 4

// secrets are what a data directory holds beside the database.
type secrets struct {
	key        *signing.PrivateKey
	age        *signing.PrivateKey   // the age identity: its recipient is on the card
	agesBefore []*signing.PrivateKey // that were on it, and open what is still sealed to them
	credential client.Credential
}

// create makes what is missing of a new agent's secrets. passphrase, where it is not nil, encrypts both keys.
// In a directory that holds an agent already nothing is made anew: a lost key is a restore, not a new identity.
func (h home) create(passphrase []byte) error {
	key, err := signing.GenerateEd25519()
	if err != nil {
		return fmt.Errorf("make the signing key: %w", err)
	}
	if err := signing.WriteKeyFile(h.path(fileKey), key, passphrase); err != nil && !errors.Is(err, fs.ErrExist) {
		return fail(exitConfig, fmt.Errorf("write the signing key: %w", err))
	}
	age, err := generate(string(signing.KindAge))
	if err != nil {
		return fmt.Errorf("make the age key: %w", err)
	}
	if err := signing.WriteKeyFile(h.path(fileAge), age, passphrase); err != nil && !errors.Is(err, fs.ErrExist) {
		return fail(exitConfig, fmt.Errorf("write the age key: %w", err))
	}
	if err := h.writeNew(fileCredential, string(client.NewCredential())+"\n"); err != nil {
		return fail(exitConfig, fmt.Errorf("write the credential: %w", err))
	}
	return nil
}

// writeNew writes a file of mode 0600 whole or not at all; one that exists stays.
func (h home) writeNew(name, content string) error {
	if _, err := os.Lstat(h.path(name)); err == nil {
		return nil
	}
	return atomicfile.Write(h.path(name), []byte(content))
}

// secrets reads the secrets. A file that other users may read stops here (AM-7).
func (h home) secrets(passphrase func() ([]byte, error)) (secrets, error) {
	var s secrets
	var err error
	if s.key, err = signing.ReadKeyFile(h.path(fileKey), passphrase); err != nil {
		return s, h.secretFault(fileKey, err)
	}
	if s.age, err = signing.ReadKeyFile(h.path(fileAge), passphrase); err != nil {
		return s, h.secretFault(fileAge, err)
	}
	if s.age.Public().Kind() != signing.KindAge {
		return s, h.secretFault(fileAge, errors.New("no age identity"))
	}
	before, err := filepath.Glob(filepath.Join(h.path(fileRetired), fileAge+"*"))
	if err != nil {
		return s, h.secretFault(fileRetired, err)
	}
	for _, path := range before[:min(len(before), maxAgesBefore)] {
		key, err := signing.ReadKeyFile(path, passphrase)
		if err != nil {
			return s, fail(exitConfig, fmt.Errorf("%s: %w", path, err))
		}
		s.agesBefore = append(s.agesBefore, key)
	}
	credential, err := h.readSecret(fileCredential)
	if err != nil {
		return s, h.secretFault(fileCredential, err)
	}
	s.credential = client.Credential(bytes.TrimSpace(credential))
	return s, nil
}

func (h home) secretFault(name string, err error) error {
	err = fmt.Errorf("%s: %w", h.path(name), err)
	switch {
	case errors.Is(err, signing.ErrKeyFileMode):
		return failHint(exitConfig, err, "chmod 600 "+h.path(name))
	case errors.Is(err, fs.ErrNotExist) && name == fileCredential:
		return failHint(exitConfig, err, "restore it from a backup, or let agentmesh serve make a new one, which directories take when the card has ended")
	case errors.Is(err, fs.ErrNotExist):
		return failHint(exitConfig, err, "restore it from a backup, or make a new key that peers have to accept: agentmesh keys generate"+kindFlag(name)+" "+h.path(name))
	}
	return fail(exitConfig, err)
}

// kindFlag is the flag with which keys generate makes a key for a file of the data directory.
func kindFlag(name string) string {
	if name == fileAge {
		return " --kind age"
	}
	return ""
}

// readSecret reads a file that nobody else may read.
func (h home) readSecret(name string) ([]byte, error) {
	info, err := os.Lstat(h.path(name))
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		return nil, signing.ErrKeyFileMode
	}
	return os.ReadFile(h.path(name))
}

// card reads the stored card; a null value where there is none.
func (h home) card() (wire.Value, error) {
	data, err := os.ReadFile(h.path(fileCard))
	if errors.Is(err, fs.ErrNotExist) {
		return wire.Value{}, nil
	}
	if err != nil {
		return wire.Value{}, fail(exitConfig, fmt.Errorf("read the card: %w", err))
	}
	v, err := wire.ParseObject(data)
	if err != nil {
		return wire.Value{}, fail(exitConfig, fmt.Errorf("%s: %w", h.path(fileCard), err))
	}
	return v, nil
}

// saveCard stores the card whole.
func (h home) saveCard(card wire.Value) error {
	if err := atomicfile.Write(h.path(fileCard), append(card.JSON(), '\n')); err != nil {
		return fail(exitConfig, fmt.Errorf("write the card: %w", err))
	}
	return nil
}

// retired names the file of a signing key from before a rotation, by the first digits of its fingerprint.
func (h home) retired(digits string) string {
	return filepath.Join(h.path(fileRetired), fileKey+"."+digits[:min(len(digits), 16)])
}

// saveKey puts a new signing key in place of the old one, which is kept as it was, encrypted or not: until every directory
// has the new card, only the old key can vouch for the new one (AM-60).
func (h home) saveKey(key, was *signing.PrivateKey, passphrase []byte) error {
	next := h.path(fileKey + "." + strings.ToLower(rand.Text()[:8]))
	if err := signing.WriteKeyFile(next, key, passphrase); err != nil {
		return fmt.Errorf("write the new signing key: %w", err)
	}
	old, err := os.ReadFile(h.path(fileKey))
	if err != nil {
		return fmt.Errorf("keep the old signing key: %w", err)
	}
	if err := os.MkdirAll(h.path(fileRetired), 0o700); err != nil {
		return fmt.Errorf("keep the old signing key: %w", err)
	}
	_, digits, _ := strings.Cut(was.Public().Fingerprint(), ":")
	if err := atomicfile.Write(h.retired(digits), old); err != nil {
		return fmt.Errorf("keep the old signing key: %w", err)
	}
	if err := os.Rename(next, h.path(fileKey)); err != nil {
		return fmt.Errorf("put the new signing key in place: %w", err)
	}
	return nil
}

// holder is the process that has the database open, 0 where nobody says so.
func (h home) holder() int {
	data, err := os.ReadFile(h.path(filePID))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0
	}
	return pid
}

// user names the process that has the database open.
func (h home) user() string {
	if pid := h.holder(); pid > 0 {
		return fmt.Sprintf("pid %d", pid)
	}
	return "another process"
}

// inUse says who has the database.
func (h home) inUse() error {
	return failHint(exitUnavailable, fmt.Errorf("the data directory %s is %w by %s", h.dir, errInUse, h.user()), "stop it, or use another directory with --data")
}

// hold says that this process has the database open; the returned function takes it back.
func (h home) hold() (release func(), err error) {
	if err := atomicfile.Write(h.path(filePID), []byte(strconv.Itoa(os.Getpid())+"\n")); err != nil {
		return nil, fail(exitConfig, fmt.Errorf("write the pid file: %w", err))
	}
	return func() { os.Remove(h.path(filePID)) }, nil // a file that stays names a pid that is gone; the lock decides
}
