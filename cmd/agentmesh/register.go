package main

import (
	"context"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/owner"
)

// registerCmd registers the card in all configured directories, or in the one that --directory names.
type registerCmd struct {
	Adopt bool `help:"Adopt the new id if the directory assigns one. Peers then know the node only by the new id."`
	JSON  bool `help:"Print the result as JSON."`
}

// withdrawCmd withdraws the card from all configured directories, or from the one that --directory names.
type withdrawCmd struct {
	JSON bool `help:"Print the result as JSON."`
}

// oneDirectory returns the directory if the user named exactly one, else "".
func (g Globals) oneDirectory() string {
	if len(g.Directory) == 1 {
		return g.Directory[0]
	}
	return ""
}

func (c *registerCmd) Run(ctx context.Context, a *app) error {
	return a.askDirectories(ctx, c.JSON, owner.RegisterCard.With(owner.Register{Directory: a.globals.oneDirectory(), Adopt: c.Adopt}))
}

func (c *withdrawCmd) Run(ctx context.Context, a *app) error {
	return a.askDirectories(ctx, c.JSON, owner.WithdrawCard.With(owner.Withdraw{Directory: a.globals.oneDirectory()}))
}

// askDirectories makes a call that has one result per directory. It returns an error if any directory failed.
func (a *app) askDirectories(ctx context.Context, asJSON bool, c owner.Call[owner.List[owner.Listing]]) error {
	show := func(page owner.List[owner.Listing]) {
		for _, r := range page.Items {
			line := r.Directory + ": " + string(r.State)
			if !r.Expires.IsZero() {
				line += ", expires " + terminal.FormatTime(r.Expires)
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
	page, err := askFor(ctx, a, asJSON, c, show)
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
			code = exit.Unavailable // another attempt may succeed
		}
	}
	if code != exit.OK {
		return exit.FailSilently(code)
	}
	return nil
}
