package main

import (
	"context"
	"errors"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
)

type registerCmd struct {
	Link  string `arg:"" optional:"" placeholder:"LINK" help:"Join the directory of this link, https://…/join#CODE, from now on. Without a link: register where the configuration says."`
	Adopt bool   `help:"Adopt the new id if the directory assigns one. Peers then know the node only by the new id."`
	directoryFlag
}

type withdrawCmd struct {
	directoryFlag
}

// directoryFlag names the directories that a command uses instead of the configured ones.
type directoryFlag struct {
	Directory []string `placeholder:"URL" sep:"none" help:"Use this directory instead of the configured ones. Repeat for more directories."`
}

func (c *registerCmd) Run(ctx context.Context, a *app) error {
	if c.Link != "" {
		return a.join(ctx, owner.Register{Adopt: c.Adopt}, c.Link)
	}
	return a.callAndShowListings(ctx, c.Directory, func(directory string) owner.Call[owner.List[owner.Listing]] {
		return owner.RegisterCard.With(owner.Register{Directory: directory, Adopt: c.Adopt})
	})
}

// join adds the directory of a link to the configuration, and registers the node there.
func (a *app) join(ctx context.Context, order owner.Register, link string) error {
	if _, _, err := client.ParseJoinLink(link); err != nil {
		return exit.Fail(exit.Usage, err)
	}
	o, err := a.connect(ctx)
	if err != nil {
		return err
	}
	change, err := daemon.Fetch(ctx, o, daemon.JoinDirectory.With(daemon.Join{Link: link}))
	if err = errors.Join(err, o.Close()); err != nil {
		return err
	}
	order.Directory = change.Name
	register := owner.RegisterCard.With(order)
	var page owner.List[owner.Listing]
	if change.Running {
		page, err = daemon.AwaitChange(ctx, o, register) // works although o is closed: it makes its own clients
	} else {
		page, err = fetch(ctx, a, register)
	}
	if err != nil {
		return err
	}
	return a.showListings(page)
}

func (c *withdrawCmd) Run(ctx context.Context, a *app) error {
	return a.callAndShowListings(ctx, c.Directory, func(directory string) owner.Call[owner.List[owner.Listing]] {
		return owner.WithdrawCard.With(owner.Withdraw{Directory: directory})
	})
}

// fetchDirectories makes a call for each directory, or one call with "" for all configured directories.
func fetchDirectories[T any](ctx context.Context, a *app, directories []string, newCall func(string) owner.Call[owner.List[T]]) (page owner.List[T], err error) {
	page = owner.Page[T](nil, "")
	a.server.Directory = directories // used only if serve is not running; serve keeps the directories that it started with
	if len(directories) == 0 {
		directories = []string{""}
	}
	err = a.withClient(ctx, func(o *daemon.Client) error {
		for _, directory := range directories {
			found, err := daemon.Fetch(ctx, o, newCall(directory))
			if err != nil {
				return err
			}
			page.Items = append(page.Items, found.Items...)
		}
		return nil
	})
	return page, err
}

// callAndShowListings makes the calls of [fetchDirectories] and shows the listings.
func (a *app) callAndShowListings(ctx context.Context, directories []string, newCall func(string) owner.Call[owner.List[owner.Listing]]) error {
	page, err := fetchDirectories(ctx, a, directories, newCall)
	if err == nil || len(page.Items) > 0 { // after an error, show the listings from the calls before it
		err = errors.Join(err, a.showListings(page))
	}
	return err
}

// showListings shows the listings. It returns an error if any directory failed.
func (a *app) showListings(page owner.List[owner.Listing]) error {
	err := a.report(page, func() {
		for _, r := range page.Items {
			a.Print("%s", terminal.Clean(r.Describe(terminal.FormatTime)))
			if r.Hint != "" {
				a.Hint("%s", terminal.Clean(r.Hint))
			}
		}
	})
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
	return exit.Unless(code == exit.OK, code)
}
