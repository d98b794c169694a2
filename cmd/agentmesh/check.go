package main

import (
	"context"

	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
)

// checkCmd reads everything in the data directory and says what is wrong with it. It needs the database for itself.
type checkCmd struct {
	JSON bool `help:"Print the result as JSON."`
}

func (c *checkCmd) Run(ctx context.Context, a *app) error {
	dir, err := a.dataDir()
	if err != nil {
		return err
	}
	stop := a.Working("reading "+dir, nil)
	r, err := datadir.Dir(dir).Check(ctx, a.passphrase)
	stop()
	if err != nil {
		return err
	}
	if c.JSON {
		err = a.JSON(r)
	} else {
		for _, p := range r.Problems {
			a.Print("%s", terminal.Clean(p))
		}
		if r.OK {
			a.Print("ok: %d conversations, every transcript whole", r.Conversations)
		}
	}
	if err == nil && !r.OK {
		err = exit.Quietly(exit.No)
	}
	return err
}
