package main

import (
	"context"
	"fmt"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
)

// initCmd makes a new agent; serve does the same on its first run.
type initCmd struct {
	Encrypt bool `help:"Encrypt the two private keys with a passphrase, which every start then needs."`
	JSON    bool `help:"Print the result as JSON."`
}

func (c *initCmd) Run(ctx context.Context, a *app) error {
	o, err := a.options()
	if err != nil {
		return err
	}
	if o.Dir.HasAgent() {
		return exit.FailHint(exit.Config, fmt.Errorf("there is an agent in %s", o.Dir), "look at it with: agentmesh keys show")
	}
	var passphrase []byte
	if c.Encrypt {
		if passphrase, err = a.newSecret("the signing key"); err != nil {
			return exit.Fail(exit.Usage, err)
		}
	}
	if err := daemon.Init(ctx, o, passphrase); err != nil {
		return err
	}
	keys, err := a.publicKeys(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return a.JSON(keys)
	}
	a.Table([][]string{{"agent", keys.AgentID}, {"name", o.Config.Name}, {"key", keys.Fingerprint}, {"age", keys.AgeRecipient}, {"data", string(o.Dir)}})
	a.Note("back up %s: whoever has its keys is this agent", o.Dir)
	return nil
}
