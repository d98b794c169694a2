package web

import (
	"context"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	maxFound    = 20               // agents shown for each directory
	maxQuery    = 200              // bytes
	discoverFor = 30 * time.Second // bounds a search in all directories
)

type discoverView struct {
	Query    string
	Searched bool
	Answers  []foundIn
}

// foundIn is the answer of one directory: the agents that it found, or an error. All texts of an agent are untrusted.
type foundIn struct {
	Directory, Error, Hint string
	Agents                 []foundAgent
}

type foundAgent struct {
	ID           string
	Shown        owner.ShownName
	Description  string
	Capabilities []string
	Own          bool      // it is the owner's own agent
	Unproven     bool      // the derived id does not match the key on the card
	Checked      bool      // the directory has checked the key and the endpoint
	Alive        time.Time // when the directory last reached the agent; zero if it did not
}

// discover searches the directories of the node. It asks no directory before the owner searches.
func (p *pages) discover(c echo.Context) error {
	view := discoverView{Query: c.QueryParam("q"), Searched: c.QueryParams().Has("q")}
	if len(view.Query) > maxQuery {
		view.Query = ""
	}
	if view.Searched {
		if err := httpapi.KeepOpen(c, discoverFor); err != nil {
			return err
		}
		answers, err := p.n.Discover(c.Request().Context(), "", client.Query{Text: view.Query, Limit: maxFound})
		if err != nil {
			return err
		}
		for _, a := range answers {
			view.Answers = append(view.Answers, p.viewAnswer(c.Request().Context(), a))
		}
	}
	return p.shell.Render(c, p.found, httpapi.View{Title: "Discover", Data: view})
}

func (p *pages) viewAnswer(ctx context.Context, a owner.Found) foundIn {
	found := foundIn{Directory: a.Directory, Error: a.Error, Hint: a.Hint}
	for _, card := range a.Listing.Agents[:min(len(a.Listing.Agents), maxFound)] {
		found.Agents = append(found.Agents, p.viewFound(ctx, a, card))
	}
	return found
}

func (p *pages) viewFound(ctx context.Context, a owner.Found, card wire.Value) foundAgent {
	const maxTags = 8
	id := wire.AgentID(card.GetStr("agent_id"))
	names := p.namesOf(ctx, string(id))
	names.PeerName = card.GetStr("name")
	proof, tags := a.Listing.Verification[id], card.GetTexts("capabilities")
	agent := foundAgent{
		ID: string(id), Shown: owner.ShowName(names, "", string(id)), Description: card.GetStr("description"),
		Capabilities: tags[:min(len(tags), maxTags)], Own: id == p.n.Card().ID, Unproven: slices.Contains(a.Unproven, id), Checked: proof.Key != nil && proof.Endpoint != nil,
	}
	if proof.Alive != nil {
		agent.Alive = *proof.Alive
	}
	return agent
}
