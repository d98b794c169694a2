//go:build slow

package postgres

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
	"github.com/agentmesh/agentmesh/store/engine"
	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// filled returns a database file with entries of every kind, their content, and a lease that was used.
func filled(t *testing.T) (*bolt.Store, []string, store.Lease) {
	t.Helper()
	s, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "db"), bolt.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	lease := storetest.Fill(t, s)
	return s, storetest.Content(t, s), lease
}

// fillFrom returns a function that reads the rows of a database file.
func fillFrom(t *testing.T, from *bolt.Store) engine.Fill {
	return func(put func(engine.Row) error) (engine.Numbers, error) { return from.Export(t.Context(), put) }
}

// TestImport compares everything in a database file with its copy.
func TestImport(t *testing.T) {
	t.Parallel()
	from, content, lease := filled(t)
	to := Config{URL: pgtest.Database(t)}
	tally, err := Import(t.Context(), to, fillFrom(t, from))
	if err != nil || tally.Rows[engine.KindEntry] != 96 {
		t.Fatalf("Import = %s, %v", &tally, err)
	}
	s := open(t, to)
	if got := storetest.Content(t, s); !slices.Equal(content, got) {
		t.Errorf("the copy differs:\n%q\n%q", content, got)
	}
	storetest.WantContinued(t, s, lease)
}

// TestImportInterrupted checks that a database is not served until its import is finished, and that another attempt
// makes a complete copy.
func TestImportInterrupted(t *testing.T) {
	t.Parallel()
	from, content, _ := filled(t)
	to := Config{URL: pgtest.Database(t)}
	broken := errors.New("broken")
	n := 0
	if _, err := Import(t.Context(), to, func(put func(engine.Row) error) (engine.Numbers, error) {
		return from.Export(t.Context(), func(r engine.Row) error {
			if n++; n == 50 {
				if _, err := Open(t.Context(), to); !errors.Is(err, ErrCopying) {
					t.Errorf("Open during an import = %v", err)
				}
				return broken
			}
			return put(r)
		})
	}); !errors.Is(err, broken) {
		t.Fatalf("Import = %v", err)
	}
	if _, err := Open(t.Context(), to); !errors.Is(err, engine.ErrUnfinished) {
		t.Errorf("Open after an import that failed = %v", err)
	}
	if _, err := Import(t.Context(), to, fillFrom(t, from)); err != nil {
		t.Fatal(err)
	}
	if got := storetest.Content(t, open(t, to)); !slices.Equal(content, got) {
		t.Errorf("the copy differs after a second attempt:\n%q\n%q", content, got)
	}
}

// TestImportRefusals checks what an import does not touch.
func TestImportRefusals(t *testing.T) {
	t.Parallel()
	from, _, _ := filled(t)
	full := Config{URL: pgtest.Database(t)}
	if _, err := Import(t.Context(), full, fillFrom(t, from)); err != nil {
		t.Fatal(err)
	}
	if _, err := Import(t.Context(), full, fillFrom(t, from)); !errors.Is(err, engine.ErrNotEmpty) {
		t.Errorf("Import into a full database = %v", err)
	}
	to := Config{URL: pgtest.Database(t), Name: "one"}
	other := open(t, to)
	if _, err := Import(t.Context(), to, fillFrom(t, from)); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), ": one") {
		t.Errorf("Import into a database in use = %v", err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}

	// A row that the tables lose or change is found before the commit.
	lying := func(put func(engine.Row) error) (engine.Numbers, error) {
		return from.Export(t.Context(), func(r engine.Row) error {
			if r.Kind == engine.KindConv {
				r.Due = 7 // which no table keeps
			}
			return put(r)
		})
	}
	if _, err := Import(t.Context(), to, lying); !errors.Is(err, store.ErrDamaged) {
		t.Errorf("Import of changed rows = %v", err)
	}

	newer := pgtest.Database(t)
	makeNewer(t, newer)
	if _, err := Import(t.Context(), Config{URL: newer}, fillFrom(t, from)); !errors.Is(err, ErrNewerSchema) {
		t.Errorf("Import into newer tables = %v", err)
	}
}
