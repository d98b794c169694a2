package main

import (
	"context"

	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
)

// compactCmd returns the database's free pages to the disk. It needs exclusive use of the database.
type compactCmd struct{}

func (c *compactCmd) Run(ctx context.Context, a *app) error {
	dir, err := a.fileDir("compact")
	if err != nil {
		return err
	}
	stop := a.StartProgress("compacting "+datadir.FileDatabase, nil)
	r, err := datadir.Dir(dir).Compact(ctx)
	stop()
	if err != nil {
		return err
	}
	if a.globals.JSON {
		return a.JSON(r)
	}
	a.Print("%s", r)
	return nil
}
