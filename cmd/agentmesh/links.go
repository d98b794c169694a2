package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/owner"
)

// linksCmd has the commands for links to other networks.
type linksCmd struct {
	List   linksListCmd   `cmd:"" default:"withargs" help:"List the configured links and their state."`
	Status linksStatusCmd `cmd:"" help:"Show the state of a link."`
	Test   linksTestCmd   `cmd:"" help:"Connect a link again and report problems."`
}

type linksListCmd struct{}

func (c *linksListCmd) Run(ctx context.Context, a *app) error {
	return ask(ctx, a, get[owner.List[bridge.LinkStatus]]("links", nil), func(page owner.List[bridge.LinkStatus]) {
		if len(page.Items) == 0 {
			a.Note("no links are configured; docs/config.md explains how to add one")
			return
		}
		rows := [][]string{{"LINK", "KIND", "STATE", "SINCE", "PEERS", "TO"}}
		for _, l := range page.Items {
			rows = append(rows, []string{l.Name, l.Kind, string(l.State), terminal.FormatTime(l.Since), strconv.Itoa(l.Peers), l.To})
		}
		a.Table(rows)
	})
}

type linksStatusCmd struct {
	Link string `arg:"" help:"Name of the link."`
}

func (c *linksStatusCmd) Run(ctx context.Context, a *app) error {
	o, err := a.connect(ctx)
	if err != nil {
		return err
	}
	raw, err := o.Call(ctx, http.MethodGet, "links", nil, nil)
	if err = errors.Join(err, o.Close()); err != nil {
		return err
	}
	page, err := daemon.Decode[owner.List[bridge.LinkStatus]](raw)
	if err != nil {
		return err
	}
	for _, l := range page.Items {
		if l.Name != c.Link {
			continue
		}
		if a.globals.JSON {
			return a.JSON(l)
		}
		a.Table([][]string{
			{"link", l.Name}, {"kind", l.Kind}, {"to", l.To}, {"state", string(l.State)}, {"since", terminal.FormatTime(l.Since)},
			{"peers", strconv.Itoa(l.Peers)}, {"next try", terminal.FormatTime(l.Retry)}, {"last error", orDash(l.Error)},
		})
		return nil
	}
	return exit.FailHint(exit.Input, fmt.Errorf("there is no link %s", terminal.Clean(c.Link)), "agentmesh links list")
}

type linksTestCmd struct {
	Link string `arg:"" help:"Name of the link."`
}

func (c *linksTestCmd) Run(ctx context.Context, a *app) error {
	result, err := askFor(ctx, a, post[daemon.LinkTest]("links/"+url.PathEscape(c.Link)+"/test", nil), func(t daemon.LinkTest) {
		if t.OK {
			a.Print("%s: works", terminal.Clean(t.Name))
		}
	})
	switch {
	case err != nil:
		return err
	case result.OK:
		return nil
	}
	return exit.FailHint(exit.Unavailable, fmt.Errorf("%s: %s", result.Name, result.Error), "agentmesh links status "+terminal.Clean(result.Name))
}
