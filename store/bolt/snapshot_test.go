package bolt

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/cardindex"
	"github.com/agentmesh/agentmesh/store/engine"
)

// contents is what an index contains about the live cards. It leaves out other cards, because a sweep may have removed
// some of them that the rows, or a snapshot, still list until their reservation ends.
type contents struct {
	Terms   map[string][]cardindex.Slot
	Expires map[cardindex.Slot]int64
	All     []cardindex.Slot
}

func contentsOf(ix *cardindex.Index, now time.Time) contents {
	c := contents{Terms: make(map[string][]cardindex.Slot), Expires: make(map[cardindex.Slot]int64)}
	for at, expires := range ix.Ends {
		if engine.Nanos(now) < expires {
			c.Expires[at] = expires
		}
	}
	find := func(terms ...string) []cardindex.Slot {
		return ix.Candidates(nil, store.CardQuery{All: terms}, []store.Tier{{}}, engine.Nanos(now), 0, math.MaxInt)
	}
	c.All = find()
	for term := range ix.TermsAfter("", "") {
		if slots := find(term); len(slots) > 0 {
			c.Terms[term] = slots
		}
	}
	return c
}

// wantBuilt compares the index of s with an index that is built from the cards.
func wantBuilt(t *testing.T, s *Store, now time.Time) {
	t.Helper()
	built := &Store{db: s.db}
	if err := built.buildIndex(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(contentsOf(built.index, now), contentsOf(s.index, now)); diff != "" {
		t.Errorf("index differs from the cards (-cards +index):\n%s", diff)
	}
}

// churn renews, changes, withdraws, revives, sweeps and registers cards.
func churn(t *testing.T, s *Store, mix *cardMix, now time.Time, n int) {
	t.Helper()
	for range n {
		c := mix.Card(1 + rand.IntN(mix.count))
		c.Expires, c.ReservedUntil = now.Add(time.Duration(rand.IntN(48))*time.Hour), now.Add(48*time.Hour)
		var err error
		switch rand.IntN(6) {
		case 0:
			err = s.Cards().Withdraw(t.Context(), c.ID, store.Any, now.Add(time.Hour), nil, now)
		case 1:
			_, err = s.Sweep(t.Context(), now, 50)
		case 2:
			mix.count++
			c = mix.Card(mix.count)
			fallthrough
		case 3:
			_, err = s.Cards().Put(t.Context(), store.PutCard{Card: c, IfRev: store.Any, Now: now})
		default:
			c.Terms = append(c.Terms, fmt.Sprintf("word:extra%d", rand.IntN(50)))
			_, err = s.Cards().Put(t.Context(), store.PutCard{Card: c, IfRev: store.Any, Now: now})
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			t.Fatal(err)
		}
	}
}

// TestSnapshotWhileChanging writes snapshots while cards change, and loads the last one.
func TestSnapshotWhileChanging(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mesh.db")
	s := open(t, path, Config{})
	mix := newCardMix(now)
	mix.fill(t, s, 3000)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				churn(t, s, mix, now, 1)
			}
		}
	}()
	for range 5 {
		if err := s.writeSnapshot(t.Context()); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	<-stopped
	live := contentsOf(s.index, now)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, Config{})
	if diff := cmp.Diff(live, contentsOf(s.index, now)); diff != "" {
		t.Errorf("loaded index differs (-live +loaded):\n%s", diff)
	}
}

func TestSnapshotRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mesh.db")
	s := open(t, path, Config{})
	mix := newCardMix(now)
	mix.fill(t, s, 500)
	older, err := os.Create(path + ".older")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Backup(t.Context(), older); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(older.Chmod(0o600), older.Close(), s.writeSnapshot(t.Context()), s.Close()); err != nil {
		t.Fatal(err)
	}
	whole := readFile(t, s.snapshotPath())
	for name, edit := range map[string]func([]byte) []byte{
		"whole":      func(b []byte) []byte { return b },
		"empty":      func([]byte) []byte { return nil },
		"cut short":  func(b []byte) []byte { return b[:len(b)-10] },
		"one bit":    func(b []byte) []byte { b[len(b)*2/3] ^= 4; return b },
		"last byte":  func(b []byte) []byte { b[len(b)-1]++; return b },
		"trailing":   func(b []byte) []byte { return append(b, 0) },
		"other tag":  func(b []byte) []byte { b[len(snapshotMagic)]++; return b },
		"other file": func([]byte) []byte { return readFile(t, path) },
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(s.snapshotPath(), edit(slices.Clone(whole)), 0o600); err != nil {
				t.Fatal(err)
			}
			again, err := Open(t.Context(), path, Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close()
			wantBuilt(t, again, now)
			if err := again.loadSnapshot(); (err == nil) != (name == "whole") {
				t.Errorf("loadSnapshot = %v", err)
			}
		})
	}
	t.Run("restored database", func(t *testing.T) {
		// The backup is older than the snapshot, and was then changed independently.
		restored := open(t, path+".older", Config{})
		mix.fill(t, restored, 1000)
		if err := errors.Join(restored.Close(), os.WriteFile(restored.snapshotPath(), whole, 0o600)); err != nil {
			t.Fatal(err)
		}
		restored = open(t, path+".older", Config{})
		wantBuilt(t, restored, now)
		if err := restored.loadSnapshot(); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("loadSnapshot of another state = %v", err)
		}
	})
}

// TestSnapshotterRuns checks that enough changes start a snapshot by themselves.
func TestSnapshotterRuns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mesh.db")
	s := open(t, path, Config{})
	newCardMix(now).fill(t, s, 6000)
	for s.snapshots.changed.Load() >= 5000 {
		runtime.Gosched()
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
