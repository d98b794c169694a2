package bolt

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
)

// fixtureEnv, if set to any value, makes the test write testdata/schema-N.db.gz with the schema of this program.
const fixtureEnv = "BOLT_TEST_FIXTURE"

func fixtureFile(schema uint64) string {
	return filepath.Join("testdata", fmt.Sprintf("schema-%d.db.gz", schema))
}

// TestEverySchema opens a database of each schema that was ever released and finds in it what was stored. Never
// regenerate a fixture: it is what a program of its time wrote.
func TestEverySchema(t *testing.T) {
	if os.Getenv(fixtureEnv) != "" {
		saveFixture(t)
	}
	for schema := uint64(1); schema <= newestSchema(migrations); schema++ {
		t.Run(fmt.Sprint(schema), func(t *testing.T) {
			path := fixture(t, schema)
			if err := Check(t.Context(), path); err != nil {
				t.Fatalf("before: %v", err)
			}
			expectFixture(t, open(t, path, Config{}))
			_, err := os.Stat(OlderCopy(path, schema))
			if older := schema < newestSchema(migrations); (err == nil) != older {
				t.Errorf("a copy was kept: %v, want %t", err, older)
			}
		})
	}
}

// fixture unpacks the database of an older schema, or creates one with the schema of this program.
func fixture(t *testing.T, schema uint64) string {
	t.Helper()
	if schema == newestSchema(migrations) {
		return makeFixture(t)
	}
	f, err := os.Open(fixtureFile(schema))
	if err != nil {
		t.Fatalf("%v; a program of schema %d makes it with %s=1", err, schema, fixtureEnv)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "mesh.db")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// forEver is when the rows of fixtures expire, so that the fixtures stay usable.
var forEver = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)

var fixtureConv = store.ConvKey{Peer: "am_peer", ID: "conv_1"}

// saveFixture stores a database with the schema of this program, for programs with the next schema.
func saveFixture(t *testing.T) {
	t.Helper()
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err == nil {
		_, err = z.Write(readFile(t, makeFixture(t)))
	}
	if err := errors.Join(err, z.Close(), os.MkdirAll("testdata", 0o755), os.WriteFile(fixtureFile(newestSchema(migrations)), out.Bytes(), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// makeFixture creates a database with rows of every kind.
func makeFixture(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	s, err := Open(t.Context(), filepath.Join(dir, "full.db"), Config{})
	if err != nil {
		t.Fatal(err)
	}
	var faults []error
	for _, id := range []string{"am_listed", "am_withdrawn"} {
		_, err := s.Cards().Put(t.Context(), store.PutCard{Now: now, Card: store.Card{
			ID: id, Terms: []string{"cap:scheduling"}, Counts: []string{"host:a.example"}, Body: []byte(`{"agent_id":"` + id + `"}`), Expires: forEver,
		}})
		faults = append(faults, err)
	}
	faults = append(faults, s.Cards().Withdraw(t.Context(), "am_withdrawn", store.Any, forEver, nil, now))
	conv := store.Conversation{Key: fixtureConv, Terms: []string{"open"}, Open: true, Body: []byte(`{"state":"open"}`)}
	_, err = s.Steps().Apply(t.Context(), store.Step{
		Conv: &conv, Now: now, Append: []store.Entry{{MessageID: "msg_1", Raw: []byte("first")}, {MessageID: "msg_2", Raw: []byte("second")}},
		Replay:  &store.Replay{Sender: "am_peer", MessageID: "msg_1", Conv: conv.Key, Expires: forEver},
		Records: []store.Change{{Record: store.Record{NS: "inbox", Key: "item_1", Terms: []string{"new"}, Body: []byte("item"), Expires: forEver}}},
	})
	faults = append(faults, err, s.Close(), compact(t, filepath.Join(dir, "full.db"), filepath.Join(dir, "small.db")))
	if err := errors.Join(faults...); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "small.db")
}

func expectFixture(t *testing.T, s *Store) {
	t.Helper()
	ctx := t.Context()
	page, err := s.Cards().List(ctx, store.CardQuery{All: []string{"cap:scheduling"}, Limit: 10, Now: now})
	if err != nil || len(page.Cards) != 1 || page.Cards[0].ID != "am_listed" || string(page.Cards[0].Body) != `{"agent_id":"am_listed"}` {
		t.Errorf("cards: %+v, %v", page.Cards, err)
	}
	if _, err := s.Cards().Get(ctx, "am_withdrawn", now); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the withdrawn card: %v", err)
	}
	if held, err := s.Cards().Held(ctx, "am_withdrawn", now); err != nil || held.ID != "am_withdrawn" {
		t.Errorf("the reserved id: %+v, %v", held, err)
	}
	conv, err := s.Steps().Conversation(ctx, fixtureConv, now)
	if err != nil || string(conv.Body) != `{"state":"open"}` || !conv.Open {
		t.Errorf("conversation: %+v, %v", conv, err)
	}
	entries, err := s.Steps().Transcript(ctx, fixtureConv, 0, 10)
	if err != nil || len(entries) != 2 || string(entries[0].Raw) != "first" || string(entries[1].Raw) != "second" {
		t.Errorf("transcript: %+v, %v", entries, err)
	}
	if replay, err := s.Steps().FindReplay(ctx, "am_peer", "msg_1", now); err != nil || replay.Conv != fixtureConv {
		t.Errorf("replay: %+v, %v", replay, err)
	}
	records, err := s.Records().List(ctx, "inbox", "new", "", 10, now)
	if err != nil || len(records.Records) != 1 || string(records.Records[0].Body) != "item" {
		t.Errorf("records: %+v, %v", records.Records, err)
	}
}

// nextMigrations adds a migration to a schema that will never exist: it reverses the body of every record and adds a
// bucket.
func nextMigrations(pause func()) []migration {
	return append(slices.Clip(migrations), func(from *bbolt.Tx, to *copier) error {
		to.create(newBucket("next", 1), 0)
		for _, b := range buckets {
			to.create(b, from.Bucket(b.name).Sequence())
			for row, err := range b.in(from).from(nil, nil) {
				if string(row.key) == string(keySchema) {
					continue
				}
				if string(b.name) == string(bucketRecords.name) {
					row.value = reverse(row.value)
				}
				if to.put(b, row.key, row.value); err != nil || to.err != nil {
					return errors.Join(err, to.err)
				}
			}
		}
		to.commit() // part of the rows may be in the file
		pause()
		return to.err
	})
}

func reverse(b []byte) []byte {
	out := make([]byte, len(b))
	for i, c := range b {
		out[len(b)-1-i] = c
	}
	return out
}

// migrateEnv makes a child process migrate a database with nextMigrations. With the value "stop", the child prints a
// line in the middle of the migration and waits to be killed.
const migrateEnv = "BOLT_TEST_MIGRATE"

func migrateChild(path, how string) {
	migrations = nextMigrations(func() {
		if how == "stop" {
			fmt.Println("half")
			select {}
		}
	})
	s, err := Open(context.Background(), path, Config{})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if err := s.Close(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("done")
}

// recordsOf returns the schema of a database and its records, as they are in the file.
func recordsOf(t *testing.T, path string) (schema uint64, rows map[string]string) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows = map[string]string{}
	if err := db.View(func(tx *bbolt.Tx) (err error) {
		schema, err = schemaOf(tx)
		for row, rowErr := range bucketRecords.in(tx).from(nil, nil) {
			err = errors.Join(err, rowErr)
			rows[string(row.key)] = string(row.value)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return schema, rows
}

// TestMigrationKilled kills a process in the middle of a migration. The database must be unchanged, the next process
// must migrate it once, and the copy must be complete and open with the old program, which refuses the new database.
func TestMigrationKilled(t *testing.T) {
	old := newestSchema(migrations)
	path := fixture(t, old)
	_, before := recordsOf(t, path)
	if len(before) == 0 {
		t.Fatal("the fixture has no records")
	}
	run := func(how string) string {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
		child.Env = append(os.Environ(), childEnv+"="+path, migrateEnv+"="+how)
		out, err := child.StdoutPipe()
		if err == nil {
			err = child.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		line, _ := bufio.NewReader(out).ReadString('\n')
		if how == "stop" {
			child.Process.Kill()
		}
		child.Wait()
		return strings.TrimSpace(line)
	}
	for range 2 {
		if output := run("stop"); output != "half" {
			t.Fatalf("the child printed %q", output)
		}
		if schema, rows := recordsOf(t, path); schema != old || fmt.Sprint(rows) != fmt.Sprint(before) {
			t.Fatalf("after a kill: schema %d, %q", schema, rows)
		}
	}
	if output := run("go on"); output != "done" {
		t.Fatalf("the child printed %q", output)
	}
	schema, rows := recordsOf(t, path)
	if schema != old+1 || len(rows) != len(before) {
		t.Errorf("after the migration: schema %d, %d rows", schema, len(rows))
	}
	for k, v := range before {
		if rows[k] != string(reverse([]byte(v))) {
			t.Errorf("row %q is %q", k, rows[k])
		}
	}
	if leftovers, err := filepath.Glob(path + ".backup-*"); err != nil || len(leftovers) > 0 {
		t.Errorf("left behind: %v, %v", leftovers, err)
	}
	if _, err := Open(t.Context(), path, Config{}); !errors.Is(err, ErrNewerSchema) {
		t.Errorf("the old program: %v", err)
	}
	expectFixture(t, open(t, OlderCopy(path, old), Config{}))
}

// TestMigrationFails checks that a migration that fails, or has no room for the new file, changes nothing.
func TestMigrationFails(t *testing.T) {
	broken := errors.New("broken")
	for name, tt := range map[string]struct {
		minFree int64
		steps   []migration
		want    error
	}{
		"a step":  {-1, append(slices.Clip(migrations), func(*bbolt.Tx, *copier) error { return broken }), broken},
		"no room": {1 << 60, nextMigrations(func() {}), store.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			path := fixture(t, newestSchema(migrations))
			s := &Store{cfg: Config{MinFree: tt.minFree}.withDefaults(), path: path}
			s.log = s.cfg.Logger
			if err := s.openFile(); err != nil {
				t.Fatal(err)
			}
			err := s.migrate(t.Context(), tt.steps)
			if err := s.closeFile(); err != nil {
				t.Fatal(err)
			}
			if !errors.Is(err, tt.want) {
				t.Errorf("migrate() = %v, want %v", err, tt.want)
			}
			if leftovers, err := filepath.Glob(path + ".*"); err != nil || len(leftovers) > 0 {
				t.Errorf("left behind: %v, %v", leftovers, err)
			}
			expectFixture(t, open(t, path, Config{}))
		})
	}
}

// TestOlderCopiesGo checks that Open or Sweep removes the copy from before a migration after a week, with all data that
// was purged meanwhile. Younger copies, and files with similar names, stay.
func TestOlderCopiesGo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mesh.db")
	write := func(name string, age time.Duration) string {
		t.Helper()
		if err := os.WriteFile(name, []byte("older"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, time.Time{}, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
		return name
	}
	exists := func(name string) bool {
		_, err := os.Lstat(name)
		return err == nil
	}
	old, young := write(OlderCopy(path, 1), 8*24*time.Hour), write(OlderCopy(path, 12), 6*24*time.Hour)
	others := []string{write(path+".schema-", 99*24*time.Hour), write(path+".schema-1x", 99*24*time.Hour), write(path+".schema-1.gz", 99*24*time.Hour)}
	s := open(t, path, Config{})
	if exists(old) || !exists(young) {
		t.Errorf("after a start: old %t, young %t", exists(old), exists(young))
	}
	if _, err := s.Sweep(t.Context(), time.Now().Add(23*time.Hour), 100); err != nil || !exists(young) {
		t.Errorf("before the week is over it is there: %t, %v", exists(young), err)
	}
	if _, err := s.Sweep(t.Context(), time.Now().Add(25*time.Hour), 100); err != nil || exists(young) {
		t.Errorf("a week after the migration it is there: %t, %v", exists(young), err)
	}
	for _, name := range others {
		if !exists(name) {
			t.Errorf("%s is gone", name)
		}
	}
}
