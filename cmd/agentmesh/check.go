package main

import (
	"cmp"
	"context"

	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
)

// checkCmd reads everything in the data directory and reports problems. It needs exclusive use of the database.
type checkCmd struct{}

func (c *checkCmd) Run(ctx context.Context, a *app) error {
	dir, err := a.fileDir("check")
	if err != nil {
		return err
	}
	stop := a.StartProgress("reading "+dir, nil)
	r, err := datadir.Dir(dir).Check(ctx, a.readKeyPassphrase)
	stop()
	if err != nil {
		return err
	}
	err = a.report(r, func() {
		for _, p := range r.Problems {
			a.Print("%s", terminal.Clean(p))
		}
		if r.OK {
			a.Print("ok: %s, every transcript is complete", countText(r.Conversations, "conversation"))
		}
	})
	return cmp.Or(err, exit.Unless(r.OK, exit.No))
}
