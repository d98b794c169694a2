package bolt

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/cardindex"
	"github.com/agentmesh/agentmesh/store/engine"
)

var errDisk = errors.New("injected: disk")

// TestCommitFails makes one commit fail, before or after it reached the disk, and checks what callers see, that the
// store recovers, and that repeating the call does the right thing.
func TestCommitFails(t *testing.T) {
	card := store.Card{ID: "am_a", Terms: []string{"cap:a"}, Body: []byte("x"), Expires: now.Add(time.Hour)}
	replay := &store.Replay{Sender: "p", MessageID: "m1", Status: 200, Answer: []byte("answer"), Expires: now.Add(time.Hour)}
	for _, test := range []struct {
		name      string
		fail      func(*bbolt.Tx) error
		persisted bool
	}{
		{"before anything was written", func(*bbolt.Tx) error { return errDisk }, false},
		{"after it was persisted", func(tx *bbolt.Tx) error { return errors.Join(tx.Commit(), errDisk) }, true},
		{"panic in the commit", func(*bbolt.Tx) error { panic(errDisk) }, false},
		{"no space", func(*bbolt.Tx) error { return syscall.ENOSPC }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := openNew(t, Config{})
			s.writer.commit = func(tx *bbolt.Tx) error {
				s.writer.commit = (*bbolt.Tx).Commit
				return test.fail(tx)
			}
			errs := group(t, s,
				func(t *txn) (func(store.Rev) error, error) {
					return func(store.Rev) error {
						return writeCard(t, card, now)
					}, nil
				},
				func(t *txn) (func(store.Rev) error, error) {
					return func(store.Rev) error {
						t.PutReplay(engine.ReplayRow{Replay: *replay}, nil, false)
						return nil
					}, nil
				},
				func(*txn) (func(store.Rev) error, error) { return nil, store.ErrConflict },
			)
			for i, err := range errs {
				if !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("unit %d of a failed group = %v, want ErrUnavailable: even a refusal may depend on what was lost", i, err)
				}
			}
			if err := s.Ping(t.Context()); err != nil {
				t.Fatalf("the store did not recover: %v", err)
			}
			applied, err := s.Steps().Apply(t.Context(), store.Step{Replay: replay, Now: now})
			if err != nil || applied.Dup != test.persisted {
				t.Errorf("repeated step: duplicate %v, %v; want %v", applied.Dup, err, test.persisted)
			}
			_, err = s.Cards().Put(t.Context(), store.PutCard{Card: card, Now: now})
			if want := map[bool]error{true: store.ErrConflict}[test.persisted]; !errors.Is(err, want) {
				t.Errorf("repeated Put = %v, want %v", err, want)
			}
			page, err := s.Cards().List(t.Context(), store.CardQuery{All: []string{"cap:a"}, Limit: 5, Now: now})
			if err != nil || len(page.Cards) != 1 {
				t.Errorf("the index lists %d cards, %v; want 1", len(page.Cards), err)
			}
		})
	}
}

// TestIndexFails checks that a durable commit is reported as done even if the index then fails, and that the index
// recovers.
func TestIndexFails(t *testing.T) {
	s := openNew(t, Config{})
	card := store.Card{ID: "am_a", Terms: []string{"cap:a"}, Expires: now.Add(time.Hour)}
	err := s.writer.do(t.Context(), func(t *txn) (func(store.Rev) error, error) {
		return func(store.Rev) error {
			t.indexChanges = append(t.indexChanges, func(*cardindex.Index) { panic("index") })
			return writeCard(t, card, now)
		}, nil
	})
	if err != nil {
		t.Errorf("unit = %v", err)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("Ping = %v", err)
	}
	wantBuilt(t, s, now)
}

// TestStaysBroken checks that while the disk is full after a failed commit, writes are refused and reads go on, and
// that the store recovers by itself when the disk has room again.
func TestStaysBroken(t *testing.T) {
	s := openNew(t, Config{})
	if err := s.writer.do(t.Context(), putMeta("before")); err != nil {
		t.Fatal(err)
	}
	s.writer.commit = func(*bbolt.Tx) error {
		s.cfg.MinFree = math.MaxInt64 // the disk is full from here on
		return syscall.ENOSPC
	}
	for range 3 {
		if err := s.writer.do(t.Context(), putMeta("during")); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("write = %v", err)
		}
		if err := s.Ping(t.Context()); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("Ping = %v", err)
		}
		if !metaHas(t, s, "before") {
			t.Error("reads do not go on")
		}
	}
	s.cfg.MinFree = 0
	s.writer.commit = (*bbolt.Tx).Commit
	if err := s.writer.do(t.Context(), putMeta("during")); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("write before the file was tried again = %v", err)
	}
	s.writer.tried = time.Time{}
	if err := s.writer.do(t.Context(), putMeta("after")); err != nil {
		t.Errorf("write when there is room again = %v", err)
	}
	if metaHas(t, s, "during") || !metaHas(t, s, "after") {
		t.Error("the wrong units are there")
	}
}

func TestDiskNearlyFull(t *testing.T) {
	s := openNew(t, Config{})
	put := func() error {
		return s.Records().Apply(t.Context(), []store.Change{{Record: store.Record{NS: "n", Key: "k"}, IfRev: store.Any}}, now)
	}
	if err := put(); err != nil {
		t.Fatal(err)
	}
	s.cfg.MinFree = math.MaxInt64
	if err := put(); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("write = %v", err)
	}
	if err := s.Ping(t.Context()); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("Ping = %v", err)
	}
	if _, err := s.Records().Get(t.Context(), "n", "k", now); err != nil {
		t.Errorf("read = %v", err)
	}
	if _, err := s.Backup(t.Context(), nil); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("Backup without room for its copy = %v", err)
	}
	s.cfg.MinFree = -1
	if err := put(); err != nil {
		t.Errorf("write when there is room again = %v", err)
	}
}

// TestWriteMeetsMissingPages: a unit that needs a part of the file that is gone fails, and the process goes on.
func TestWriteMeetsMissingPages(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("this system does not shorten a file that is in use")
	}
	path := filepath.Join(t.TempDir(), "mesh.db")
	s, err := Open(t.Context(), path, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	put := func(i int) error {
		rec := store.Record{NS: "n", Key: fmt.Sprint(i), Body: make([]byte, 4<<10)}
		return s.Records().Apply(t.Context(), []store.Change{{Record: rec, IfRev: store.Any}}, now)
	}
	for i := range 20 {
		if err := put(i); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(path, leastSize); err != nil {
		t.Fatal(err)
	}
	if err := put(0); err == nil {
		t.Error("a unit was written to a file without most of its pages")
	}
}
