package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/link"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// linkPath is where the owner API has a link, or something of it.
func linkPath(parts ...string) string {
	escaped := make([]string, len(parts))
	for i, p := range parts {
		escaped[i] = url.PathEscape(p)
	}
	return "agentrelay/links/" + strings.Join(escaped, "/")
}

type agentRelayFeedCmd struct {
	Link  string `arg:"" help:"Name of the link."`
	Limit int    `default:"50" help:"Items, 1 to 1000."`
	JSON  bool   `help:"Print the result as JSON."`
}

func (c *agentRelayFeedCmd) Run(ctx context.Context, a *app) error {
	call := link.ShowFeed.Call(c.Link)
	call.Query = params("limit", strconv.Itoa(c.Limit))
	return ask(ctx, a, c.JSON, call, func(page owner.List[link.FeedItem]) {
		rows := [][]string{{"AT", "FROM", "TYPE", "TEXT"}}
		for _, i := range page.Items {
			said := i.Note
			if said == "" {
				said = string(i.Payload)
			}
			rows = append(rows, []string{terminal.When(i.At), terminal.Clean(i.From), orDash(terminal.Short(i.Type, 20)), terminal.Short(said, 100)})
		}
		a.List(rows, "nothing was said since agentmesh serve began; what was broadcast while the link was away is lost")
	})
}

type agentRelayPeersCmd struct {
	Link string `arg:"" help:"Name of the link."`
	JSON bool   `help:"Print the result as JSON."`
}

func (c *agentRelayPeersCmd) Run(ctx context.Context, a *app) error {
	return ask(ctx, a, c.JSON, link.ListPeers.Call(c.Link), func(page owner.List[link.PeerView]) {
		rows := [][]string{{"ADDRESS", "TUNNEL TO", "ENCRYPTED", "SKILLS (UNPROVEN)"}}
		for _, p := range page.Items {
			key := "no"
			switch {
			case p.Pending != "":
				key = "another key waits"
			case p.ByOwner:
				key = "your key"
			case p.Recipient != "":
				key = "first key"
			}
			rows = append(rows, []string{terminal.Clean(p.Address), orDash(string(p.Agent)), key, orDash(terminal.Short(strings.Join(p.Skills, ", "), 60))})
		}
		a.List(rows, "no peers: nobody wrote since agentmesh serve began")
	})
}

type agentRelayPeerCmd struct {
	Link   string  `arg:"" help:"Name of the link."`
	Peer   string  `arg:"" help:"Id of the agent on the relay."`
	Agent  *string `placeholder:"AGENT" help:"Agent id (am_…) whom messages through the tunnel reach there; empty ends it."`
	AgeKey *string `placeholder:"KEY" help:"Key that messages are encrypted to (age1…); empty forgets it."`
	JSON   bool    `help:"Print the result as JSON."`
}

func (c *agentRelayPeerCmd) Run(ctx context.Context, a *app) error {
	if c.Agent == nil && c.AgeKey == nil {
		return exit.Fail(exit.Usage, errors.New("say what you know of it: --agent, --age-key"))
	}
	change := link.ChangePeer.With(link.PeerChange{Agent: (*wire.AgentID)(c.Agent), Recipient: c.AgeKey}, c.Link, c.Peer)
	return ask(ctx, a, c.JSON, change, func(p link.Peer) {
		a.Note("%s: tunnel to %s, key %s", terminal.Clean(p.Peer), orDash(string(p.Agent)), orDash(p.Recipient))
	})
}

type agentRelaySendCmd struct {
	Link    string `arg:"" help:"Name of the link."`
	Payload string `arg:"" help:"A text, or JSON with --raw."`
	Type    string `default:"thought" help:"Type: thought, question, announcement, discovery…"`
	Ref     string `placeholder:"ID" help:"What it refers to."`
	Raw     bool   `help:"The payload is JSON."`
}

// Run says something to everybody. One agent is written to with agentmesh send, in a conversation.
func (c *agentRelaySendCmd) Run(ctx context.Context, a *app) error {
	payload := wire.Text(c.Payload)
	if c.Raw {
		var err error
		if payload, err = wire.Parse([]byte(c.Payload)); err != nil {
			return exit.Fail(exit.Input, err)
		}
	}
	o, err := a.owner(ctx)
	if err != nil {
		return err
	}
	_, err = o.Call(ctx, http.MethodPost, linkPath(c.Link, "broadcast"), nil, struct {
		Type    string     `json:"type"`
		Ref     string     `json:"ref,omitempty"`
		Payload wire.Value `json:"payload"`
	}{c.Type, c.Ref, payload})
	if err := errors.Join(err, o.Close()); err != nil {
		return err
	}
	a.Note("written to the relay; nobody acknowledges a broadcast")
	return nil
}

type agentRelayHistoryCmd struct {
	Link   string `arg:"" help:"Name of the link."`
	Search string `placeholder:"WORDS" help:"Only messages with these words, best first."`
	Limit  int    `default:"50" help:"Messages, 1 to 100."`
	JSON   bool   `help:"Print the result as JSON."`
}

// relayHistory is what a relay answers to a search of its history.
type relayHistory struct {
	Messages []struct {
		From    string          `json:"from"`
		Type    string          `json:"type"`
		Payload json.RawMessage `json:"payload"`
	} `json:"messages"`
}

func (c *agentRelayHistoryCmd) Run(ctx context.Context, a *app) error {
	type command struct {
		Command string `json:"command"`
		Query   string `json:"query,omitempty"`
		Limit   int    `json:"limit"`
	}
	what := command{"history", "", c.Limit}
	if c.Search != "" {
		what = command{"search", c.Search, c.Limit}
	}
	call := post[relayHistory](linkPath(c.Link, "command"), struct {
		Type    string  `json:"type"`
		Payload command `json:"payload"`
	}{"command", what})
	return ask(ctx, a, c.JSON, call, func(r relayHistory) {
		rows := [][]string{{"FROM", "TYPE", "TEXT"}}
		for _, m := range r.Messages {
			rows = append(rows, []string{terminal.Short(m.From, 64), orDash(terminal.Short(m.Type, 20)), terminal.Short(string(m.Payload), 100)})
		}
		a.List(rows, "the relay shows no messages")
	})
}
