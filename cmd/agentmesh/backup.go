package main

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/atomicfile"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// An archive is a zip: the manifest, the files of the data directory with their modes, and a consistent copy of the
// database. A zip can be written without knowing sizes before, so a backup streams. It holds the private keys.

const fileManifest = "agentmesh-backup.json"

// manifest says what an archive is.
type manifest struct {
	Format  int       `json:"format"`
	AgentID string    `json:"agent_id,omitempty"`
	Made    time.Time `json:"made"`
	Version string    `json:"version"`
	LeftOut []string  `json:"left_out,omitempty"` // of the data directory, with the reason
}

const archiveFormat = 1

// backupTime is how long a reader of the stream may take. Nobody waits for it but the backup itself.
const backupTime = 24 * time.Hour

type backupCmd struct {
	File       string   `arg:"" help:"File to write, which must not exist, or - for standard output. It will hold the private keys."`
	Recipient  []string `placeholder:"AGE1" sep:"none" help:"Encrypt to this age recipient; may be repeated."`
	Passphrase bool     `help:"Encrypt with a passphrase: AGENTMESH_PASSPHRASE_FILE, or asked for."`
}

func (c *backupCmd) Run(ctx context.Context, a *app) (err error) {
	lock, err := c.lock(a)
	if err != nil {
		return err
	}
	o, err := a.owner(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	resp, err := o.do(ctx, "POST", "backup", nil, struct{}{})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data := &counted{Reader: resp.Body}
	stop := a.working("writing the backup", data.String)
	defer stop()
	if c.File == "-" {
		if err := writeArchive(a.out, data, lock); err != nil {
			return roomFault(fmt.Errorf("write backup: %w", err))
		}
		return nil
	}
	n, about, err := saveArchive(c.File, data, lock)
	stop()
	if err != nil {
		return err
	}
	a.noteLeftOut(about)
	holds := "it holds the private keys"
	if lock != nil {
		holds = "it is encrypted; keep its key elsewhere than here"
	}
	a.note("wrote %d bytes to %s; %s", n, c.File, holds)
	return nil
}

// lock is how the archive is encrypted, nil where it is not.
func (c *backupCmd) lock(a *app) (*signing.AgeFile, error) {
	switch {
	case c.Passphrase && len(c.Recipient) > 0:
		return nil, fail(exitUsage, errors.New("an archive is encrypted to recipients or with a passphrase, not both"))
	case c.Passphrase:
		passphrase, err := a.newSecret("the backup")
		if err != nil {
			return nil, fail(exitUsage, err)
		}
		return signing.NewAgeFile(nil, passphrase)
	case len(c.Recipient) > 0:
		lock, err := signing.NewAgeFile(c.Recipient, nil)
		if err != nil {
			return nil, failHint(exitUsage, err, "age-keygen makes a key and prints its recipient")
		}
		return lock, nil
	}
	return nil, nil
}

// writeArchive copies an archive, through lock where there is one.
func writeArchive(w io.Writer, archive io.Reader, lock *signing.AgeFile) error {
	if lock == nil {
		_, err := io.Copy(w, archive)
		return err
	}
	sealed, err := lock.Writer(w)
	if err != nil {
		return err
	}
	if _, err := io.Copy(sealed, archive); err != nil {
		return err // not closed: half an archive must not look like a whole one
	}
	return sealed.Close()
}

// noteLeftOut warns of what is not in an archive.
func (a *app) noteLeftOut(about manifest) {
	for _, what := range about.LeftOut {
		a.note("not in the backup: %s", clean(what))
	}
}

// saveArchive writes an archive next to its place, reads its table of contents back, and only then gives it its name.
func saveArchive(name string, r io.Reader, lock *signing.AgeFile) (n int64, about manifest, err error) {
	if _, err := os.Lstat(name); err == nil {
		return 0, about, fail(exitInput, fmt.Errorf("%s exists", name))
	}
	tmp, err := os.CreateTemp(filepath.Dir(name), ".agentmesh-backup-*") // mode 0600
	if err != nil {
		return 0, about, fail(exitInput, fmt.Errorf("write backup: %w", err))
	}
	defer os.Remove(tmp.Name())
	if err := errors.Join(writeArchive(tmp, r, lock), tmp.Sync()); err != nil {
		return n, about, roomFault(errors.Join(fmt.Errorf("write backup: %w", err), tmp.Close()))
	}
	n, about, err = readBack(tmp, lock)
	if err := errors.Join(err, tmp.Close()); err != nil {
		return n, about, fail(exitUnavailable, fmt.Errorf("the backup is not whole: %w", err))
	}
	if err := os.Rename(tmp.Name(), name); err != nil {
		return n, about, fail(exitInput, fmt.Errorf("write backup: %w", err))
	}
	atomicfile.SyncDir(filepath.Dir(name))
	return n, about, nil
}

// readBack reads the table of contents of an archive that was just written.
func readBack(f *os.File, lock *signing.AgeFile) (n int64, about manifest, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, about, err
	}
	plain, size := io.ReaderAt(f), info.Size()
	if lock != nil {
		if plain, size, err = lock.Reader(f, size); err != nil {
			return 0, about, err
		}
	}
	z, err := zip.NewReader(plain, size)
	if err != nil {
		return 0, about, err
	}
	about, err = readManifest(z)
	return info.Size(), about, err
}

// roomFault says what a full disk means; other errors are as they are.
func roomFault(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return failHint(exitUnavailable, err, "make room on the disk; nothing was changed")
	}
	return fail(exitUnavailable, err)
}

// backupOperations returns the operation that streams an archive.
func (p *process) backupOperations() []owner.Operation {
	return []owner.Operation{
		owner.Raw(http.MethodPost, "/backup", owner.Decide, func(c echo.Context) error {
			if err := p.store.Ping(c.Request().Context()); err != nil {
				return err
			}
			if err := httpapi.KeepOpen(c, backupTime); err != nil {
				return err
			}
			c.Response().Header().Set(echo.HeaderContentType, "application/zip")
			c.Response().WriteHeader(200)
			return p.home.archive(c.Request().Context(), c.Response(), p.store)
		}),
	}
}

// archive writes an archive of the data directory to w.
func (h home) archive(ctx context.Context, w io.Writer, s store.Store) error {
	z := zip.NewWriter(w)
	card, err := h.card()
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(h.dir)
	if err != nil {
		return fmt.Errorf("read the data directory: %w", err)
	}
	defer root.Close()
	held, err := h.contents(root)
	if err != nil {
		return err
	}
	about, err := json.Marshal(manifest{archiveFormat, card.GetStr("agent_id"), time.Now().UTC(), thisBuild().Version, held.leftOut})
	if err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	if err := add(z, fileManifest, 0o600, bytes.NewReader(about)); err != nil {
		return err
	}
	for _, name := range held.files {
		if err := addFile(z, root, name); err != nil && !errors.Is(err, fs.ErrNotExist) { // gone meanwhile is fine
			return err
		}
	}
	f, err := z.Create(fileDatabase)
	if err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	if _, err := s.Backup(ctx, f); err != nil {
		return fmt.Errorf("copy the database: %w", err)
	}
	return z.Close()
}

// addFile copies a file with its mode. One that grows meanwhile is cut at what a backup takes of all of them.
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
	return add(z, name, info.Mode().Perm(), io.LimitReader(f, maxOwnBytes))
}

func add(z *zip.Writer, name string, mode fs.FileMode, r io.Reader) error {
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
