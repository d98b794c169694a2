package main

import (
	"cmp"
	"context"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/owner"
)

type peersCmd struct {
	List   peersListCmd   `cmd:"" default:"withargs" help:"List the agents that you have made decisions about."`
	Add    peersAddCmd    `cmd:"" help:"Add an agent from a card that you trust, in a file or at a URL."`
	Allow  peersChangeCmd `cmd:"" help:"Allow messages from an agent."`
	Block  peersChangeCmd `cmd:"" help:"Block an agent. This overrides all other rules."`
	Write  peersWriteCmd  `cmd:"" help:"Allow all messages to an agent, even if outgoing.mode is approval."`
	Forget peersChangeCmd `cmd:"" help:"Forget an agent's rules, aliases, pinned key and added card."`
	Alias  peersAliasCmd  `cmd:"" help:"Give an agent a short name."`
	Repin  peersRepinCmd  `cmd:"" help:"Accept a new key for an agent, or a key from which the agent's id is not derived."`
}

type peersListCmd struct{}

func (c *peersListCmd) Run(ctx context.Context, a *app) error {
	heads := []string{"NAME", "AGENT", "ALIAS", "STANDING", "SINCE", "KEY"}
	return callAndShowList(ctx, a, owner.ListPeers.Call(), "you have made no decisions about other agents yet", heads, func(p owner.Peer) []string {
		return []string{p.Shown().String(), p.ID, orDash(strings.Join(p.Aliases, ",")), orDash(string(p.Standing)), terminal.FormatTime(p.Since), describePin(p)}
	})
}

// describePin describes the key that the node keeps for the peer: "kept" for a key that stays by the owner's
// decision, "seen" for a key that is kept only as long as there is room, and "-" for no key. It adds "not proven" if
// the agent id is derived from another key.
func describePin(p owner.Peer) string {
	text := "-"
	switch {
	case p.FromOwner:
		text = "kept"
	case p.Fingerprint != "":
		text = "seen"
	}
	if p.Unproven {
		text += ", not proven"
	}
	return text
}

func orDash(s string) string { return cmp.Or(s, "-") }

type peersAddCmd struct {
	Card  string `arg:"" help:"File with a card, - for standard input, or the URL of a card, such as an agent's endpoint."`
	Alias string `placeholder:"NAME" help:"Short name for the agent."`
}

func (c *peersAddCmd) Run(ctx context.Context, a *app) error {
	in := owner.NewPeer{Alias: c.Alias}
	if strings.HasPrefix(c.Card, "http://") || strings.HasPrefix(c.Card, "https://") {
		in.URL = c.Card
	} else {
		card, err := a.readObject(c.Card)
		if err != nil {
			return err
		}
		in.Card = card
	}
	return callAndShow(ctx, a, owner.AddPeer.With(in), func(p owner.AddedPeer) {
		a.Table([][]string{{"agent", string(p.ID)}, {"name", p.Name}, {"endpoint", p.Endpoint}, {"key", p.Fingerprint}})
		if p.Unproven {
			a.Note("not proven: the id is derived from another key, and the card has no key chain from that key to this one; the node trusts the card because you added it")
		}
	})
}

func (a *app) changePeer(ctx context.Context, id string, change owner.PeerChange) error {
	return callAndShow(ctx, a, owner.ChangePeer.With(change, id), func(p owner.Peer) {
		a.Print("%s: %s", terminal.Clean(p.ID), terminal.Clean(describeChange(change, p)))
	})
}

// describeChange describes a change of a peer. p is the peer after the change.
func describeChange(c owner.PeerChange, p owner.Peer) string {
	switch c.Action {
	case "alias":
		return "alias " + c.Alias
	case "forget":
		return "forgotten"
	case "repin":
		return "key accepted"
	case "write":
		return "messages to this agent leave without approval"
	case "no-write":
		return "messages to this agent wait for you"
	}
	return string(p.Standing)
}

type agentArg struct {
	Agent string `arg:"" help:"Agent id or alias."`
}

// peersChangeCmd makes the change that has the name of the command.
type peersChangeCmd struct{ agentArg }

func (c *peersChangeCmd) Run(ctx context.Context, a *app) error {
	return a.changePeer(ctx, c.Agent, owner.PeerChange{Action: a.command})
}

type peersWriteCmd struct {
	agentArg
	Ask bool `help:"Undo the permission: messages to the agent wait for you again if outgoing.mode is approval."`
}

func (c *peersWriteCmd) Run(ctx context.Context, a *app) error {
	action := "write"
	if c.Ask {
		action = "no-write"
	}
	return a.changePeer(ctx, c.Agent, owner.PeerChange{Action: action})
}

type peersAliasCmd struct {
	agentArg
	Name string `arg:"" help:"The short name: lower-case letters, digits, . _ -"`
}

func (c *peersAliasCmd) Run(ctx context.Context, a *app) error {
	return a.changePeer(ctx, c.Agent, owner.PeerChange{Action: "alias", Alias: c.Name})
}

type peersRepinCmd struct {
	agentArg
	Fingerprint string `arg:"" help:"Fingerprint of the key to accept; check it with the agent's owner first."`
}

func (c *peersRepinCmd) Run(ctx context.Context, a *app) error {
	return a.changePeer(ctx, c.Agent, owner.PeerChange{Action: "repin", Fingerprint: c.Fingerprint})
}
