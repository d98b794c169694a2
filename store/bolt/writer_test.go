package bolt

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
)

var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func openNew(t *testing.T, cfg Config) *Store {
	t.Helper()
	return open(t, filepath.Join(t.TempDir(), "mesh.db"), cfg)
}

func pause(t *testing.T, s *Store) (resume func()) {
	t.Helper()
	resume, err := s.writer.queue.Pause(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return resume
}

// plan checks a unit and returns a function that writes it.
type plan = func(t *txn) (write func(store.Rev) error, err error)

// group executes units in one commit, in order, and returns their outcomes.
func group(t *testing.T, s *Store, plans ...plan) []error {
	t.Helper()
	errs := make([]error, len(plans))
	var all sync.WaitGroup
	resume := pause(t, s)
	for i, p := range plans {
		all.Go(func() { errs[i] = s.writer.do(t.Context(), p) })
		for s.writer.queue.Len() <= i {
			runtime.Gosched()
		}
	}
	resume()
	all.Wait()
	return errs
}

// putMeta returns a unit that writes key into bucketMeta.
func putMeta(key string) plan {
	return func(t *txn) (func(store.Rev) error, error) {
		return func(store.Rev) error { bucketMeta.in(t).put([]byte(key), []byte("1")); return nil }, nil
	}
}

func metaHas(t *testing.T, s *Store, key string) bool {
	t.Helper()
	found := false
	if err := s.view(t.Context(), func(tx *bbolt.Tx) error {
		found = bucketMeta.in(tx).raw.Get([]byte(key)) != nil
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return found
}

func countCommits(s *Store) *int {
	n := new(int)
	s.writer.commit = func(tx *bbolt.Tx) error {
		*n++
		return tx.Commit()
	}
	return n
}

// outcome is how a unit of work must end. A unit that is done is one of putMeta, whose key is its index in the group.
type outcome string

const (
	done   outcome = "done"
	failed outcome = "failed"
	idle   outcome = "idle"
)

func TestGroup(t *testing.T) {
	refusal := errors.New("refused")
	spoilt := errors.New("spoilt")
	refuse := func(*txn) (func(store.Rev) error, error) { return nil, refusal }
	nothing := func(*txn) (func(store.Rev) error, error) { return nil, nil }
	spoil := func(t *txn) (func(store.Rev) error, error) {
		return func(store.Rev) error { bucketMeta.in(t).put([]byte("partial"), []byte("1")); return spoilt }, nil
	}
	planPanic := func(*txn) (func(store.Rev) error, error) { panic("plan") }
	writePanic := func(t *txn) (func(store.Rev) error, error) {
		return func(store.Rev) error {
			bucketMeta.in(t).put([]byte("partial"), []byte("1"))
			panic("write")
		}, nil
	}
	for _, test := range []struct {
		name    string
		plans   []plan
		want    []outcome
		commits int
	}{
		{"all share one commit", []plan{putMeta("0"), putMeta("1"), putMeta("2")}, []outcome{done, done, done}, 1},
		{"a refusal costs nobody else", []plan{putMeta("0"), refuse, putMeta("2")}, []outcome{done, failed, done}, 1},
		{"only refusals need no commit", []plan{refuse, nothing}, []outcome{failed, idle}, 0},
		{"a panic in a check costs nobody else", []plan{putMeta("0"), planPanic, putMeta("2")}, []outcome{done, failed, done}, 1},
		{"a panic in a write leaves nothing", []plan{putMeta("0"), writePanic, putMeta("2")}, []outcome{done, failed, done}, 2},
		{"an error in a write leaves nothing", []plan{putMeta("0"), spoil, refuse, putMeta("3")}, []outcome{done, failed, failed, done}, 2},
		{"two that spoil", []plan{spoil, putMeta("1"), writePanic}, []outcome{failed, done, failed}, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := openNew(t, Config{})
			commits := countCommits(s)
			for i, err := range group(t, s, test.plans...) {
				if (err != nil) != (test.want[i] == failed) {
					t.Errorf("unit %d = %v, want %s", i, err, test.want[i])
				}
				if errors.Is(err, store.ErrUnavailable) {
					t.Errorf("unit %d was asked to try again: %v", i, err)
				}
			}
			for i := range test.plans {
				if got := metaHas(t, s, fmt.Sprint(i)); got != (test.want[i] == done) {
					t.Errorf("unit %d is stored: %v, want %s", i, got, test.want[i])
				}
			}
			if metaHas(t, s, "partial") {
				t.Error("part of a failed unit was stored")
			}
			if *commits != test.commits {
				t.Errorf("%d commits, want %d", *commits, test.commits)
			}
		})
	}
}

func TestUnitsSeeEarlierOnes(t *testing.T) {
	s := openNew(t, Config{})
	second := func(t *txn) (func(store.Rev) error, error) {
		if bucketMeta.in(t.Tx).raw.Get([]byte("first")) == nil {
			return nil, errors.New("the unit before is not there")
		}
		return nil, nil
	}
	for i, err := range group(t, s, putMeta("first"), second) {
		if err != nil {
			t.Errorf("unit %d = %v", i, err)
		}
	}
}

func TestNoAnswerBeforeCommit(t *testing.T) {
	s := openNew(t, Config{})
	reached, finish := make(chan struct{}), make(chan struct{})
	s.writer.commit = func(tx *bbolt.Tx) error {
		close(reached)
		<-finish
		return tx.Commit()
	}
	ctx, cancel := context.WithCancel(t.Context())
	answer := make(chan error, 1)
	go func() { answer <- s.writer.do(ctx, putMeta("a")) }()
	<-reached
	cancel() // the unit was taken, so its outcome must be reported
	select {
	case err := <-answer:
		t.Fatalf("answered %v before the commit", err)
	default:
	}
	if metaHas(t, s, "a") {
		t.Error("readers see what is not committed")
	}
	close(finish)
	if err := <-answer; err != nil {
		t.Errorf("a unit that was committed returned %v", err)
	}
	s.writer.commit = (*bbolt.Tx).Commit
}

func TestCloseFinishesQueue(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mesh.db")
	s, err := Open(t.Context(), path, Config{})
	if err != nil {
		t.Fatal(err)
	}
	resume := pause(t, s)
	answers := make(chan error, 3)
	for i := range 3 {
		go func() { answers <- s.writer.do(t.Context(), putMeta(fmt.Sprint(i))) }()
	}
	for s.writer.queue.Len() < 3 {
		runtime.Gosched()
	}
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	resume()
	for range 3 {
		if err := <-answers; err != nil {
			t.Errorf("unit queued before Close = %v", err)
		}
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	s = open(t, path, Config{})
	for i := range 3 {
		if !metaHas(t, s, fmt.Sprint(i)) {
			t.Errorf("unit %d is not there", i)
		}
	}
}
