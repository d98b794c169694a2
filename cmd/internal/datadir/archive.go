package datadir

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/atomicfile"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// An archive is a zip file with the manifest, the files of the data directory with their modes, and a consistent copy
// of the database. It contains the private keys.

const fileManifest = "agentmesh-backup.json"

// Manifest describes an archive.
type Manifest struct {
	Format  int       `json:"format"`
	AgentID string    `json:"agent_id,omitempty"`
	Made    time.Time `json:"made"`
	Version string    `json:"version"`            // of the program that made the archive
	LeftOut []string  `json:"left_out,omitempty"` // files that could not go into the archive, each with the reason
}

const archiveFormat = 1

// WriteArchive writes an archive of the data directory to w. version is the version of the program.
func (d Dir) WriteArchive(ctx context.Context, w io.Writer, s store.Store, version string) error {
	z := zip.NewWriter(w)
	card, err := d.Card()
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(string(d))
	if err != nil {
		return fmt.Errorf("read the data directory: %w", err)
	}
	defer root.Close()
	content, err := collectFiles(root)
	if err != nil {
		return err
	}
	manifest := wire.MustMarshal(Manifest{archiveFormat, card.GetStr("agent_id"), time.Now().UTC(), version, content.leftOut})
	if err := addEntry(z, fileManifest, 0o600, bytes.NewReader(manifest)); err != nil {
		return err
	}
	for _, name := range content.files {
		if err := addFile(z, root, name); err != nil && !errors.Is(err, fs.ErrNotExist) { // a file may have been deleted meanwhile
			return err
		}
	}
	f, err := z.Create(FileDatabase)
	if err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	if _, err := s.Backup(ctx, f); err != nil {
		return fmt.Errorf("copy the database: %w", err)
	}
	return z.Close()
}

// addFile copies a file with its mode. It copies at most maxOwnBytes, because the file may grow meanwhile.
func addFile(z *zip.Writer, root *os.Root, name string) error {
	f, err := root.Open(name)
	if err != nil {
		return fmt.Errorf("read for backup: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("read for backup: %w", err)
	}
	return addEntry(z, name, info.Mode().Perm(), io.LimitReader(f, maxOwnBytes))
}

func addEntry(z *zip.Writer, name string, mode fs.FileMode, r io.Reader) error {
	header := &zip.FileHeader{Name: name, Method: zip.Deflate}
	header.SetMode(mode)
	f, err := z.CreateHeader(header)
	if err == nil {
		_, err = io.Copy(f, r)
	}
	if err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	return nil
}

// CopyArchive copies an archive to w, and encrypts it if encryption is not nil.
func CopyArchive(w io.Writer, archive io.Reader, encryption *signing.AgeFile) error {
	if encryption == nil {
		_, err := io.Copy(w, archive)
		return err
	}
	encrypted, err := encryption.Writer(w)
	if err != nil {
		return err
	}
	if _, err := io.Copy(encrypted, archive); err != nil {
		return err // leave encrypted open, so that half an archive does not look complete
	}
	return encrypted.Close()
}

// SaveArchive writes an archive to a temporary file beside name, reads its table of contents back, and only then
// renames it to name. It returns the size of the file and its manifest. An existing file is an error.
func SaveArchive(name string, r io.Reader, encryption *signing.AgeFile) (n int64, manifest Manifest, err error) {
	if exists(name) {
		return 0, manifest, exit.FailHint(exit.Input, fmt.Errorf("%s exists", name), "name another file, because a backup never overwrites one")
	}
	tmp, err := os.CreateTemp(filepath.Dir(name), ".agentmesh-backup-*") // mode 0600
	if errors.Is(err, fs.ErrNotExist) {
		return 0, manifest, exit.Fail(exit.Input, fmt.Errorf("write backup: there is no directory %s", filepath.Dir(name)))
	}
	if err != nil {
		return 0, manifest, exit.Fail(exit.Input, fmt.Errorf("write backup: %w", err))
	}
	defer os.Remove(tmp.Name())
	if err := errors.Join(CopyArchive(tmp, r, encryption), tmp.Sync()); err != nil {
		return n, manifest, ExplainDiskFull(errors.Join(fmt.Errorf("write backup: %w", err), tmp.Close()))
	}
	n, manifest, err = readBack(tmp, encryption)
	if err := errors.Join(err, tmp.Close()); err != nil {
		return n, manifest, exit.Fail(exit.Unavailable, fmt.Errorf("the backup is incomplete: %w", err))
	}
	if err := os.Rename(tmp.Name(), name); err != nil {
		return n, manifest, exit.Fail(exit.Input, fmt.Errorf("write backup: %w", err))
	}
	atomicfile.SyncDir(filepath.Dir(name))
	return n, manifest, nil
}

// readBack reads the size and the manifest of an archive that was just written.
func readBack(f *os.File, encryption *signing.AgeFile) (n int64, manifest Manifest, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, manifest, err
	}
	plain, size := io.ReaderAt(f), info.Size()
	if encryption != nil {
		if plain, size, err = encryption.Reader(f, size); err != nil {
			return 0, manifest, err
		}
	}
	z, err := zip.NewReader(plain, size)
	if err != nil {
		return 0, manifest, err
	}
	manifest, err = readManifest(z)
	return info.Size(), manifest, err
}

// ExplainDiskFull adds an exit code to the error of a failed write, and a hint if the disk is full.
func ExplainDiskFull(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return exit.FailHint(exit.Unavailable, err, "make room on the disk; nothing was changed")
	}
	return exit.Fail(exit.Unavailable, err)
}
