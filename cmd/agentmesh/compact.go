package main

import (
	"context"

	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
)

// compactCmd returns the database's free pages to the disk. It needs exclusive use of the database.
type compactCmd struct{}

type compactReport struct {
	Before int64 `json:"before"`
	After  int64 `json:"after"`
}

func (c *compactCmd) Run(ctx context.Context, a *app) error {
	dir, err := a.dataDir()
	if err != nil {
		return err
	}
	var r compactReport
	stop := a.StartProgress("compacting "+datadir.FileDatabase, nil)
	r.Before, r.After, err = datadir.Dir(dir).Compact(ctx)
	stop()
	if err != nil {
		return err
	}
	if a.globals.JSON {
		return a.JSON(r)
	}
	if r.After == r.Before {
		a.Print("%s has %d bytes and no free space", datadir.FileDatabase, r.Before)
		return nil
	}
	a.Print("%s had %d bytes and now has %d", datadir.FileDatabase, r.Before, r.After)
	return nil
}
