//go:build slow

package engine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
	"github.com/agentmesh/agentmesh/store/engine"
	"github.com/agentmesh/agentmesh/store/postgres"
	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// importEnv is the variable with the arguments of a child process that imports until it is killed, one per line: the
// database to import, the data directory, and the PostgreSQL database of the data directory, which may be empty.
const importEnv = "ENGINE_TEST_IMPORT"

func TestMain(m *testing.M) {
	if databases := os.Getenv(importEnv); databases != "" {
		importChild(databases)
	}
	os.Exit(pgtest.Main(m))
}

// importChild imports, prints a line when the first rows are copied, and ends the process.
func importChild(databases string) {
	names := strings.Split(databases, "\n")
	o := Options{Config: config.Default(), Dir: datadir.Dir(names[1]), Logger: slog.New(slog.DiscardHandler)}
	o.Config.Store.Postgres = config.Connection(names[2])
	var p Progress
	ended := make(chan error, 1)
	go func() {
		_, err := Import(context.Background(), o, names[0], &p)
		ended <- err
	}()
	for said := false; ; {
		if !said && p.rows.Load() > 0 {
			said = true
			fmt.Println("copying")
		}
		select {
		case err := <-ended:
			fmt.Println("ended", err)
			os.Exit(0)
		case <-time.After(time.Millisecond):
		}
	}
}

// newOptions returns options for an empty database: a file, or the schema that database names.
func newOptions(t testing.TB, database string) Options {
	t.Helper()
	dir, err := datadir.Open(filepath.Join(t.TempDir(), "data"))
	if err != nil {
		t.Fatal(err)
	}
	cfg := config.Default()
	cfg.Store.Postgres = config.Connection(database)
	return Options{Config: cfg, Dir: dir, Logger: slog.New(slog.DiscardHandler)}
}

func open(t *testing.T, o Options) (s store.Store, closeStore func()) {
	t.Helper()
	s, release, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	closeStore = func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		release()
	}
	return s, closeStore
}

func nameOf(o Options) string {
	if o.Config.Store.Postgres != "" {
		return string(o.Config.Store.Postgres)
	}
	return string(o.Dir)
}

// TestImport copies everything from a file to PostgreSQL and back, compares, and goes on with each copy.
func TestImport(t *testing.T) {
	t.Parallel()
	file := newOptions(t, "")
	s, closeStore := open(t, file)
	lease := storetest.Fill(t, s)
	content := storetest.Content(t, s)
	closeStore()
	from := file
	for _, to := range []Options{newOptions(t, pgtest.Database(t)), newOptions(t, ""), newOptions(t, pgtest.Database(t)), newOptions(t, "")} {
		var p Progress
		tally, err := Import(t.Context(), to, nameOf(from), &p)
		if err != nil {
			t.Fatal(err)
		}
		if want := "27 cards, 30 changes, 96 messages, 16 conversations, 80 replays, 25 records"; tally.String() != want {
			t.Errorf("Import = %s, want %s", &tally, want)
		}
		if got := p.String(); got != "comparing 274 rows" {
			t.Errorf("progress is %q", got)
		}
		if to.Config.Store.Postgres == "" {
			if err := bolt.Check(t.Context(), to.Dir.Path(datadir.FileDatabase)); err != nil {
				t.Error(err)
			}
		}
		s, closeStore := open(t, to)
		if got := storetest.Content(t, s); !slices.Equal(content, got) {
			t.Errorf("the copy differs:\n%s\n%s", strings.Join(content, "\n"), strings.Join(got, "\n"))
		}
		closeStore()
		from = to
	}
	for _, to := range []Options{newOptions(t, pgtest.Database(t)), newOptions(t, "")} {
		if _, err := Import(t.Context(), to, nameOf(from), new(Progress)); err != nil {
			t.Fatal(err)
		}
		s, closeStore := open(t, to)
		storetest.WantContinued(t, s, lease)
		closeStore()
	}
}

// TestImportModel applies random units, and compares every answer with a model, while the database moves between
// engines.
func TestImportModel(t *testing.T) {
	t.Parallel()
	var at Options
	closeStore := func() {}
	storetest.RunMoves(t,
		func(t *testing.T) (s store.Store) {
			at = newOptions(t, "")
			s, closeStore = open(t, at)
			return s
		},
		func(t *testing.T, _ store.Store) store.Store {
			closeStore()
			to := newOptions(t, "")
			if at.Config.Store.Postgres == "" {
				to = newOptions(t, pgtest.Database(t))
			}
			if _, err := Import(t.Context(), to, nameOf(at), new(Progress)); err != nil {
				t.Fatal(err)
			}
			at = to
			var s store.Store
			s, closeStore = open(t, at)
			return s
		})
	closeStore()
}

// writeCards makes a database file with n cards, as large as usual ones.
func writeCards(t testing.TB, dir datadir.Dir, n int) {
	t.Helper()
	expires := time.Now().Add(100 * 24 * time.Hour)
	if _, err := dir.ImportDatabase(t.Context(), func(put func(engine.Row) error) (engine.Numbers, error) {
		for i := range n {
			card := engine.CardRow{Change: uint64(i + 1), Card: store.Card{
				ID: fmt.Sprintf("am_%08d", i), Rev: store.Rev(i + 1), Body: make([]byte, 1200), Expires: expires, Counts: []string{"host:h"},
				Terms: []string{"cap:translate", "intent:book", "word:" + fmt.Sprint(i%1000), "word:agent", "word:mesh"},
			}}
			row := engine.Row{Kind: engine.KindCard, Num: uint64(i + 1), Value: engine.EncodeCard(card)}
			if err := put(row); err != nil {
				return engine.Numbers{}, err
			}
		}
		for i := range n {
			change := engine.ChangeRow{Seq: uint64(i + 1), CardChange: store.CardChange{ID: fmt.Sprintf("am_%08d", i), At: expires}}
			if err := put(engine.Row{Kind: engine.KindChange, Num: uint64(i + 1), Due: engine.Never, Value: engine.EncodeChange(change)}); err != nil {
				return engine.Numbers{}, err
			}
		}
		return engine.Numbers{Rev: uint64(n), Card: uint64(n), Change: uint64(n)}, nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestImportKilled kills imports in the middle. The target is not served until another import is finished.
func TestImportKilled(t *testing.T) {
	t.Parallel()
	const cards = 5000
	file := newOptions(t, "")
	writeCards(t, file.Dir, cards)
	tables := newOptions(t, pgtest.Database(t))
	for _, move := range []struct{ from, to Options }{{file, tables}, {tables, newOptions(t, "")}} {
		killed := 0
		for try := range 4 {
			if killImport(t, move.from, move.to, time.Duration(try)*time.Duration(rand.Int64N(int64(100*time.Millisecond)))) {
				killed++
			} else {
				break // it was finished before
			}
			_, _, err := Open(t.Context(), move.to)
			if !errors.Is(err, engine.ErrUnfinished) && !errors.Is(err, postgres.ErrCopying) { // the server notices the end of a process a little later
				t.Fatalf("Open after a killed import = %v", err)
			}
		}
		if killed == 0 {
			t.Fatal("no import was killed in the middle")
		}
		_, err := Import(t.Context(), move.to, nameOf(move.from), new(Progress))
		if err != nil && !(killed < 4 && errors.Is(err, engine.ErrNotEmpty)) {
			t.Fatal(err)
		}
		s, closeStore := open(t, move.to)
		if n, err := s.Cards().Count(t.Context(), time.Now()); n != cards || err != nil {
			t.Errorf("Count = %d, %v", n, err)
		}
		closeStore()
	}
}

// killImport starts an import in another process, and kills it some time after it has begun to copy rows. It returns
// false if the import was finished before.
func killImport(t *testing.T, from, to Options, after time.Duration) bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), importEnv+"="+nameOf(from)+"\n"+string(to.Dir)+"\n"+string(to.Config.Store.Postgres))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "copying" {
		t.Fatalf("the import says %q", lines.Text())
	}
	timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	finished := lines.Scan() && lines.Text() == "ended <nil>"
	_ = cmd.Wait() // it was killed
	return !finished
}

// BenchmarkImport copies 100,000 cards from a file to PostgreSQL and back.
func BenchmarkImport(b *testing.B) {
	const cards = 100_000
	file := newOptions(b, "")
	writeCards(b, file.Dir, cards)
	for b.Loop() {
		tables, back := newOptions(b, pgtest.Database(b)), newOptions(b, "")
		start := time.Now()
		if _, err := Import(b.Context(), tables, nameOf(file), new(Progress)); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(start).Seconds(), "s/to-PostgreSQL")
		start = time.Now()
		if _, err := Import(b.Context(), back, nameOf(tables), new(Progress)); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(start).Seconds(), "s/to-file")
	}
}
