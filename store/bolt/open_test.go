package bolt

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/engine"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// newFilledDB creates a closed database with rows of every kind.
func newFilledDB(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mesh.db")
	s, err := Open(t.Context(), path, Config{})
	if err != nil {
		t.Fatal(err)
	}
	newCardMix(now).fill(t, s, 300)
	conv := store.Conversation{Key: store.ConvKey{Peer: "p", ID: "c"}, Terms: []string{"open"}, Open: true}
	_, stepErr := s.Steps().Apply(t.Context(), store.Step{
		Conv: &conv, Append: []store.Entry{{MessageID: "m", Raw: storetest.Text(1, 9000)}},
		Replay: &store.Replay{Sender: "p", MessageID: "m", Conv: conv.Key, Expires: now.Add(time.Hour)},
		Records: []store.Change{
			{Record: store.Record{NS: "n", Key: "k", Terms: []string{"t"}, Expires: now.Add(time.Hour)}},
			{Record: store.Record{NS: "w", Key: "1", Due: now, Lane: "l"}}, {Record: store.Record{NS: "w", Key: "2", Due: now, Lane: "l"}},
		},
		Now: now,
	})
	if err := errors.Join(stepErr, s.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestOpenNewerSchema(t *testing.T) {
	path := newFilledDB(t)
	editFile(t, path, func(tx *txn) error {
		bucketMeta.in(tx).put(keySchema, u64(99))
		return nil
	})
	before := readFile(t, path)
	_, err := Open(t.Context(), path, Config{})
	if !errors.Is(err, ErrNewerSchema) || !goldentest.Says(t, "open", strings.ReplaceAll(err.Error(), path, "FILE")) {
		t.Errorf("Open = %v", err)
	}
	if err := Check(t.Context(), path); !errors.Is(err, ErrNewerSchema) {
		t.Errorf("Check = %v", err)
	}
	if string(readFile(t, path)) != string(before) {
		t.Error("a refused file was changed")
	}
}

// editFile changes a closed database, whose tally stays right for the writes through [rows].
func editFile(t *testing.T, path string, fn func(*txn) error) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Update(func(tx *bbolt.Tx) error {
		edit := &txn{reads: reads{tx}, tally: make(tally)}
		if err := fn(edit); err != nil || tx.Bucket(bucketMeta.name) == nil {
			return err
		}
		return edit.saveTally()
	}), db.Close()); err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestOpenDamaged(t *testing.T) {
	whole := readFile(t, newFilledDB(t))
	const page = pageSize
	for name, damage := range map[string]func(b []byte) []byte{
		"text":              func([]byte) []byte { return []byte(strings.Repeat("not a database\n", 1000)) },
		"one byte":          func([]byte) []byte { return []byte{1} },
		"a page and a half": func(b []byte) []byte { return b[:6000] },
		"cut short":         func(b []byte) []byte { return b[:10*page] },
		"both metas": func(b []byte) []byte {
			clear(b[:2*page])
			return b
		},
		"pages of zeros": func(b []byte) []byte {
			clear(b[8*page:])
			return b
		},
		"pages of noise": func(b []byte) []byte {
			for i := 3 * page; i < len(b); i++ {
				b[i] = byte(i*2654435761>>7) | 1
			}
			return b
		},
		"stranger's bucket": func([]byte) []byte {
			path := filepath.Join(t.TempDir(), "other.db")
			editFile(t, path, func(tx *txn) error {
				_, err := tx.CreateBucket([]byte("other"))
				return err
			})
			return readFile(t, path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "mesh.db")
			if err := os.WriteFile(path, damage(append([]byte(nil), whole...)), 0o600); err != nil {
				t.Fatal(err)
			}
			if s, err := Open(t.Context(), path, Config{}); !errors.Is(err, ErrDamaged) {
				t.Errorf("Open = %v, want ErrDamaged", err)
				if err == nil {
					s.Close()
				}
			}
			if err := Check(t.Context(), path); !errors.Is(err, ErrDamaged) {
				t.Errorf("Check = %v, want ErrDamaged", err)
			}
		})
	}
}

// TestDamagedRowLater checks that a row that cannot be decoded fails calls that need it, and no other call.
func TestDamagedRowLater(t *testing.T) {
	path := newFilledDB(t)
	editFile(t, path, func(tx *txn) error {
		bucketRecords.in(tx).put(engine.RecordKey("n", "k"), []byte{1, 1})
		return nil
	})
	if err := Check(t.Context(), path); !errors.Is(err, ErrDamaged) {
		t.Errorf("Check = %v", err)
	}
	s, err := Open(t.Context(), path, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Records().Get(t.Context(), "n", "k", now); !errors.Is(err, ErrDamaged) {
		t.Errorf("Get of the damaged record = %v", err)
	}
	if err := s.Records().Apply(t.Context(), []store.Change{{Record: store.Record{NS: "n", Key: "other"}}}, now); err != nil {
		t.Errorf("Apply to another record = %v", err)
	}
}

func TestCheckFollowsPointers(t *testing.T) {
	for name, edit := range map[string]func(tx *txn) error{
		"id":          func(tx *txn) error { return deleteFirst(tx, bucketIDs) },
		"change":      func(tx *txn) error { return deleteFirst(tx, bucketChanges) },
		"count":       func(tx *txn) error { return deleteFirst(tx, bucketCounts) },
		"card":        func(tx *txn) error { return deleteFirst(tx, bucketCards) },
		"conv key":    func(tx *txn) error { return deleteFirst(tx, bucketConvKeys) },
		"conv term":   func(tx *txn) error { return deleteFirst(tx, bucketConvTerms) },
		"entry":       func(tx *txn) error { return deleteFirst(tx, bucketConvs) },
		"record":      func(tx *txn) error { return deleteFirst(tx, bucketRecords) },
		"record term": func(tx *txn) error { return deleteFirst(tx, bucketRecordTerms) },
		"lane":        func(tx *txn) error { return deleteFirst(tx, bucketLanes) },
		"head":        func(tx *txn) error { return deleteFirst(tx, bucketHeads) },
		"extra head": func(tx *txn) error {
			rec, err := engine.FindRecord(tx, "w", "2")
			tx.PutHead(*rec)
			return err
		},
		"other party": func(tx *txn) error {
			rec, err := engine.FindRecord(tx, "w", "1")
			rec.Party = "p"
			tx.PutHead(*rec)
			return err
		},
		"replay key": func(tx *txn) error { bucketReplays.in(tx).put([]byte("x"), []byte("y")); return nil },
		"short keys": func(tx *txn) error {
			for _, b := range []bucket{bucketConvs, bucketConvTerms, bucketCounts, bucketRecords, bucketRecordTerms, bucketLanes, bucketHeads, bucketExpiries} {
				b.in(tx).put([]byte{200}, nil)
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := newFilledDB(t)
			check(t, path)
			editFile(t, path, edit)
			if err := Check(t.Context(), path); !errors.Is(err, ErrDamaged) {
				t.Errorf("Check = %v, want ErrDamaged", err)
			}
		})
	}
}

// TestCheckNamesTheRow: a fault names the bucket of the row, not the bucket of the missing target.
func TestCheckNamesTheRow(t *testing.T) {
	for name, missing := range map[string]bucket{"cards": bucketChanges, "convs": bucketConvTerms, "records": bucketRecordTerms} {
		path := newFilledDB(t)
		editFile(t, path, func(tx *txn) error { return deleteFirst(tx, missing) })
		if err := Check(t.Context(), path); err == nil || !goldentest.Says(t, name, strings.ReplaceAll(err.Error(), path, "FILE")) {
			t.Errorf("Check without a row of %s = %v, want a fault of %s", missing.name, err, name)
		}
	}
}

func deleteFirst(tx *txn, b bucket) error {
	k, _ := b.in(tx).raw.Cursor().First()
	b.in(tx).delete(k)
	return nil
}

func TestOpenLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mesh.db")
	open(t, path, Config{})
	start := time.Now()
	if _, err := Open(t.Context(), path, Config{}); !errors.Is(err, ErrLocked) {
		t.Errorf("second Open = %v", err)
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("it took %v to say so", took)
	}
	if err := Check(t.Context(), path); !errors.Is(err, ErrLocked) {
		t.Errorf("Check of an open file = %v", err)
	}
	if err := compact(t, path, path+".new"); !errors.Is(err, ErrLocked) {
		t.Errorf("Compact of an open file = %v", err)
	}
}

func TestOpenMode(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("modes say nothing on Windows")
	}
	path := newFilledDB(t)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("a new database has mode %v, %v", info.Mode(), err)
	}
	for _, mode := range []fs.FileMode{0o640, 0o604, 0o666, 0o610} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), path, Config{}); !errors.Is(err, ErrFileMode) {
			t.Errorf("Open with mode %o = %v", mode, err)
		}
	}
	if _, err := Open(t.Context(), t.TempDir(), Config{}); err == nil {
		t.Error("Open of a directory is fine")
	}
}

func TestOpenCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	path := filepath.Join(t.TempDir(), "mesh.db")
	s := open(t, path, Config{})
	newCardMix(now).fill(t, s, 10_000)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := Open(ctx, path, Config{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Open = %v", err)
	}
}

func TestConfigMapSize(t *testing.T) {
	for _, size := range []int{-1, 1 << 20} {
		s := openNew(t, Config{InitialMmapSize: size})
		newCardMix(now).fill(t, s, 3000) // more than a mebibyte: the map must grow
		if n, err := s.Cards().Count(t.Context(), now); n != 3000 || err != nil {
			t.Errorf("Count = %d, %v", n, err)
		}
	}
}
