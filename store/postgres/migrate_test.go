//go:build slow

package postgres

import (
	"errors"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
)

// TestSchema checks that processes that start together make the tables once.
func TestSchema(t *testing.T) {
	t.Parallel()
	cfg := Config{URL: pgtest.Database(t)}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { open(t, cfg) })
	}
	all.Wait()
	if before, after, err := Migrate(t.Context(), cfg); before != tablesVersion || after != before || err != nil {
		t.Errorf("Migrate = %d, %d, %v", before, after, err)
	}
}

// makeNewer changes the tables of a database into those of a newer version.
func makeNewer(t *testing.T, database string) {
	t.Helper()
	s := open(t, Config{URL: database})
	if _, err := s.pool.Exec(t.Context(), "insert into schema_version (version) values (99)"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestNewerSchema checks that a program refuses newer tables.
func TestNewerSchema(t *testing.T) {
	t.Parallel()
	cfg := Config{URL: pgtest.Database(t)}
	makeNewer(t, cfg.URL)
	if _, err := Open(t.Context(), cfg); !errors.Is(err, ErrNewerSchema) {
		t.Errorf("Open = %v", err)
	}
	if _, _, err := Migrate(t.Context(), cfg); !errors.Is(err, ErrNewerSchema) {
		t.Errorf("Migrate = %v", err)
	}
	if _, err := MigrationScript(t.Context(), cfg); !errors.Is(err, ErrNewerSchema) {
		t.Errorf("MigrationScript = %v", err)
	}
}

// TestRights checks that a user without the right to change tables can serve once another user has changed them. Until
// then, Open refuses, and MigrationScript returns what is missing.
func TestRights(t *testing.T) {
	t.Parallel()
	owner := Config{URL: pgtest.Database(t)}
	served := Config{URL: asUser(t, owner.URL, "server_"+schemaOf(t, owner.URL))}
	if _, err := Open(t.Context(), served); !errors.Is(err, ErrMayNotMigrate) {
		t.Errorf("Open without tables = %v", err)
	}
	script, err := MigrationScript(t.Context(), served)
	if err != nil {
		t.Fatal(err)
	}
	if empty, err := MigrationScript(t.Context(), Config{}); empty != script || err != nil {
		t.Errorf("the scripts for an empty database differ:\n%s\n%s\n%v", empty, script, err)
	}
	conn, err := connect(t.Context(), owner)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), script, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%v\n%s", err, script)
	}
	if before, after, err := Migrate(t.Context(), owner); before != tablesVersion || after != before || err != nil {
		t.Errorf("Migrate after the script = %d, %d, %v", before, after, err)
	}
	grants := strings.NewReplacer("SCHEMA", schemaOf(t, owner.URL), "USER", "server_"+schemaOf(t, owner.URL)).Replace(`
grant usage on schema SCHEMA to USER;
grant select, insert, update, delete on all tables in schema SCHEMA to USER;
grant usage, select, update on all sequences in schema SCHEMA to USER;`)
	if _, err := conn.Exec(t.Context(), grants, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	s := open(t, served)
	if err := apply(t.Context(), s, put("a")); err != nil {
		t.Error(err)
	}
	if _, err := s.Leases().Acquire(t.Context(), "node"); err != nil {
		t.Error(err)
	}
	if text, err := MigrationScript(t.Context(), served); text != "" || err != nil {
		t.Errorf("MigrationScript = %q, %v", text, err)
	}
}

// schemaOf returns the schema that a connection string of pgtest selects.
func schemaOf(t *testing.T, database string) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(u.Query().Get("options"), "-csearch_path=")
}

// asUser makes a user who owns nothing, and returns the connection string for it.
func asUser(t *testing.T, database, name string) string {
	t.Helper()
	conn, err := connect(t.Context(), Config{URL: database})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "create role "+name+" login"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "grant usage on schema "+schemaOf(t, database)+" to "+name); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(name)
	return u.String()
}
