package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/store/bolt"
	"github.com/agentmesh/agentmesh/store/engine"
	"github.com/agentmesh/agentmesh/store/postgres"
)

// Migrate makes the tables of the configured PostgreSQL database. before and after are the versions of the tables.
func Migrate(ctx context.Context, o Options) (before, after int, err error) {
	if o.Config.Store.Postgres == "" {
		return 0, 0, exit.FailHint(exit.Config, errors.New("store.postgres is not set"), "agentmesh serve makes a database file by itself")
	}
	cfg, err := o.postgresConfig()
	if err != nil {
		return 0, 0, err
	}
	before, after, err = postgres.Migrate(ctx, cfg)
	return before, after, datadir.ExplainPostgres(err)
}

// MigrationScript returns the SQL text of what Migrate would do, or "" if there is nothing to do. If no PostgreSQL
// database is configured, it returns the text for an empty one.
func MigrationScript(ctx context.Context, o Options) (string, error) {
	cfg, err := o.postgresConfig()
	if err != nil {
		return "", err
	}
	text, err := postgres.MigrationScript(ctx, cfg)
	return text, datadir.ExplainPostgres(err)
}

// Progress describes an import that is running. It is safe for concurrent use.
type Progress struct {
	rows   atomic.Int64
	copied atomic.Bool // all rows are copied
}

// String implements [fmt.Stringer].
func (p *Progress) String() string {
	if p.copied.Load() {
		return fmt.Sprintf("comparing %d rows", p.rows.Load())
	}
	return fmt.Sprintf("%d rows so far", p.rows.Load())
}

// Import copies a database into the configured one, which must be empty, and returns the numbers of rows. source is a
// data directory, or a PostgreSQL database as a connection string or file:PATH. If source is empty, Import copies the
// database file in the data directory. No other process may use either database. If an error or a crash interrupts the
// copy, no process opens the configured database until another import has finished.
func Import(ctx context.Context, o Options, source string, p *Progress) (engine.Tally, error) {
	fill, release, err := o.open(ctx, source)
	if err != nil {
		return engine.Tally{}, err
	}
	defer release()
	countingFill := func(put func(engine.Row) error) (engine.Numbers, error) {
		n, err := fill(func(r engine.Row) error {
			p.rows.Add(1)
			return put(r)
		})
		p.copied.Store(err == nil)
		return n, err
	}
	if o.Config.Store.Postgres == "" {
		return o.Dir.ImportDatabase(ctx, countingFill)
	}
	cfg, err := o.postgresConfig()
	if err != nil {
		return engine.Tally{}, err
	}
	if _, err := datadir.Open(string(o.Dir)); err != nil {
		return engine.Tally{}, err
	}
	unlock, err := o.Dir.Lock()
	if err != nil {
		return engine.Tally{}, err
	}
	defer unlock()
	tally, err := postgres.Import(ctx, cfg, countingFill)
	if _, explained := errors.AsType[*exit.Error](err); !explained { // an error of the source is explained already
		err = datadir.ExplainPostgres(err)
	}
	return tally, err
}

// open opens the database to import, and returns a function that supplies its rows. source is as in [Import].
func (o Options) open(ctx context.Context, source string) (fill engine.Fill, release func(), err error) {
	isPostgres := strings.HasPrefix(source, "file:") || strings.Contains(source, "://") || strings.Contains(source, "=")
	if isPostgres {
		url, err := o.Source.ConnectionString("the database to import", config.Connection(source))
		if err != nil {
			return nil, nil, exit.Fail(exit.Config, err)
		}
		return func(put func(engine.Row) error) (engine.Numbers, error) {
			n, err := postgres.Export(ctx, postgres.Config{URL: url, Name: instanceName(), AllowUnsafe: true, Log: o.Logger}, put)
			return n, explainSource(datadir.ExplainPostgres(err))
		}, func() {}, nil
	}
	dir := datadir.Dir(source)
	if source == "" {
		if dir = o.Dir; o.Config.Store.Postgres == "" {
			return nil, nil, exit.FailHint(exit.Usage, errors.New("store.postgres is not set, so the database file would be copied into itself"),
				"set store.postgres, or name the PostgreSQL database to import: file:PATH of its connection string")
		}
	}
	if _, err := os.Stat(dir.Path(datadir.FileDatabase)); err != nil {
		return nil, nil, exit.FailHint(exit.Config, fmt.Errorf("there is no database to import: %w", err), "name a data directory")
	}
	db, closeDir, err := dir.OpenStore(ctx, bolt.Config{Logger: o.Logger})
	if err != nil {
		return nil, nil, err
	}
	release = func() { _ = db.Close(); closeDir() } // nothing was written
	return func(put func(engine.Row) error) (engine.Numbers, error) {
		n, err := db.Export(ctx, put)
		if errors.Is(err, bolt.ErrDamaged) {
			err = explainSource(exit.FailHint(exit.Config, err, "nothing was copied; agentmesh restore unpacks a backup into a new directory"))
		}
		return n, err
	}, release, nil
}

// explainSource adds to an error that it comes from the database to import.
func explainSource(err error) error {
	if f, ok := errors.AsType[*exit.Error](err); ok {
		return exit.FailHint(f.Code, fmt.Errorf("the database to import: %w", f.Err), f.Hint)
	}
	return err
}
