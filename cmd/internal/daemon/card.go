package daemon

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/wire"
)

const MetaAgeRecipient = "age_recipient" // AM-7

// buildCard makes the card that the configuration and the keys describe, for a process that is reached at base.
// The agent id stays the one of the stored card: a directory may have given it (AM-57), and a rotated key no longer
// derives it. Nor is a name forgotten that init or an earlier serve was given, where the configuration has none.
func buildCard(c config.Config, s datadir.Secrets, stored wire.Value, base string) (wire.Card, error) {
	id := stored.GetStr("agent_id")
	if id == "" {
		id = string(s.Key.Public().AgentID())
	}
	name := c.Name
	if kept := stored.GetStr("name"); name == config.Default().Name && kept != "" {
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
		wire.Member{Key: "public_key", Value: wire.Text(s.Key.PublicText())},
		wire.Member{Key: "capabilities", Value: wire.Texts(c.Card.Capabilities)},
		wire.Member{Key: "intents", Value: wire.Texts(c.Card.Intents)},
		wire.Member{Key: "access_control", Value: wire.Obj(wire.Member{Key: "mode", Value: wire.Text(c.Access.Mode)})},
		wire.Member{Key: "metadata", Value: wire.Obj(
			wire.Member{Key: MetaAgeRecipient, Value: wire.Text(s.Age.PublicText())},
			wire.Member{Key: "software", Value: wire.Text("agentmesh")},
		)},
	)...)
	card, err := wire.ParseCard(tree, wire.CardRules{AllowHTTP: func(string) bool { return true }}) // it is our own
	if err != nil {
		return wire.Card{}, exit.Fail(exit.Config, fmt.Errorf("the configuration makes no valid card: %w", err))
	}
	return card, nil
}

// localBase is where the process is reached if nothing else is known: public_url, or the configured listener.
func localBase(c config.Config) string {
	if c.Public() {
		return strings.TrimRight(c.PublicURL, "/")
	}
	if host, ok := strings.CutSuffix(c.Listen, ":0"); ok { // any free port: serve will know which
		return "http://" + host + ":3141"
	}
	return "http://" + c.Listen
}

// lastBase returns where the last serve was reached, for a process that does not listen.
func lastBase(h datadir.Dir, c config.Config) (string, error) {
	card, err := h.Card()
	if err != nil {
		return "", err
	}
	if base, ok := strings.CutSuffix(card.GetStr("endpoint"), node.Path); ok && !c.Public() {
		return base, nil
	}
	return localBase(c), nil
}

// isForCard reports whether an address below base belongs on a card: one of this machine only where the agent itself is reached
// there, and there alone.
func isForCard(c config.Config, base, endpoint string) bool {
	return !IsLoopback(base) || !c.Public() && c.ViaRelay == "" && IsLoopback(endpoint)
}

// initialise makes keys, credential and card where the directory holds no agent.
func (p *Process) initialise(passphrase []byte, base string) error {
	if p.home.HasAgent() {
		return nil
	}
	if err := p.home.Create(passphrase); err != nil {
		return err
	}
	known := func() ([]byte, error) { return passphrase, nil }
	s, err := p.home.Secrets(known)
	if err != nil {
		return err
	}
	stored, err := p.home.Card()
	if err != nil {
		return err
	}
	card, err := buildCard(p.cfg, s, stored, base)
	if err != nil {
		return err
	}
	return p.home.SaveCard(card.Tree)
}

// IsLoopback says whether a URL names this machine.
func IsLoopback(target string) bool {
	u, err := url.Parse(target)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return err == nil && ip.IsLoopback() || u.Hostname() == "localhost"
}
