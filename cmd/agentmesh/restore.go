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
	"syscall"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store/bolt"
)

type restoreCmd struct {
	File     string `arg:"" help:"Archive that backup wrote, encrypted or not. The data directory must be empty or missing."`
	Identity string `placeholder:"FILE" help:"File with the age identity of an encrypted archive; - is standard input."`
	Replace  bool   `help:"Put the archive in place of what the data directory holds, which is kept in a folder replaced-… in it."`
}

func (c *restoreCmd) Run(ctx context.Context, a *app) error {
	dir, err := a.dataDir()
	if err != nil {
		return err
	}
	archive, err := c.open(a)
	if err != nil {
		return err
	}
	defer archive.Close()
	about, err := readManifest(archive.Reader)
	if err != nil {
		return err
	}
	_, missing := os.Stat(dir)
	h, err := openHome(dir)
	if err != nil {
		return err
	}
	release, err := c.mayReplace(h)
	if err != nil {
		return err
	}
	defer release()
	stage, err := os.MkdirTemp(dir, prefixRestore+"*") // mode 0700
	if err != nil {
		return fail(exitConfig, fmt.Errorf("restore: %w", err))
	}
	defer func() {
		_ = os.RemoveAll(stage) // it has another name where all went well
		if errors.Is(missing, fs.ErrNotExist) {
			_ = os.Remove(dir) // works where nothing came into it
		}
	}()
	stop := a.working("unpacking and checking the archive", nil)
	defer stop()
	if err := unpack(archive.Reader, stage); err != nil {
		return err
	}
	if err := (home{stage}).checkRestored(ctx); err != nil {
		return fail(exitInput, fmt.Errorf("the archive: %w", err))
	}
	kept, err := h.replaceWith(stage)
	if err != nil {
		return err
	}
	stop()
	a.noteLeftOut(about)
	a.note("restored %s into %s, backed up %s", orDash(clean(about.AgentID)), dir, when(about.Made))
	if kept != "" {
		a.note("what was there before is in %s; delete it when you are sure: it holds private keys", kept)
	}
	return nil
}

// mayReplace refuses a directory that holds something, unless told, or that a process uses. It keeps the database
// that is there from being opened until release.
func (c *restoreCmd) mayReplace(h home) (release func(), err error) {
	held, _, err := h.held()
	if err != nil {
		return nil, fail(exitConfig, fmt.Errorf("restore: %w", err))
	}
	switch {
	case len(held) == 0:
		h.dropUnfinished()
		return func() {}, nil
	case !c.Replace:
		return nil, failHint(exitConfig, fmt.Errorf("the data directory %s is not empty", h.dir), "restore into a new one with --data, or say --replace")
	}
	release, err = bolt.Hold(h.path(fileDatabase))
	if errors.Is(err, bolt.ErrLocked) {
		return nil, h.inUse()
	}
	h.dropUnfinished()
	return release, nil // what is missing or damaged nobody uses
}

// checkRestored says whether what was unpacked is a data directory that works.
func (h home) checkRestored(ctx context.Context) error {
	if err := bolt.Check(ctx, h.path(fileDatabase)); err != nil {
		return err
	}
	if !h.initialised() {
		return nil // a directory without a node has no keys
	}
	locked := func() ([]byte, error) { return nil, signing.ErrNoPassphrase }
	if err := h.checkSecrets(locked); err != nil && !errors.Is(err, signing.ErrNoPassphrase) {
		return err
	}
	return nil
}

// archive is an open one.
type archive struct {
	*zip.Reader
	file *os.File
}

func (a *archive) Close() error { return a.file.Close() }

// open opens the archive and, where it is encrypted, decrypts what is read of it.
func (c *restoreCmd) open(a *app) (_ *archive, err error) {
	f, err := os.Open(c.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, failHint(exitInput, fmt.Errorf("there is no file %s", c.File), "name an archive that agentmesh backup wrote")
	}
	if err != nil {
		return nil, fail(exitInput, fmt.Errorf("read archive: %w", err))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return nil, fail(exitInput, fmt.Errorf("read archive: %w", err))
	}
	plain, size := io.ReaderAt(f), info.Size()
	head := make([]byte, 32)
	n, _ := f.ReadAt(head, 0) // what is too short is no archive either
	if signing.IsAgeFile(head[:n]) {
		if plain, size, err = c.decrypt(a, f, size); err != nil {
			return nil, err
		}
	}
	z, err := zip.NewReader(plain, size)
	if err != nil {
		return nil, fail(exitInput, fmt.Errorf("read archive: %w", err))
	}
	return &archive{z, f}, nil
}

const maxIdentityFile = 1 << 20

func (c *restoreCmd) decrypt(a *app, f *os.File, size int64) (io.ReaderAt, int64, error) {
	var identities []byte
	var err error
	if c.Identity == "-" {
		identities, err = io.ReadAll(io.LimitReader(a.in, maxIdentityFile))
	} else if c.Identity != "" {
		identities, err = os.ReadFile(c.Identity)
	}
	if err != nil {
		return nil, 0, fail(exitInput, fmt.Errorf("read the identity: %w", err))
	}
	plain, length, err := signing.OpenAgeFile(f, size, identities, func() ([]byte, error) { return a.secretFor("the backup") })
	switch {
	case errors.Is(err, signing.ErrAge) && c.Identity == "":
		return nil, 0, failHint(exitInput, errors.New("the archive is encrypted, and nothing here opens it"), "name the file with its age identity: --identity FILE")
	case errors.Is(err, signing.ErrAge):
		return nil, 0, fail(exitInput, errors.New("the archive is encrypted to another key or with another passphrase"))
	case err != nil:
		return nil, 0, fail(exitInput, fmt.Errorf("decrypt archive: %w", err))
	}
	return plain, length, nil
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
		if f.Name == fileManifest || f.Name == httpapi.SocketPointerFile { // an old backup may hold the latter
			continue
		}
		isDatabase := f.Name == fileDatabase
		if !fs.ValidPath(f.Name) || !filepath.IsLocal(filepath.FromSlash(f.Name)) || !f.Mode().IsRegular() || !isDatabase && isTransientPath(f.Name) {
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
		if errors.Is(err, syscall.ENOSPC) {
			return roomFault(fmt.Errorf("unpack %q: %w", f.Name, err))
		}
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
