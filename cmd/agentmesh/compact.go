package main

import (
	"context"
	"errors"
	"syscall"

	"github.com/agentmesh/agentmesh/store/bolt"
)

// compactCmd gives the database's free pages back to the disk. It needs the database for itself.
type compactCmd struct {
	JSON bool `help:"Print the result as JSON."`
}

type compactReport struct {
	Before int64 `json:"before"`
	After  int64 `json:"after"`
}

func (c *compactCmd) Run(ctx context.Context, a *app) error {
	dir, err := a.dataDir()
	if err != nil {
		return err
	}
	h := home{dir}
	if !h.hasDatabase() {
		return noAgent(dir)
	}
	if h, err = openHome(dir); err != nil {
		return err
	}
	var r compactReport
	stop := a.working("compacting "+fileDatabase, nil)
	r.Before, r.After, err = bolt.CompactInPlace(ctx, h.path(fileDatabase))
	stop()
	if errors.Is(err, syscall.ENOSPC) {
		return roomFault(err)
	}
	if err != nil {
		return h.openFault(err)
	}
	if c.JSON {
		return a.json(r)
	}
	if r.After == r.Before {
		a.print("%s has %d bytes and nothing to give back", fileDatabase, r.Before)
		return nil
	}
	a.print("%s had %d bytes and has %d", fileDatabase, r.Before, r.After)
	return nil
}
