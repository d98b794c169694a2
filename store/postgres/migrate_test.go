package postgres

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
	"github.com/agentmesh/agentmesh/store/storetest"
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
	if before, after, err := Migrate(t.Context(), cfg); before != len(migrations()) || after != before || err != nil {
		t.Errorf("Migrate = %d, %d, %v", before, after, err)
	}
}

// next is the version after those of this program. It only adds something.
const next = `
alter table cards add column region text not null default 'none';
alter table convs add column weight bigint not null default 0;
create table regions (name text primary key, cards bigint not null);
create index on cards (region);
`

// upgrade makes the tables as a newer version of the program does.
func upgrade(t *testing.T, database string, newer ...string) {
	t.Helper()
	all := migrations()
	for _, sql := range newer {
		all = append(all, newMigration(sql))
	}
	conn, err := connect(t.Context(), Config{URL: database})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, after, err := migrate(t.Context(), conn, all); after != len(all) || err != nil {
		t.Fatalf("migrate = %d, %v", after, err)
	}
}

// mayUse returns the line by which a migration allows programs that know only an older version.
func mayUse(version int) string {
	return fmt.Sprintf("-- Programs that know version %d may use these tables.\n", version)
}

// TestNewerSchema checks which newer tables a program uses, and that it does not change them.
func TestNewerSchema(t *testing.T) {
	t.Parallel()
	known := len(migrations())
	for name, test := range map[string]struct {
		newer []string
		fits  bool
	}{
		"silent":                {[]string{next}, false},
		"allows this program":   {[]string{mayUse(known) + next}, true},
		"allows only a newer":   {[]string{next, mayUse(known+1) + "create table more (name text);"}, false},
		"silent, then allowing": {[]string{next, mayUse(known) + "create table more (name text);"}, false},
		"two that allow":        {[]string{mayUse(known) + next, mayUse(known) + "create table more (name text);"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{URL: pgtest.Database(t)}
			upgrade(t, cfg.URL, test.newer...)
			s, err := Open(t.Context(), cfg)
			if test.fits && err != nil || !test.fits && !errors.Is(err, ErrNewerSchema) {
				t.Fatalf("Open = %v", err)
			}
			if err == nil {
				_ = s.Close()
			}
			before, after, err := Migrate(t.Context(), cfg)
			if test.fits && (err != nil || before != known+len(test.newer) || after != before) || !test.fits && !errors.Is(err, ErrNewerSchema) {
				t.Errorf("Migrate = %d, %d, %v", before, after, err)
			}
		})
	}
	// Tables of a later program that has another table of versions are refused.
	database := pgtest.Database(t)
	s := open(t, Config{URL: database})
	if _, err := s.pool.Exec(t.Context(), "alter table schema_version drop column oldest; insert into schema_version (version) values (99)"); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Config{URL: database}); !errors.Is(err, ErrNewerSchema) {
		t.Errorf("Open of version 99 = %v", err)
	}
}

// TestStoreOnNewerSchema runs the scenarios of the suite on tables that a newer version has made, as during an upgrade
// of several processes.
func TestStoreOnNewerSchema(t *testing.T) {
	t.Parallel()
	storetest.RunScenarios(t, func(t *testing.T) store.Store {
		database := pgtest.Database(t)
		upgrade(t, database, mayUse(len(migrations()))+next)
		return open(t, Config{URL: database, Name: "test"})
	})
}

// TestFirstSchema opens tables whose table of versions has no column oldest yet.
func TestFirstSchema(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	conn, err := connect(t.Context(), Config{URL: database})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	first := "create table schema_version (version int primary key, at timestamptz not null default now());" + migrations()[0].sql +
		"insert into schema_version (version) values (1);"
	if _, err := conn.Exec(t.Context(), first, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	upgrade(t, database, mayUse(len(migrations()))+next)
	if err := apply(t.Context(), open(t, Config{URL: database}), put("a")); err != nil {
		t.Error(err)
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
	if before, after, err := Migrate(t.Context(), owner); before != len(migrations()) || after != before || err != nil {
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
