package bolt

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/engine"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// TestExportDamaged checks that damaged rows are named before any row is copied.
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
	copied := 0
	_, err = s.Export(t.Context(), func(engine.Row) error { copied++; return nil })
	want := bucketRecords.damageError(engine.RecordKey("copied", "k2\x00\xff"), "the checksum does not match")
	if !errors.Is(err, store.ErrDamaged) || !strings.Contains(err.Error(), want.Error()) || copied > 0 {
		t.Errorf("Export = %v after %d rows, want %v", err, copied, want)
	}
}
