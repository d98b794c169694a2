package bolt

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/engine"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// move imports what a store exports into a new file.
func move(t *testing.T, s *Store, path string) *Store {
	t.Helper()
	_, err := Import(t.Context(), path, func(put func(engine.Row) error) (engine.Numbers, error) { return s.Export(t.Context(), put) })
	if err != nil {
		t.Fatal(err)
	}
	if err := Check(t.Context(), path); err != nil {
		t.Error(err)
	}
	moved, err := Open(t.Context(), path, Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = moved.Close() })
	return moved
}

// TestExport compares everything in a database with its copy.
func TestExport(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "db"), Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	lease := storetest.Fill(t, s)
	moved := move(t, s, filepath.Join(t.TempDir(), "db"))
	if want, got := storetest.Content(t, s), storetest.Content(t, moved); !slices.Equal(want, got) {
		t.Errorf("the copy differs:\n%q\n%q", want, got)
	}
	storetest.WantContinued(t, moved, lease)
}

// TestImportRefusals checks what an import does not touch, and what it leaves behind.
func TestImportRefusals(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "db"), Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	storetest.Fill(t, s)
	fill := func(put func(engine.Row) error) (engine.Numbers, error) { return s.Export(t.Context(), put) }
	if _, err := Import(t.Context(), s.path, fill); !errors.Is(err, engine.ErrNotEmpty) {
		t.Errorf("Import into a full database = %v", err)
	}
	path := filepath.Join(t.TempDir(), "db")
	broken := errors.New("broken")
	n := 0
	if _, err := Import(t.Context(), path, func(put func(engine.Row) error) (engine.Numbers, error) {
		return s.Export(t.Context(), func(r engine.Row) error {
			if n++; n == 50 {
				return broken
			}
			return put(r)
		})
	}); !errors.Is(err, broken) {
		t.Fatalf("Import = %v", err)
	}
	if _, err := Open(t.Context(), path, Config{}); !errors.Is(err, engine.ErrUnfinished) {
		t.Errorf("Open after an import that failed = %v", err)
	}
	if err := Check(t.Context(), path); !errors.Is(err, engine.ErrUnfinished) {
		t.Errorf("Check after an import that failed = %v", err)
	}
	if moved := move(t, s, path); !slices.Equal(storetest.Content(t, s), storetest.Content(t, moved)) {
		t.Error("the copy differs after a second attempt")
	}

	// A row that the new file loses or changes is found before the file gets its name.
	path = filepath.Join(t.TempDir(), "db")
	lying := func(put func(engine.Row) error) (engine.Numbers, error) {
		return s.Export(t.Context(), func(r engine.Row) error {
			if r.Kind == engine.KindRecord {
				r.Key = []byte("\x01ab") // of every record
			}
			return put(r)
		})
	}
	if _, err := Import(t.Context(), path, lying); !errors.Is(err, ErrDamaged) {
		t.Errorf("Import of records with one key = %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a wrong copy got its name")
	}
}

// TestExportDamaged checks that damaged rows are named, and that an import with no row leaves no trace.
func TestExportDamaged(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "db"), Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	storetest.Fill(t, s)
	if err := s.db.Update(func(tx *bbolt.Tx) error {
		b := bucketRecords.in(tx)
		key := engine.RecordKey("copied", "k2\x00\xff")
		damaged := slices.Clone(b.raw.Get(key))
		damaged[3] ^= 1
		return b.raw.Put(key, damaged)
	}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "db")
	_, err = Import(context.Background(), path, func(put func(engine.Row) error) (engine.Numbers, error) { return s.Export(t.Context(), put) })
	want := bucketRecords.damageError(engine.RecordKey("copied", "k2\x00\xff"), "the checksum does not match")
	if !errors.Is(err, store.ErrDamaged) || err == nil || !strings.Contains(err.Error(), want.Error()) {
		t.Errorf("Import = %v, want %v", err, want)
	}
	if _, err := os.Stat(ImportPath(path)); err == nil {
		t.Error("an import of nothing left a file")
	}
}
