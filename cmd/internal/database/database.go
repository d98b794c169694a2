// Package database has the commands that work on a whole database: migrate, import and compact. Import and compact
// work only while agentmesh serve is not running.
package database

import (
	"context"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/engine"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
)

// Command has the commands of agentmesh db.
type Command struct {
	Migrate Migrate `cmd:"" help:"Make the tables in PostgreSQL."`
	Import  Import  `cmd:"" help:"Copy another database into the configured one, which must be empty, while agentmesh serve is not running."`
}

// Env is what the commands need from the program.
type Env struct {
	*terminal.UI
	JSON    bool
	Dir     datadir.Dir
	Source  config.Source
	Options func() (daemon.Options, error)
}

func (e Env) engineOptions() (engine.Options, error) {
	o, err := e.Options()
	return engine.Options{Config: o.Config, Source: o.Source, Dir: o.Dir, Logger: o.Logger}, err
}

// Migrate is agentmesh db migrate.
type Migrate struct {
	Print bool `help:"Print the SQL text instead, for the owner of the schema. Without store.postgres, the text makes all tables."`
}

// Run executes the command.
func (c *Migrate) Run(ctx context.Context, e Env) error {
	o, err := e.engineOptions()
	if err != nil {
		return err
	}
	if c.Print {
		text, err := engine.MigrationScript(ctx, o)
		switch {
		case err != nil:
			return err
		case text == "":
			e.Note("the tables need no change")
		default:
			e.Print("%s", strings.TrimSuffix(text, "\n"))
		}
		return nil
	}
	before, after, err := engine.Migrate(ctx, o)
	switch {
	case err != nil:
		return err
	case e.JSON:
		return e.UI.JSON(map[string]int{"before": before, "after": after})
	case before == after:
		e.Print("the tables have version %d and need no change", after)
	default:
		e.Print("made the tables, version %d", after)
	}
	return nil
}

// Import is agentmesh db import.
type Import struct {
	From config.Connection `arg:"" optional:"" help:"Data directory with a database file, or a PostgreSQL database: its connection string, or file:PATH of a file that contains it. Default: the data directory, if store.postgres is set."`
}

// Run executes the command.
func (c *Import) Run(ctx context.Context, e Env) error {
	o, err := e.engineOptions()
	if err != nil {
		return err
	}
	var progress engine.Progress
	stop := e.StartProgress("copying the database", progress.String)
	copied, err := engine.Import(ctx, o, string(c.From), &progress)
	stop()
	if err != nil {
		return err
	}
	if e.JSON {
		return e.UI.JSON(copied.Counts())
	}
	e.Print("copied and compared %s", &copied)
	return nil
}

// Compact returns the database's free pages to the disk. It needs exclusive use of the database.
type Compact struct{}

// Run executes the command.
func (c *Compact) Run(ctx context.Context, e Env) error {
	if err := engine.RequireFile(e.Source, "compact"); err != nil {
		return err
	}
	stop := e.StartProgress("compacting "+datadir.FileDatabase, nil)
	r, err := e.Dir.Compact(ctx)
	stop()
	if err != nil {
		return err
	}
	if e.JSON {
		return e.UI.JSON(r)
	}
	e.Print("%s", r)
	return nil
}
