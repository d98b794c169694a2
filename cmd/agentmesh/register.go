package main

import (
	"context"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/owner"
)

// The directories that these commands mean are the configured ones; --directory narrows them to one.

type registerCmd struct {
	Adopt bool `help:"Take over the id that the directory gives, if it gives one of its own. Peers then know the node only by its new id."`
	JSON  bool `help:"Print the result as JSON."`
}

type withdrawCmd struct {
	JSON bool `help:"Print the result as JSON."`
}

// oneDirectory is the directory that the user named, "" for all.
func (g Globals) oneDirectory() string {
	if len(g.Directory) == 1 {
		return g.Directory[0]
	}
	return ""
}

func (c *registerCmd) Run(ctx context.Context, a *app) error {
	return a.atDirectories(ctx, c.JSON, owner.RegisterCard.With(owner.Register{Directory: a.globals.oneDirectory(), Adopt: c.Adopt}))
}

func (c *withdrawCmd) Run(ctx context.Context, a *app) error {
	return a.atDirectories(ctx, c.JSON, owner.WithdrawCard.With(owner.Withdraw{Directory: a.globals.oneDirectory()}))
}

// atDirectories makes a call that has one result per directory. It fails when any of them failed.
func (a *app) atDirectories(ctx context.Context, asJSON bool, c owner.Call[owner.List[owner.Listing]]) error {
	show := func(page owner.List[owner.Listing]) {
		for _, r := range page.Items {
			line := r.Directory + ": " + string(r.State)
			if !r.Expires.IsZero() {
				line += ", expires " + terminal.When(r.Expires)
			}
			if r.Error != "" {
				line += ": " + r.Error
			}
			a.Print("%s", terminal.Clean(line))
			if r.Hint != "" {
				a.Hint("%s", terminal.Clean(r.Hint))
			}
		}
	}
	page, err := answer(ctx, a, asJSON, c, show)
	if err != nil {
		return err
	}
	code := exit.OK
	for _, r := range page.Items {
		switch {
		case r.Error == "":
		case r.Refused && code == exit.OK:
			code = exit.Forbidden
		case !r.Refused:
			code = exit.Unavailable // it is worth another attempt
		}
	}
	if code != exit.OK {
		return exit.Quietly(code)
	}
	return nil
}
