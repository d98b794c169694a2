package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/owner"
)

// linkTestTime bounds the test of one link.
const linkTestTime = 20 * time.Second

// linksCmd is about connections to other networks.
type linksCmd struct {
	List   linksListCmd   `cmd:"" default:"withargs" help:"List the configured links and how they stand."`
	Status linksStatusCmd `cmd:"" help:"Say how one link stands."`
	Test   linksTestCmd   `cmd:"" help:"Connect a link anew and say what is wrong with it."`
}

type linksListCmd struct {
	JSON bool `help:"Print the result as JSON."`
}

func (c *linksListCmd) Run(ctx context.Context, a *app) error {
	return ask(ctx, a, c.JSON, get[owner.List[bridge.LinkStatus]]("links", nil), func(page owner.List[bridge.LinkStatus]) {
		if len(page.Items) == 0 {
			a.note("no links are configured; docs/config.md tells how")
			return
		}
		rows := [][]string{{"LINK", "KIND", "STATE", "SINCE", "PEERS", "TO"}}
		for _, l := range page.Items {
			rows = append(rows, []string{l.Name, l.Kind, string(l.State), when(l.Since), strconv.Itoa(l.Peers), l.To})
		}
		a.table(rows)
	})
}

type linksStatusCmd struct {
	Link string `arg:"" help:"Name of the link."`
	JSON bool   `help:"Print the result as JSON."`
}

func (c *linksStatusCmd) Run(ctx context.Context, a *app) error {
	o, err := a.owner(ctx)
	if err != nil {
		return err
	}
	raw, err := o.call(ctx, http.MethodGet, "links", nil, nil)
	if err = errors.Join(err, o.close()); err != nil {
		return err
	}
	page, err := decode[owner.List[bridge.LinkStatus]](raw)
	if err != nil {
		return err
	}
	for _, l := range page.Items {
		if l.Name != c.Link {
			continue
		}
		if c.JSON {
			return a.json(l)
		}
		a.table([][]string{
			{"link", l.Name}, {"kind", l.Kind}, {"to", l.To}, {"state", string(l.State)}, {"since", when(l.Since)},
			{"peers", strconv.Itoa(l.Peers)}, {"next try", when(l.Retry)}, {"last error", orDash(l.Error)},
		})
		return nil
	}
	return failHint(exitInput, fmt.Errorf("there is no link %s", clean(c.Link)), "agentmesh links list")
}

type linksTestCmd struct {
	Link string `arg:"" help:"Name of the link."`
	JSON bool   `help:"Print the result as JSON."`
}

func (c *linksTestCmd) Run(ctx context.Context, a *app) error {
	result, err := answer(ctx, a, c.JSON, post[linkTest]("links/"+url.PathEscape(c.Link)+"/test", nil), func(t linkTest) {
		if t.OK {
			a.print("%s: works", clean(t.Name))
		}
	})
	switch {
	case err != nil:
		return err
	case result.OK:
		return nil
	}
	return failHint(exitUnavailable, fmt.Errorf("%s: %s", result.Name, result.Error), "agentmesh links status "+clean(result.Name))
}
