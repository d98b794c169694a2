package main

import (
	"context"
	"net/url"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

type peersCmd struct {
	List   peersListCmd   `cmd:"" default:"withargs" help:"List the agents you said something about."`
	Add    peersAddCmd    `cmd:"" help:"Take a card from a file or a URL, by your word."`
	Allow  peersAllowCmd  `cmd:"" help:"Let an agent in."`
	Block  peersBlockCmd  `cmd:"" help:"Keep an agent out; beats everything else."`
	Write  peersWriteCmd  `cmd:"" help:"Let every message to an agent out, where outgoing.mode is approval."`
	Forget peersForgetCmd `cmd:"" help:"Forget rules, aliases, pinned key and given card of an agent."`
	Alias  peersAliasCmd  `cmd:"" help:"Give an agent a short name of yours."`
	Repin  peersRepinCmd  `cmd:"" help:"Accept another key of an agent, or one that its id does not prove."`
}

type peersListCmd struct {
	JSON bool `help:"Print the result as JSON."`
}

// peer is what the commands show of one.
type peer struct {
	ID       string    `json:"id"`
	Aliases  []string  `json:"aliases"`
	Standing string    `json:"standing"`
	Since    time.Time `json:"since"`
	Key      string    `json:"fingerprint"`
	Given    bool      `json:"given"`
	Unproven bool      `json:"unproven"`
}

func (c *peersListCmd) Run(ctx context.Context, a *app) error {
	return ask(ctx, a, c.JSON, get("peers", nil), func(page items[peer]) {
		rows := [][]string{{"AGENT", "ALIAS", "STANDING", "SINCE", "KEY"}}
		for _, p := range page.Items {
			rows = append(rows, []string{p.ID, orDash(strings.Join(p.Aliases, ",")), orDash(p.Standing), when(p.Since), p.pin()})
		}
		a.list(rows, "you said nothing about other agents yet")
	})
}

// pin tells how long the key of the peer is remembered, for good because of what the owner did or as long as there is
// room, and whether the agent id leads to it.
func (p peer) pin() string {
	text := "-"
	switch {
	case p.Given:
		text = "kept"
	case p.Key != "":
		text = "seen"
	}
	if p.Unproven {
		text += ", not proven"
	}
	return text
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

type peersAddCmd struct {
	Card  string `arg:"" help:"File with a card, - for standard input, or the URL of one (an agent's endpoint serves its card)."`
	Alias string `placeholder:"NAME" help:"A short name of yours for it."`
	JSON  bool   `help:"Print the result as JSON."`
}

func (c *peersAddCmd) Run(ctx context.Context, a *app) error {
	body := struct {
		Card  *wire.Value `json:"card,omitempty"`
		URL   string      `json:"url,omitempty"`
		Alias string      `json:"alias,omitempty"`
	}{Alias: c.Alias}
	if strings.HasPrefix(c.Card, "http://") || strings.HasPrefix(c.Card, "https://") {
		body.URL = c.Card
	} else {
		card, err := a.readObject(c.Card)
		if err != nil {
			return err
		}
		body.Card = &card
	}
	return ask(ctx, a, c.JSON, post("peers", body), func(p struct {
		ID          string `json:"id"`
		Name        string `json:"name"`
		Endpoint    string `json:"endpoint"`
		Fingerprint string `json:"fingerprint"`
		Unproven    bool   `json:"unproven"`
	}) {
		a.table([][]string{{"agent", p.ID}, {"name", p.Name}, {"endpoint", p.Endpoint}, {"key", p.Fingerprint}})
		if p.Unproven {
			a.note("not proven: the id is made of another key, and the card has no key chain from that key to this one; the card counts by your word")
		}
	})
}

// peerChange is one word of the owner about a peer.
type peerChange struct {
	Action      string `json:"action"`
	Alias       string `json:"alias,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`
}

func (a *app) changePeer(ctx context.Context, asJSON bool, id string, change peerChange) error {
	return ask(ctx, a, asJSON, post("peers/"+url.PathEscape(id), change), func(p peer) {
		a.print("%s: %s", clean(p.ID), clean(change.done(p)))
	})
}

// done says what came of it.
func (c peerChange) done(p peer) string {
	switch c.Action {
	case "alias":
		return "alias " + c.Alias
	case "forget":
		return "forgotten"
	case "repin":
		return "key accepted"
	case "write":
		return "messages to it leave without a question"
	case "no-write":
		return "messages to it wait for you"
	}
	return p.Standing
}

// agentArg is the argument of commands about one agent.
type agentArg struct {
	Agent string `arg:"" help:"Agent id or alias."`
	JSON  bool   `help:"Print the result as JSON."`
}

type peersAllowCmd struct{ agentArg }

func (c *peersAllowCmd) Run(ctx context.Context, a *app) error {
	return a.changePeer(ctx, c.JSON, c.Agent, peerChange{Action: "allow"})
}

type peersBlockCmd struct{ agentArg }

func (c *peersBlockCmd) Run(ctx context.Context, a *app) error {
	return a.changePeer(ctx, c.JSON, c.Agent, peerChange{Action: "block"})
}

type peersWriteCmd struct {
	agentArg
	Ask bool `help:"Take it back: ask again where outgoing.mode is approval."`
}

func (c *peersWriteCmd) Run(ctx context.Context, a *app) error {
	action := "write"
	if c.Ask {
		action = "no-write"
	}
	return a.changePeer(ctx, c.JSON, c.Agent, peerChange{Action: action})
}

type peersForgetCmd struct{ agentArg }

func (c *peersForgetCmd) Run(ctx context.Context, a *app) error {
	return a.changePeer(ctx, c.JSON, c.Agent, peerChange{Action: "forget"})
}

type peersAliasCmd struct {
	agentArg
	Name string `arg:"" help:"The short name: lower-case letters, digits, . _ -"`
}

func (c *peersAliasCmd) Run(ctx context.Context, a *app) error {
	return a.changePeer(ctx, c.JSON, c.Agent, peerChange{Action: "alias", Alias: c.Name})
}

type peersRepinCmd struct {
	agentArg
	Fingerprint string `arg:"" help:"Fingerprint of the key to accept; compare it with the agent's owner."`
}

func (c *peersRepinCmd) Run(ctx context.Context, a *app) error {
	return a.changePeer(ctx, c.JSON, c.Agent, peerChange{Action: "repin", Fingerprint: c.Fingerprint})
}
