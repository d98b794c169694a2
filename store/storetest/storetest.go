// Package storetest is the contract of package store as a test suite, which every engine runs.
//
// Start with [Run]. The suite is independent of the engine and tests only the interfaces of package store. An engine's
// own tests check the other guarantees (after crashes, on full disks).
package storetest

import (
	"crypto/sha256"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/agentmesh/agentmesh/store"
)

// Run runs the whole suite. open returns a new, empty store that is closed when its test ends.
func Run(t *testing.T, open func(t *testing.T) store.Store) {
	t.Helper()
	RunScenarios(t, open)
	t.Run("Model", func(t *testing.T) { testModel(t, open) })
}

// RunScenarios runs the suite without the test that makes random changes. Use it for an engine that passes the whole
// suite, to test it under other conditions, such as behind a connection pooler.
func RunScenarios(t *testing.T, open func(t *testing.T) store.Store) {
	t.Helper()
	groups := []struct {
		name  string
		tests []scenario
	}{
		{"Cards", cardTests},
		{"List", listTests},
		{"Changes", changeTests},
		{"Steps", stepTests},
		{"Replay", replayTests},
		{"Records", recordTests},
		{"Due", dueTests},
		{"Store", storeTests},
	}
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			for _, test := range g.tests {
				t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
			}
		})
	}
}

// scenario is a test that gets a new, empty store.
type scenario struct {
	name string
	run  func(t *testing.T, s store.Store)
}

// t0 is the current time of most scenarios.
var t0 = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)

const day = 24 * time.Hour

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s = %v, want %v", what, err, want)
	}
}

// wantMistake expects an error that matches no sentinel, as for a mistake of the caller.
func wantMistake(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil {
		t.Errorf("%s was accepted", what)
	}
	for _, sentinel := range []error{
		store.ErrNotFound, store.ErrConflict, store.ErrMismatch, store.ErrReserved, store.ErrQuota, store.ErrUnavailable,
		store.ErrDamaged, store.ErrLeaseTaken, store.ErrLeaseLost,
	} {
		if errors.Is(err, sentinel) {
			t.Errorf("%s = %v, want none of the sentinels", what, err)
		}
	}
}

func wantOK(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s = %v", what, err)
	}
}

func wantSame[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s differs (-want +got):\n%s", what, diff)
	}
}

func hash(text string) [32]byte { return sha256.Sum256([]byte(text)) }

var storeTests = []scenario{
	{"canceled context does nothing", testCancel},
	{"ping and close", testClose},
	{"slices are not shared", testSlices},
	{"bounds", testBounds},
}
