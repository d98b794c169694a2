package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

type discoverCmd struct {
	Query      string   `arg:"" optional:"" help:"Words in name or description."`
	Capability []string `placeholder:"TAG" sep:"none" help:"List only agents with this capability. Repeat for more."`
	Intent     []string `placeholder:"INTENT" sep:"none" help:"List only agents that accept this intent. Repeat for more."`
	Limit      int      `default:"20" help:"Maximum number of agents per directory, 1 to 100."`
	ARD        string   `name:"ard" placeholder:"URL" help:"Search an ARD registry instead: the base URL of the registry, or a domain."`
	directoryFlag
}

func (c *discoverCmd) Run(ctx context.Context, a *app) error {
	query := owner.Params("q", c.Query, "limit", fmt.Sprint(c.Limit))
	for _, v := range c.Capability {
		query.Add("capability", v)
	}
	for _, v := range c.Intent {
		query.Add("intent", v)
	}
	if c.ARD != "" {
		query.Set("url", c.ARD)
		page, err := fetchAndShow(ctx, a, owner.DiscoverARD.Call().WithQuery(query), a.showARD)
		return cmp.Or(err, exit.Unless(len(page.Items) > 0, exit.No))
	}
	page, err := fetchDirectories(ctx, a, c.Directory, func(directory string) owner.Call[owner.List[owner.Found]] {
		query.Set("directory", directory)
		return owner.Discover.Call().WithQuery(maps.Clone(query))
	})
	if err != nil {
		return err
	}
	if err := a.report(page, func() { a.showFound(page) }); err != nil {
		return err
	}
	found := 0
	for _, f := range page.Items {
		if f.Error != "" {
			return exit.FailSilently(exit.Unavailable)
		}
		found += len(f.Listing.Agents)
	}
	return exit.Unless(found > 0, exit.No)
}

func (a *app) showFound(page owner.List[owner.Found]) {
	if len(page.Items) == 0 {
		a.Note("the node has no directory to search; add one to directories in the configuration")
		return
	}
	rows := [][]string{{"AGENT", "NAME", "CAPABILITIES", "DESCRIPTION"}}
	answered, unproven := 0, false
	for _, f := range page.Items {
		if f.Error != "" {
			a.Note("%s", terminal.Clean(f.Error))
		} else {
			answered++
		}
		if f.Hint != "" {
			a.Hint("%s", terminal.Clean(f.Hint))
		}
		for _, card := range f.Listing.Agents {
			id := card.GetStr("agent_id")
			if slices.Contains(f.Unproven, wire.AgentID(id)) {
				id += " (not proven)"
				unproven = true
			}
			rows = append(rows, []string{
				id, terminal.Truncate(card.GetStr("name"), 40), terminal.Truncate(strings.Join(card.GetTexts("capabilities"), ","), 40), terminal.Truncate(card.GetStr("description"), 60),
			})
		}
	}
	if unproven {
		a.Note("not proven: the id is derived from another key than the one on the card, so somebody else may have registered it")
	}
	switch {
	case len(rows) > 1:
		a.Table(rows)
	case answered > 0:
		a.Note("no agents found")
	}
	a.NoteMore(slices.ContainsFunc(page.Items, func(f owner.Found) bool { return f.Listing.Cursor != "" }))
}

// showARD shows the agents of a foreign registry. An agent without an address appears with its identifier.
func (a *app) showARD(page owner.FoundARD) {
	showList(a, owner.Page(page.Items, page.Cursor), "no agents found", []string{"AGENT", "NAME", "CAPABILITIES", "DESCRIPTION"}, func(e client.ARDEntry) []string {
		return []string{cmp.Or(e.Address, e.Identifier), terminal.Truncate(e.Name, 40), terminal.Truncate(strings.Join(e.Capabilities, ","), 40), terminal.Truncate(e.Description, 60)}
	})
	if len(page.Items) > 0 {
		a.Note("nothing here is proven: it is what the registry says")
	}
}
