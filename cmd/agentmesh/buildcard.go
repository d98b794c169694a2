package main

import (
	"fmt"
	"strings"

	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/wire"
)

const metaAgeRecipient = "age_recipient" // AM-7

// buildCard makes the card that the configuration and the keys describe, for a process that is reached at base.
// The agent id stays the one of the stored card: a directory may have given it (AM-57), and a rotated key no longer
// derives it. Nor is a name forgotten that init or an earlier serve was given, where the configuration has none.
func buildCard(c Config, s secrets, stored wire.Value, base string) (wire.Card, error) {
	id := stored.GetStr("agent_id")
	if id == "" {
		id = string(s.key.Public().AgentID())
	}
	name := c.Name
	if kept := stored.GetStr("name"); name == defaultConfig().Name && kept != "" {
		name = kept
	}
	endpoint := c.Card.Endpoint
	if c.ViaRelay != "" {
		endpoint = strings.TrimRight(c.ViaRelay, "/") + "/mailbox/" + id
	} else if endpoint == "" {
		endpoint = strings.TrimRight(base, "/") + node.Path
	}
	members := []wire.Member{
		{Key: "agentmesh", Value: wire.Text(wire.Version)},
		{Key: "agent_id", Value: wire.Text(id)},
		{Key: "name", Value: wire.Text(name)},
	}
	if c.Description != "" {
		members = append(members, wire.Member{Key: "description", Value: wire.Text(c.Description)})
	}
	if c.Owner.Name != "" {
		owner := []wire.Member{{Key: "name", Value: wire.Text(c.Owner.Name)}}
		if c.Owner.Contact != "" {
			owner = append(owner, wire.Member{Key: "contact", Value: wire.Text(c.Owner.Contact)})
		}
		members = append(members, wire.Member{Key: "owner", Value: wire.Obj(owner...)})
	}
	tree := wire.Obj(append(members,
		wire.Member{Key: "endpoint", Value: wire.Text(endpoint)},
		wire.Member{Key: "public_key", Value: wire.Text(s.key.PublicText())},
		wire.Member{Key: "capabilities", Value: wire.Texts(c.Card.Capabilities)},
		wire.Member{Key: "intents", Value: wire.Texts(c.Card.Intents)},
		wire.Member{Key: "access_control", Value: wire.Obj(wire.Member{Key: "mode", Value: wire.Text(c.Access.Mode)})},
		wire.Member{Key: "metadata", Value: wire.Obj(
			wire.Member{Key: metaAgeRecipient, Value: wire.Text(s.age.PublicText())},
			wire.Member{Key: "software", Value: wire.Text("agentmesh")},
		)},
	)...)
	card, err := wire.ParseCard(tree, wire.CardRules{AllowHTTP: func(string) bool { return true }}) // it is our own
	if err != nil {
		return wire.Card{}, fail(exitConfig, fmt.Errorf("the configuration makes no valid card: %w", err))
	}
	return card, nil
}

// localBase is where the process is reached if nothing else is known: public_url, or the configured listener.
func localBase(c Config) string {
	if c.Public() {
		return strings.TrimRight(c.PublicURL, "/")
	}
	if host, ok := strings.CutSuffix(c.Listen, ":0"); ok { // any free port: serve will know which
		return "http://" + host + ":3141"
	}
	return "http://" + c.Listen
}

// base is where the last serve was reached, for a process that does not listen.
func (h home) base(c Config) (string, error) {
	card, err := h.card()
	if err != nil {
		return "", err
	}
	if base, ok := strings.CutSuffix(card.GetStr("endpoint"), node.Path); ok && !c.Public() {
		return base, nil
	}
	return localBase(c), nil
}
