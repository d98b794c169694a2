// Package datadir manages the data directory of an agent: its secrets, its card and its database. It also backs up,
// restores, checks and compacts the directory. Start with [Open].
package datadir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/atomicfile"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// The files and folders of a data directory.
const (
	FileKey        = "signing.key" // the private signing key
	FileAge        = "age.key"     // the age identity, which opens messages that are sealed for the recipient on the card
	FileCredential = "credential"  // the secret from which the bearer token for each directory is derived
	FileCard       = "card.json"   // the card as last published, with the agent id
	FileDatabase   = "agentmesh.db"
	FileConfig     = "agentmesh.yaml"
	FileInvites    = "invites"        // links to join directories, with their codes
	FileLock       = "agentmesh.lock" // locked by a process that uses PostgreSQL, imports into the database file, or restores
	FilePID        = "pid"            // id of the process that has the database open
	DirRetired     = "retired-keys"   // a folder of signing keys and age identities that a rotation replaced
	DirACME        = "acme"           // a folder for each ACME authority: account key and certificate
)

// Dir is the path of a data directory, which holds everything that one agent owns, except a PostgreSQL database. Its
// mode is 0700, and the mode of the secrets in it is 0600.
type Dir string

// Path returns the path of a file in the directory.
func (d Dir) Path(name string) string { return filepath.Join(string(d), name) }

// Open returns the data directory and creates it if it does not exist. It refuses a directory that is open to other
// users, unless it is empty and can be closed to them. It finishes a restore that was interrupted while it moved files
// into place (see restore.go).
func Open(dir string) (Dir, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", exit.FailHint(exit.Config, fmt.Errorf("make the data directory: %w", err), "name another one with --data")
	}
	info, err := os.Stat(dir)
	if err != nil {
		return "", exit.Fail(exit.Config, fmt.Errorf("open the data directory: %w", err))
	}
	if runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 && !closeEmpty(dir) {
		return "", exit.FailHint(exit.Config, fmt.Errorf("the data directory %s is open to other users", dir), "chmod 700 "+dir)
	}
	if err := Dir(dir).finishRestore(); err != nil {
		return "", err
	}
	return Dir(dir), nil
}

// closeEmpty closes an empty directory, such as mkdir makes, to other users. It reports whether it did.
func closeEmpty(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && len(entries) == 0 && os.Chmod(dir, 0o700) == nil
}

// HasAgent reports whether the directory holds an agent.
func (d Dir) HasAgent() bool { return exists(d.Path(FileCard)) }

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// HasDatabase reports whether the directory has a database, which serve and init create. An empty file does not count,
// because it is what remains of a lost database. A file that cannot be examined counts, and so does an import that is
// not finished.
func (d Dir) HasDatabase() bool {
	if exists(d.Path(bolt.ImportPath(FileDatabase))) {
		return true
	}
	info, err := os.Stat(d.Path(FileDatabase))
	return err == nil && info.Size() > 0 || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// HasLostDatabase reports whether the directory has an agent without a database. The database is created before the
// card, so the database must have been lost.
func (d Dir) HasLostDatabase() bool { return d.HasAgent() && !d.HasDatabase() }

// ErrNoDatabase is the error for a lost database.
var ErrNoDatabase = errors.New("the database is missing")

// NoAgent returns the error for a directory without an agent.
func NoAgent(dir string) error {
	return exit.FailHint(exit.Config, fmt.Errorf("there is no agent in %s", dir), "make one with: agentmesh init, or start with: agentmesh serve")
}

// Secrets are the secrets of an agent. Each is a file of the data directory.
type Secrets struct {
	Key        *signing.PrivateKey
	Age        *signing.PrivateKey   // the age identity, which opens messages that are sealed for the recipient on the card
	OldAgeKeys []*signing.PrivateKey // retired age identities, for messages that peers sealed for an earlier card
	Credential client.Credential
}

// GenerateKey makes a key of the given kind: ed25519 or age.
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

// Secrets reads the secrets. It refuses a file that other users may read (AM-7).
func (d Dir) Secrets(passphrase func() ([]byte, error)) (Secrets, error) {
	keys, err := d.Keys()
	if err != nil {
		return Secrets{}, err
	}
	return d.ParseKeys(keys, passphrase)
}

// ParseKeys returns the secrets in keys. An error names the file in this directory.
func (d Dir) ParseKeys(keys Keys, passphrase func() ([]byte, error)) (s Secrets, err error) {
	if s.Key, err = keys.parse(FileKey, passphrase); err != nil {
		return s, d.explainSecret(FileKey, err)
	}
	if s.Age, err = keys.parse(FileAge, passphrase); err != nil {
		return s, d.explainSecret(FileAge, err)
	}
	if s.Age.Public().Kind() != signing.KindAge {
		return s, d.explainSecret(FileAge, errors.New("the file does not hold an age identity"))
	}
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		if !strings.HasPrefix(name, path.Join(DirRetired, FileAge)) {
			continue
		}
		key, err := keys.parse(name, passphrase)
		if err != nil {
			return s, exit.Fail(exit.Config, fmt.Errorf("%s: %w", d.Path(name), err))
		}
		s.OldAgeKeys = append(s.OldAgeKeys, key)
	}
	if keys[FileCredential] == nil {
		return s, d.explainSecret(FileCredential, fs.ErrNotExist)
	}
	if s.Credential = client.Credential(bytes.TrimSpace(keys[FileCredential])); s.Credential == "" {
		return s, exit.FailHint(exit.Config, fmt.Errorf("%s: the file is empty", d.Path(FileCredential)), "restore it from a backup, or delete it and let agentmesh serve make a new one; directories accept the new one only after the registration of the card and the reservation of its id have ended")
	}
	return s, nil
}

// explainSecret adds the path, an exit code and a hint to an error from reading the secret with this file name.
func (d Dir) explainSecret(name string, err error) error {
	err = fmt.Errorf("%s: %w", d.Path(name), err)
	switch {
	case errors.Is(err, signing.ErrKeyFileMode):
		return exit.FailHint(exit.Config, err, "chmod 600 "+d.Path(name))
	case errors.Is(err, fs.ErrNotExist) && name == FileCredential:
		return exit.FailHint(exit.Config, err, "restore it from a backup, or let agentmesh serve make a new one; directories accept the new one only after the registration of the card and the reservation of its id have ended")
	case errors.Is(err, fs.ErrNotExist) && name == FileAge:
		return exit.FailHint(exit.Config, err, "restore it from a backup, or make a new key, which cannot open messages sealed to the old one: agentmesh keys generate --kind age "+d.Path(name))
	case errors.Is(err, fs.ErrNotExist):
		return exit.FailHint(exit.Config, err, "restore it from a backup, or make a new key that peers have to accept: agentmesh keys generate "+d.Path(name))
	}
	return exit.Fail(exit.Config, err)
}

// Card reads the stored card. It returns a null value if the directory has no card.
func (d Dir) Card() (wire.Value, error) {
	data, err := os.ReadFile(d.Path(FileCard))
	if errors.Is(err, fs.ErrNotExist) {
		return wire.Value{}, nil
	}
	if err != nil {
		return wire.Value{}, exit.Fail(exit.Config, fmt.Errorf("read the card: %w", err))
	}
	v, err := wire.ParseObject(data)
	if err != nil {
		return wire.Value{}, exit.Fail(exit.Config, fmt.Errorf("%s: %w", d.Path(FileCard), err))
	}
	return v, nil
}

// SaveCard atomically stores the card.
func (d Dir) SaveCard(card wire.Value) error {
	if err := atomicfile.Write(d.Path(FileCard), CardFile(card)); err != nil {
		return exit.Fail(exit.Config, fmt.Errorf("write the card: %w", err))
	}
	return nil
}

// CardFile returns the content of the file of a card.
func CardFile(card wire.Value) []byte { return append(card.JSON(), '\n') }

// RetiredKey returns the path of a signing key that a rotation replaced. digits are the hex digits of its fingerprint.
func (d Dir) RetiredKey(digits string) string {
	return filepath.Join(d.Path(DirRetired), retiredName(digits))
}

// HasRetired reports whether the signing key with this fingerprint is among the retired keys.
func (d Dir) HasRetired(fingerprint string) bool {
	_, digits, _ := strings.Cut(fingerprint, ":")
	return exists(d.RetiredKey(digits))
}

func retiredName(digits string) string { return FileKey + "." + digits[:min(len(digits), 16)] }

// readPID returns the id of the process that has the database open, or 0 if it is unknown.
func (d Dir) readPID() int {
	data, err := os.ReadFile(d.Path(FilePID))
	if err != nil {
		return 0
	}
	text, _, _ := strings.Cut(strings.TrimSpace(string(data)), " ")
	pid, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return pid
}

// servingMark follows the id in the pid file while the process listens on the owner's socket.
const servingMark = " serves\n"

// IsServed reports whether the process that has the database open listens on the owner's socket, as far as it knows.
func (d Dir) IsServed() bool {
	data, err := os.ReadFile(d.Path(FilePID))
	return err == nil && strings.HasSuffix(string(data), servingMark)
}

// MarkServing records that this process listens on the owner's socket until ctx ends, and returns then. Without it, a
// command that finds no socket cannot know this process from one that starts or stops.
func (d Dir) MarkServing(ctx context.Context) {
	pid := strconv.Itoa(os.Getpid())
	atomicfile.Write(d.Path(FilePID), []byte(pid+servingMark)) // without the mark, commands only wait longer
	<-ctx.Done()
	atomicfile.Write(d.Path(FilePID), []byte(pid+"\n"))
}

// Holder describes the process that has the database open.
func (d Dir) Holder() string {
	if pid := d.readPID(); pid > 0 {
		return fmt.Sprintf("pid %d", pid)
	}
	return "another process"
}

// InUse returns the error for a directory that another process uses. The error names the process.
func (d Dir) InUse() error {
	return exit.FailHint(exit.Unavailable, fmt.Errorf("the data directory %s is %w by %s", string(d), ErrInUse, d.Holder()), "stop it, or use another directory with --data")
}

// writePID records in the pid file that this process has the database open. The returned function removes the file.
func (d Dir) writePID() (release func(), err error) {
	if err := atomicfile.Write(d.Path(FilePID), []byte(strconv.Itoa(os.Getpid())+"\n")); err != nil {
		return nil, exit.Fail(exit.Config, fmt.Errorf("write the pid file: %w", err))
	}
	return func() { os.Remove(d.Path(FilePID)) }, nil // a stale pid file is harmless: the lock decides
}
