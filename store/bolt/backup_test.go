package bolt

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

func TestBackup(t *testing.T) {
	dir := t.TempDir()
	s := open(t, filepath.Join(dir, "mesh.db"), Config{})
	newCardMix(now).fill(t, s, 500)
	var copied bytes.Buffer
	if n, err := s.Backup(t.Context(), &copied); n != int64(copied.Len()) || err != nil {
		t.Fatalf("Backup = %d, %v, and wrote %d bytes", n, err, copied.Len())
	}
	path := filepath.Join(t.TempDir(), "copy.db")
	if err := os.WriteFile(path, copied.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	other := open(t, path, Config{})
	if n, err := other.Cards().Count(t.Context(), now); n != 500 || err != nil {
		t.Errorf("the copy has %d cards, %v", n, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Backup(ctx, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled Backup = %v", err)
	}
	if _, err := s.Backup(t.Context(), brokenWriter{}); !errors.Is(err, errDisk) {
		t.Errorf("Backup to a broken writer = %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*backup*")); len(left) > 0 || err != nil {
		t.Errorf("backups left %v, %v", left, err)
	}
}

// TestBackupLeftBehind checks that Open removes the copy of everything that a killed process left, and no other file.
func TestBackupLeftBehind(t *testing.T) {
	path := newFilledDB(t)
	left, other := path+".backup-123", path+".backups"
	for _, name := range []string{left, other} {
		if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	open(t, path, Config{})
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("copy left behind: %v", err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("another file: %v", err)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errDisk }

// stalledWriter blocks in Write until the test closes let.
type stalledWriter struct {
	reached chan struct{}
	let     chan struct{}
}

func (w stalledWriter) Write(b []byte) (int, error) {
	w.reached <- struct{}{}
	<-w.let
	return len(b), nil
}

// TestBackupStalled checks that a caller of Backup who stops reading does not delay writers, even when the file must be
// mapped again, and that pages freed meanwhile are reused.
func TestBackupStalled(t *testing.T) {
	s := openNew(t, Config{InitialMmapSize: -1})
	mix := newCardMix(now)
	mix.fill(t, s, 500)
	w := stalledWriter{make(chan struct{}, 1000), make(chan struct{})}
	backup := make(chan error, 1)
	go func() {
		_, err := s.Backup(t.Context(), w)
		backup <- err
	}()
	<-w.reached
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	before := s.db.Stats()
	mix.fill(t, s, 6000) // many times the size of the map
	if _, err := s.Cards().Put(ctx, store.PutCard{Card: mix.Card(6001), Now: now}); err != nil {
		t.Errorf("Put beside a stalled backup = %v", err)
	}
	if after := s.db.Stats(); after.OpenTxN != 0 || before.OpenTxN != 0 {
		t.Errorf("a stalled backup holds %d read transactions", after.OpenTxN)
	}
	close(w.let)
	if err := <-backup; err != nil {
		t.Errorf("Backup = %v", err)
	}
}

func TestCompact(t *testing.T) {
	path := newFilledDB(t)
	s := open(t, path, Config{})
	first, err := s.Cards().Get(t.Context(), "am_00000000000000000000000001", now)
	if err != nil {
		t.Fatal(err)
	}
	for {
		if n, err := s.Sweep(t.Context(), now.Add(365*24*time.Hour), 1000); err != nil {
			t.Fatal(err)
		} else if n < 1000 {
			break
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	dst := filepath.Join(t.TempDir(), "compact.db")
	if err := compact(t, path, dst); err != nil {
		t.Fatal(err)
	}
	large, small := len(readFile(t, path)), len(readFile(t, dst))
	if small >= large {
		t.Errorf("compacting %d bytes made %d", large, small)
	}
	if err := compact(t, path, dst); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Compact over a file = %v", err)
	}
	if err := compact(t, path+"x", dst+"x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Compact of nothing = %v", err)
	}
	c := open(t, dst, Config{})
	again, err := c.Cards().Put(t.Context(), store.PutCard{Card: store.Card{ID: first.ID, Expires: now.Add(time.Hour)}, Now: now})
	if err != nil || again.Seq <= first.Seq || again.Rev <= first.Rev {
		t.Errorf("after compacting, seq %d and rev %d follow %d and %d: %v", again.Seq, again.Rev, first.Seq, first.Rev, err)
	}
}

func TestCompactInPlace(t *testing.T) {
	path := newFilledDB(t)
	s := open(t, path, Config{})
	if _, _, err := CompactInPlace(t.Context(), path); !errors.Is(err, ErrLocked) {
		t.Errorf("CompactInPlace of an open database = %v", err)
	}
	for {
		if n, err := s.Sweep(t.Context(), now.Add(365*24*time.Hour), 1000); err != nil {
			t.Fatal(err)
		} else if n < 1000 {
			break
		}
	}
	if _, err := s.Cards().Put(t.Context(), store.PutCard{Card: store.Card{ID: "am_kept", Expires: now.Add(time.Hour)}, Now: now}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	large := len(readFile(t, path))
	if err := os.WriteFile(path+".backup-compact", []byte("left by a killed process"), 0o600); err != nil {
		t.Fatal(err)
	}

	// Another process opened the old file and waits for its lock. Its writes would be lost.
	waiting, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer waiting.Close()
	before, after, err := CompactInPlace(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if small := len(readFile(t, path)); before != int64(large) || after != int64(small) || small >= large {
		t.Errorf("CompactInPlace = %d, %d; the file had %d bytes and has %d", before, after, large, small)
	}
	if hasName(waiting, path) {
		t.Error("the old file is taken for the database")
	}
	if info, err := os.Stat(path); err != nil || modeTooWide(info.Mode()) {
		t.Errorf("the new file is %v, %v", info.Mode(), err)
	}
	if left, err := filepath.Glob(path + ".backup-*"); err != nil || len(left) > 0 {
		t.Errorf("beside the file: %v, %v", left, err)
	}
	again := open(t, path, Config{})
	if _, err := again.Cards().Get(t.Context(), "am_kept", now); err != nil {
		t.Errorf("after compacting: %v", err)
	}

	if err := os.WriteFile(path+"x", []byte("no database"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := CompactInPlace(t.Context(), path+"x"); !errors.Is(err, ErrDamaged) || string(readFile(t, path+"x")) != "no database" {
		t.Errorf("CompactInPlace of something else = %v", err)
	}
	if _, _, err := CompactInPlace(t.Context(), path+"y"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("CompactInPlace of nothing = %v", err)
	}
}

// TestCompactLinked: if path is a symbolic link to a database on another disk, the copies of the program are made there,
// and the compacted file replaces the database and not the link.
func TestCompactLinked(t *testing.T) {
	path, link := newFilledDB(t), filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(path, link); err != nil {
		t.Skip(err)
	}
	s := open(t, link, Config{})
	if target, err := filepath.EvalSymlinks(link); s.path != target {
		t.Errorf("Open uses %s, want %s, %v", s.path, target, err)
	}
	if _, err := s.Sweep(t.Context(), now.Add(365*24*time.Hour), 1000); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	before, after, err := CompactInPlace(t.Context(), link)
	if err != nil || after >= before || int64(len(readFile(t, path))) != after {
		t.Errorf("CompactInPlace = %d, %d, %v; the file has %d bytes", before, after, err, len(readFile(t, path)))
	}
	if target, err := os.Readlink(link); target != path {
		t.Errorf("after compacting, the link leads to %q, %v", target, err)
	}
}

// TestCompactNothing checks that a copy that is not smaller does not replace the file. An earlier version let a
// database of a few pages grow.
func TestCompactNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mesh.db")
	if err := open(t, path, Config{}).Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 { // the second run finds nothing to remove
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		was := readFile(t, path)
		before, after, err := CompactInPlace(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case after > before || after != int64(len(readFile(t, path))):
			t.Errorf("it had %d bytes and has %d, the file %d", before, after, len(readFile(t, path)))
		case after == before && (!hasName(file, path) || !bytes.Equal(was, readFile(t, path))):
			t.Error("another file of the same size took its place")
		}
		file.Close()
	}
	if left, err := filepath.Glob(path + ".backup-*"); err != nil || len(left) > 0 {
		t.Errorf("beside the file: %v, %v", left, err)
	}
}
