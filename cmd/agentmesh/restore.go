package main

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

	"github.com/agentmesh/agentmesh/store/bolt"
)

type restoreCmd struct {
	File string `arg:"" help:"Archive that backup wrote. The data directory must be empty or missing."`
}

func (c *restoreCmd) Run(ctx context.Context, a *app) error {
	dir, err := a.dataDir()
	if err != nil {
		return err
	}
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return failHint(exitConfig, fmt.Errorf("the data directory %s is not empty", dir), "restore into a new one with --data, or move this one away")
	}
	z, err := zip.OpenReader(c.File)
	if errors.Is(err, fs.ErrNotExist) {
		return failHint(exitInput, fmt.Errorf("there is no file %s", c.File), "name an archive that agentmesh backup wrote")
	}
	if err != nil {
		return fail(exitInput, fmt.Errorf("read archive: %w", err))
	}
	defer z.Close()
	about, err := readManifest(&z.Reader)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return fail(exitConfig, err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".agentmesh-restore-*") // mode 0700
	if err != nil {
		return fail(exitConfig, fmt.Errorf("restore: %w", err))
	}
	defer os.RemoveAll(tmp)
	stop := a.working("unpacking and checking the archive", nil)
	defer stop()
	if err := unpack(&z.Reader, tmp); err != nil {
		return err
	}
	if err := bolt.Check(ctx, filepath.Join(tmp, fileDatabase)); err != nil {
		return fail(exitInput, fmt.Errorf("the database in the archive: %w", err))
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fail(exitConfig, fmt.Errorf("restore: %w", err))
	}
	if err := os.Rename(tmp, dir); err != nil {
		return fail(exitConfig, fmt.Errorf("restore: %w", err))
	}
	stop()
	a.noteLeftOut(about)
	a.note("restored %s into %s, backed up %s", orDash(clean(about.AgentID)), dir, when(about.Made))
	return nil
}

func readManifest(z *zip.Reader) (manifest, error) {
	var m manifest
	f, err := z.Open(fileManifest)
	if err != nil {
		return m, fail(exitInput, errors.New("this is no backup of agentmesh"))
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 1<<18))
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	switch {
	case err != nil:
		return m, fail(exitInput, fmt.Errorf("read archive: %w", err))
	case m.Format != archiveFormat:
		return m, fail(exitInput, fmt.Errorf("the archive has format %d, this program reads %d", m.Format, archiveFormat))
	}
	return m, nil
}

// unpack writes the files of an archive, and refuses an archive that holds what no backup does.
func unpack(z *zip.Reader, dir string) error {
	root, err := os.OpenRoot(dir) // no name leads out of it
	if err != nil {
		return fail(exitConfig, err)
	}
	defer root.Close()
	if len(z.File) > 2*maxOwnFiles {
		return fail(exitInput, errors.New("the archive holds more files than a backup does"))
	}
	own := int64(maxOwnBytes + maxOwnBytes/16) // the program's files as well
	for _, f := range z.File {
		if f.Name == fileManifest {
			continue
		}
		isDatabase := f.Name == fileDatabase
		if !fs.ValidPath(f.Name) || !filepath.IsLocal(filepath.FromSlash(f.Name)) || !f.Mode().IsRegular() || isTransient(f.Name) && !isDatabase {
			return fail(exitInput, fmt.Errorf("the archive holds %q, which no backup does", f.Name))
		}
		mode, limit := f.Mode().Perm(), own
		if isDatabase {
			limit = math.MaxInt64
		}
		if isDatabase || isProgramFile(f.Name) {
			mode = 0o600
		}
		n, err := unpackFile(root, f, mode, limit)
		if err != nil {
			return fail(exitInput, fmt.Errorf("unpack %q: %w", f.Name, err))
		}
		if !isDatabase {
			own -= n
		}
	}
	return nil
}

var errTooMuch = errors.New("the archive holds more than a backup does")

// unpackFile writes one file of at most limit bytes, and the directories that it lies in.
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
