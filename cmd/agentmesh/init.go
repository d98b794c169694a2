package main

import (
	"context"
	"fmt"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
)

// initCmd makes a new agent; serve does the same on its first run.
type initCmd struct {
	serverFlags
	Encrypt bool `help:"Encrypt the private keys with a passphrase, which every start then needs."`
}

func (c *initCmd) Run(ctx context.Context, a *app) error {
	a.server = c.serverFlags
	o, err := a.options()
	if err != nil {
		return err
	}
	if o.Dir.HasAgent() {
		return exit.FailHint(exit.Config, fmt.Errorf("there is already an agent in %s", o.Dir), "show it with: agentmesh keys show")
	}
	var passphrase []byte
	if c.Encrypt {
		if passphrase, err = a.readNewPassphrase("the signing key"); err != nil {
			return exit.Fail(exit.Usage, err)
		}
	}
	if err := daemon.Init(ctx, o, passphrase); err != nil {
		return err
	}
	keys, err := a.readPublicKeys(ctx)
	if err != nil {
		return err
	}
	return a.report(keys, func() {
		a.Table([][]string{{"agent", keys.AgentID}, {"name", o.Config.Name}, {"key", keys.Fingerprint}, {"age", keys.AgeRecipient}, {"data", string(o.Dir)}})
		a.Note("back up %s: anyone who has its keys can act as this agent", o.Dir)
	})
}
