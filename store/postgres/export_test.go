//go:build slow

package postgres

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/engine"
	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// fillFrom returns a function that reads the rows of a database.
func fillFrom(t *testing.T, cfg Config) engine.Fill {
	return func(put func(engine.Row) error) (engine.Numbers, error) { return Export(t.Context(), cfg, put) }
}

// filled returns a closed database with entries of every kind, their content, and a lease that was used.
func filled(t *testing.T) (Config, []string, store.Lease) {
	t.Helper()
	cfg := Config{URL: pgtest.Database(t)}
	s := open(t, cfg)
	lease := storetest.Fill(t, s)
	content := storetest.Content(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return cfg, content, lease
}

// TestExport compares everything in a database with its copy.
func TestExport(t *testing.T) {
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
		return Export(t.Context(), from, func(r engine.Row) error {
			if n++; n == 50 {
				if _, err := Open(t.Context(), to); !errors.Is(err, ErrCopying) {
					t.Errorf("Open during an import = %v", err)
				}
				if _, err := Open(t.Context(), from); !errors.Is(err, ErrCopying) {
					t.Errorf("Open during an export = %v", err)
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
	if _, err := Export(t.Context(), to, func(engine.Row) error { return nil }); !errors.Is(err, engine.ErrUnfinished) {
		t.Errorf("Export after an import that failed = %v", err)
	}
	if _, err := Import(t.Context(), to, fillFrom(t, from)); err != nil {
		t.Fatal(err)
	}
	if got := storetest.Content(t, open(t, to)); !slices.Equal(content, got) {
		t.Errorf("the copy differs after a second attempt:\n%q\n%q", content, got)
	}
}

// TestImportRefusals checks what an import and an export do not touch.
func TestImportRefusals(t *testing.T) {
	t.Parallel()
	from, _, _ := filled(t)
	if _, err := Import(t.Context(), from, fillFrom(t, from)); !errors.Is(err, engine.ErrNotEmpty) {
		t.Errorf("Import into a full database = %v", err)
	}
	to := Config{URL: pgtest.Database(t)}
	from.Name = "one"
	s := open(t, from)
	if _, err := Import(t.Context(), to, fillFrom(t, from)); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), ": one") {
		t.Errorf("Import from a database in use = %v", err)
	}
	other := open(t, to) // the attempt has left no trace
	if _, err := Import(t.Context(), to, fillFrom(t, from)); !errors.Is(err, ErrInUse) {
		t.Errorf("Import into a database in use = %v", err)
	}
	_, _ = s.Close(), other.Close()
	if _, err := s.pool.Exec(t.Context(), "select 1"); err == nil {
		t.Error("the store is not closed")
	}

	// A row that the tables lose or change is found before the commit.
	lying := func(put func(engine.Row) error) (engine.Numbers, error) {
		return Export(t.Context(), from, func(r engine.Row) error {
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
	if _, err := Export(t.Context(), Config{URL: newer}, func(engine.Row) error { return nil }); !errors.Is(err, ErrNewerSchema) {
		t.Errorf("Export of newer tables = %v", err)
	}
}

// TestExportDamaged checks that damaged rows are named before any row is copied.
func TestExportDamaged(t *testing.T) {
	t.Parallel()
	from, _, _ := filled(t)
	conn, err := connect(t.Context(), from)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for table, key := range map[string]string{"cards": "am_02", "records": "\x06copiedk2\x00\xff"} {
		if _, err := conn.Exec(t.Context(), "update "+table+" set value = substr(value, 1, 20) where key = $1", []byte(key)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := conn.Exec(t.Context(), "update changes set value = '{' where key = $1", []byte("am_03")); err != nil {
		t.Fatal(err)
	}
	copied := 0
	_, err = Export(t.Context(), from, func(engine.Row) error { copied++; return nil })
	if !errors.Is(err, store.ErrDamaged) || copied > 0 {
		t.Fatalf("Export = %v, after %d rows", err, copied)
	}
	for _, name := range []string{"card 3", `change of "am_03"`, fmt.Sprintf("record %q %q", "copied", "k2\x00\xff")} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("the error does not name %s: %v", name, err)
		}
	}
}
