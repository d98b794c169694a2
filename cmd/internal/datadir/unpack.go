package datadir

import (
	"archive/zip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"syscall"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// Restore unpacks an archive into the data directory, which must be empty or missing.
func (d Dir) Restore(ctx context.Context, archive *Archive) (err error) {
	_, statErr := os.Stat(string(d))
	if d, err = Open(string(d)); err != nil {
		return err
	}
	defer func() {
		if errors.Is(statErr, fs.ErrNotExist) {
			_ = os.Remove(string(d)) // fails, as it should, if the directory is not empty
		}
	}()
	if err := d.checkOwner(string(d)); err != nil {
		return err
	}
	release, err := d.lockForRestore()
	if err != nil {
		return err
	}
	defer release()
	stage, err := os.MkdirTemp(string(d), PrefixRestore+"*") // mode 0700
	if err != nil {
		return exit.Fail(exit.Config, fmt.Errorf("restore: %w", err))
	}
	defer func() { _ = os.RemoveAll(stage) }() // a successful restore has renamed it
	if err := unpack(archive.zip, stage); err != nil {
		return err
	}
	if err := Dir(stage).verifyRestore(ctx); err != nil {
		return exit.Fail(exit.Input, fmt.Errorf("the archive: %w", err))
	}
	return d.place(stage)
}

// lockForRestore refuses a directory that another process uses, and a directory with content. It keeps other processes
// from opening the directory until the caller calls release.
func (d Dir) lockForRestore() (release func(), err error) {
	unlock, err := d.lockBriefly()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			unlock()
		}
	}()
	names, _, err := d.listEntries()
	switch {
	case err != nil:
		return nil, exit.Fail(exit.Config, fmt.Errorf("restore: %w", err))
	case len(names) > 0:
		return nil, exit.FailHint(exit.Config, fmt.Errorf("the data directory %s is not empty", string(d)), "restore into a new directory with --data")
	}
	d.removeStale()
	return unlock, nil
}

// verifyRestore checks the database and, as far as possible without a passphrase, the keys of an unpacked archive.
func (d Dir) verifyRestore(ctx context.Context) error {
	if err := bolt.Check(ctx, d.Path(FileDatabase)); err != nil {
		return err
	}
	if !d.HasAgent() {
		return nil // a directory without a node has no keys
	}
	noPassphrase := func() ([]byte, error) { return nil, signing.ErrNoPassphrase }
	if err := d.CheckSecrets(noPassphrase); err != nil && !errors.Is(err, signing.ErrNoPassphrase) {
		return err
	}
	return nil
}

// Archive is an open archive.
type Archive struct {
	zip      *zip.Reader
	file     *os.File
	Manifest Manifest
}

// Close closes the archive's file.
func (a *Archive) Close() error { return a.file.Close() }

// OpenArchive opens an archive. It decrypts an encrypted archive with the age identities that identity returns, or with
// a passphrase. identity is nil if the user named no identity file.
func OpenArchive(file string, identity, passphrase func() ([]byte, error)) (_ *Archive, err error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, exit.FailHint(exit.Input, fmt.Errorf("there is no file %s", file), "name an archive that agentmesh backup wrote")
	}
	if err != nil {
		return nil, exit.Fail(exit.Input, fmt.Errorf("read archive: %w", err))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return nil, exit.Fail(exit.Input, fmt.Errorf("read archive: %w", err))
	}
	plain, size := io.ReaderAt(f), info.Size()
	head := make([]byte, 32)
	n, _ := f.ReadAt(head, 0) // a file that is too short fails below
	if signing.IsAgeFile(head[:n]) {
		if plain, size, err = decrypt(f, size, identity, passphrase); err != nil {
			return nil, err
		}
	}
	z, err := zip.NewReader(plain, size)
	if err != nil {
		return nil, exit.Fail(exit.Input, fmt.Errorf("read archive: %w", err))
	}
	manifest, err := readManifest(z)
	if err != nil {
		return nil, err
	}
	return &Archive{z, f, manifest}, nil
}

// decrypt returns the decrypted content of an archive and its size.
func decrypt(f *os.File, size int64, identity, passphrase func() ([]byte, error)) (io.ReaderAt, int64, error) {
	var identities []byte
	if identity != nil {
		var err error
		if identities, err = identity(); err != nil {
			return nil, 0, exit.Fail(exit.Input, fmt.Errorf("read the identity: %w", err))
		}
	}
	asked := false
	plain, length, err := signing.OpenAgeFile(f, size, identities, func() ([]byte, error) { asked = true; return passphrase() })
	switch {
	case errors.Is(err, signing.ErrAge) && asked:
		return nil, 0, exit.Fail(exit.Input, errors.New("another passphrase opens the archive"))
	case errors.Is(err, signing.ErrAge) && identity == nil:
		return nil, 0, exit.FailHint(exit.Input, errors.New("the archive is encrypted to a key"), "name the file with its age identity: --identity FILE")
	case errors.Is(err, signing.ErrAge):
		return nil, 0, exit.Fail(exit.Input, errors.New("the archive is encrypted to another key"))
	case err != nil:
		return nil, 0, exit.Fail(exit.Input, fmt.Errorf("decrypt archive: %w", err))
	}
	return plain, length, nil
}

func readManifest(z *zip.Reader) (Manifest, error) {
	var m Manifest
	f, err := z.Open(fileManifest)
	if err != nil {
		return m, exit.Fail(exit.Input, errors.New("the file is not a backup that agentmesh backup wrote"))
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 1<<18)) // many times the size of a manifest
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	switch {
	case err != nil:
		return m, exit.Fail(exit.Input, fmt.Errorf("read archive: %w", err))
	case m.Format != archiveFormat:
		return m, exit.Fail(exit.Input, fmt.Errorf("the archive has format %d, this program reads format %d", m.Format, archiveFormat))
	}
	return m, nil
}

// unpack writes the files of an archive into dir. It refuses an archive with entries that no backup contains.
func unpack(z *zip.Reader, dir string) error {
	root, err := os.OpenRoot(dir) // no entry can write outside dir
	if err != nil {
		return exit.Fail(exit.Config, err)
	}
	defer root.Close()
	if len(z.File) > 2*maxOwnFiles {
		return exit.Fail(exit.Input, errors.New("the archive has more files than a backup may have"))
	}
	remaining := int64(maxOwnBytes + maxOwnBytes/16) // bytes that the files except the database may have, with room for the program's files
	for _, f := range z.File {
		if f.Name == fileManifest {
			continue
		}
		isDatabase := f.Name == FileDatabase
		if !fs.ValidPath(f.Name) || !filepath.IsLocal(filepath.FromSlash(f.Name)) || !f.Mode().IsRegular() || !isDatabase && isTransientPath(f.Name) {
			return exit.Fail(exit.Input, fmt.Errorf("the archive contains %q, which no backup contains", f.Name))
		}
		mode, limit := f.Mode().Perm(), remaining
		if isDatabase {
			limit = math.MaxInt64
		}
		if isDatabase || isProgramFile(f.Name) {
			mode = 0o600
		}
		n, err := unpackFile(root, f, mode, limit)
		if errors.Is(err, syscall.ENOSPC) {
			return ExplainDiskFull(fmt.Errorf("unpack %q: %w", f.Name, err))
		}
		if err != nil {
			return exit.Fail(exit.Input, fmt.Errorf("unpack %q: %w", f.Name, err))
		}
		if !isDatabase {
			remaining -= n
		}
	}
	return nil
}

var errTooMuch = errors.New("the archive has more data than a backup may have")

// unpackFile writes one file and its parent directories. It returns the size of the file, which must be less than
// limit.
func unpackFile(root *os.Root, f *zip.File, mode fs.FileMode, limit int64) (n int64, err error) {
	in, err := f.Open()
	if err != nil {
		return 0, err
	}
	defer in.Close()
	if err := root.MkdirAll(path.Dir(f.Name), 0o700); err != nil {
		return 0, err
	}
	out, err := root.OpenFile(f.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	if n, err = io.Copy(out, io.LimitReader(in, limit)); err == nil && n == limit {
		err = errTooMuch
	}
	return n, errors.Join(err, out.Chmod(mode), out.Sync(), out.Close())
}
