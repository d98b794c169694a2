package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/bridge"
)

type linksCmd struct {
	List   linksListCmd   `cmd:"" default:"withargs" help:"List the configured links and their state."`
	Status linksStatusCmd `cmd:"" help:"Show the state of a link."`
	Test   linksTestCmd   `cmd:"" help:"Connect a link again and report problems."`
	Add    linksAddCmd    `cmd:"" help:"Add a link. If agentmesh serve is running, it tests the link and uses it at once."`
	Remove linksRemoveCmd `cmd:"" help:"Remove a link, and the copy of its key if 'agentmesh links add' stored one."`
}

type linksListCmd struct{}

func (c *linksListCmd) Run(ctx context.Context, a *app) error {
	heads := []string{"LINK", "KIND", "STATE", "SINCE", "PEERS", "TO"}
	return callAndShowList(ctx, a, daemon.ListLinks.Call(), "there are no links; add one with: agentmesh links add KIND URL", heads, func(l bridge.LinkStatus) []string {
		return []string{l.Name, l.Kind, string(l.State), terminal.FormatTime(l.Since), strconv.Itoa(l.Peers), l.To}
	})
}

type linkArg struct {
	Link string `arg:"" help:"Name of the link."`
}

type linksStatusCmd struct{ linkArg }

func (c *linksStatusCmd) Run(ctx context.Context, a *app) error {
	l, err := a.findLink(ctx, c.Link)
	if err != nil {
		return err
	}
	return a.report(l, func() {
		a.Table([][]string{
			{"link", l.Name}, {"kind", l.Kind}, {"to", l.To}, {"state", string(l.State)}, {"since", terminal.FormatTime(l.Since)},
			{"peers", strconv.Itoa(l.Peers)}, {"next try", terminal.FormatTime(l.Retry)}, {"last error", orDash(l.Error)},
		})
	})
}

func (a *app) findLink(ctx context.Context, name string) (bridge.LinkStatus, error) {
	page, err := fetch(ctx, a, daemon.ListLinks.Call())
	if err != nil {
		return bridge.LinkStatus{}, err
	}
	for _, l := range page.Items {
		if l.Name == name {
			return l, nil
		}
	}
	return bridge.LinkStatus{}, exit.FailHint(exit.No, fmt.Errorf("there is no link %s", terminal.Clean(name)), "list the links with: agentmesh links list")
}

type linksTestCmd struct{ linkArg }

func (c *linksTestCmd) Run(ctx context.Context, a *app) error {
	result, err := fetchAndShow(ctx, a, daemon.TestLink.Call(c.Link), a.showLinkTest)
	return cmp.Or(err, linkTestError(result))
}

func (a *app) showLinkTest(t daemon.LinkTest) {
	if t.OK {
		a.Print("%s: works", terminal.Clean(t.Name))
	}
}

func linkTestError(t daemon.LinkTest) error {
	if t.OK {
		return nil
	}
	return exit.FailHint(exit.Unavailable, fmt.Errorf("link %s does not work yet: %s", t.Name, t.Error), "watch it with agentmesh links status "+terminal.Clean(t.Name))
}

type linksAddCmd struct {
	Kind        string            `arg:"" help:"Kind of network: mess, mew, agentrelay, moltspeak or a2a."`
	URL         string            `arg:"" name:"url" help:"Address of the exchange, gateway, relay or agent."`
	Name        string            `placeholder:"NAME" help:"Name of the link, part of the addresses behind it (default: the kind)."`
	Space       string            `placeholder:"SPACE" help:"The space to join (mew)."`
	Participant string            `placeholder:"NAME" help:"The name under which the node takes part (mew)."`
	AgentID     string            `name:"agent-id" placeholder:"ID" help:"The id of the node on the other network (agentrelay, moltspeak)."`
	Exchange    string            `placeholder:"ID" help:"The id of the exchange (mess)."`
	Options     map[string]string `name:"option" mapsep:"none" placeholder:"KEY=VALUE" help:"Option of this kind of network, such as peer=agent@org (moltspeak). Repeat for more."`
	TokenFile   string            `name:"token-file" placeholder:"FILE" help:"File with the key or token that the other side requires; - reads standard input. The node stores a copy."`
}

// linkSteps are commands to try with a new link. %s is the name of the link.
var linkSteps = map[string]string{
	"mess":       "agentmesh mess request --link %s 'water the roses'",
	"mew":        "agentmesh mew status --link %s",
	"agentrelay": "agentmesh agentrelay peers %s",
	"moltspeak":  "agentmesh links status %s",
	"a2a":        "agentmesh send a2a:%s/agent 'hello' --wait",
}

func (c *linksAddCmd) Run(ctx context.Context, a *app) error {
	in := daemon.NewLink{
		Name: cmp.Or(c.Name, c.Kind), Kind: c.Kind, URL: c.URL, Space: c.Space, Participant: c.Participant, AgentID: c.AgentID, Exchange: c.Exchange, Options: c.Options,
	}
	if c.TokenFile != "" {
		token, err := a.ReadInput(c.TokenFile)
		if err != nil {
			return err
		}
		in.Token = string(token)
	}
	o, err := a.connect(ctx)
	if err != nil {
		return err
	}
	change, err := daemon.Fetch(ctx, o, daemon.AddLink.With(in))
	if err = errors.Join(err, o.Close()); err != nil {
		return err
	}
	if !change.Running { // only open the data directory, to find out whether a node can start with the new link
		err := a.withClient(ctx, func(*daemon.Client) error { return nil })
		if exit.Code(err) == exit.Config && ctx.Err() == nil { // it cannot
			err = errors.Join(err, a.removeLink(change.Name))
		}
		if err != nil {
			return err
		}
		return a.report(change, func() { a.Note("added %s; agentmesh serve will use it", terminal.Clean(change.Name)) })
	}
	var tested daemon.LinkTest
	if change.Test != nil {
		tested = *change.Test
	} else if tested, err = daemon.AwaitChange(ctx, o, daemon.TestLink.Call(change.Name)); err != nil { // works although o is closed: it makes its own clients
		return err
	}
	err = a.report(tested, func() {
		if a.showLinkTest(tested); tested.OK {
			a.Hint(linkSteps[c.Kind], terminal.Clean(change.Name))
		}
	})
	return cmp.Or(err, linkTestError(tested))
}

// removeLink undoes links add: it removes the link from the configuration file, and deletes the link's token.
func (a *app) removeLink(name string) error {
	src, dir, err := a.sourceAndDir()
	if err != nil {
		return err
	}
	_ = os.Remove(dir.Path(filepath.Join("links", name+".token"))) // a link may have no token
	return src.RemoveLink(name, daemon.LinkKinds())
}

type linksRemoveCmd struct{ linkArg }

func (c *linksRemoveCmd) Run(ctx context.Context, a *app) error {
	return callAndShow(ctx, a, daemon.RemoveLink.Call(c.Link), func(l daemon.ConfigChange) { a.Note("removed %s", terminal.Clean(l.Name)) })
}
