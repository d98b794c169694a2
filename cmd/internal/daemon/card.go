package daemon

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// MetaAgeRecipient is the member of a card's metadata with the agent's age recipient, which is its public age key (AM-7).
const MetaAgeRecipient = "age_recipient"

// buildCard makes the card from the configuration and the keys, for a process that others reach at base. It keeps the
// agent id of the stored card, because a directory may have assigned the id (AM-57), and because the id derived from a
// rotated key would be another one. If the configuration has no name, it also keeps the stored name, which an
// earlier process set.
func buildCard(c config.Config, s datadir.Secrets, stored wire.Value, base string) (wire.Card, error) {
	id := cmp.Or(stored.GetStr("agent_id"), string(s.Key.Public().AgentID()))
	name := c.Name
	if storedName := stored.GetStr("name"); name == config.Default().Name && storedName != "" {
		name = storedName
	}
	endpoint := c.Card.Endpoint
	if c.ViaRelay != "" {
		endpoint = strings.TrimRight(c.ViaRelay, "/") + "/mailbox/" + id
	} else if endpoint == "" {
		endpoint = strings.TrimRight(base, "/") + node.Path
	}
	tree := wire.Obj(
		wire.TextField("agentmesh", wire.Version), wire.TextField("agent_id", id), wire.TextField("name", name),
	).WithOptional("description", c.Description)
	if c.Owner.Name != "" {
		tree = tree.With("owner", wire.Obj(wire.TextField("name", c.Owner.Name)).WithOptional("contact", c.Owner.Contact))
	}
	tree = wire.Obj(append(tree.Members(),
		wire.TextField("endpoint", endpoint),
		wire.TextField("public_key", s.Key.PublicText()),
		wire.Field("capabilities", wire.Texts(c.Card.Capabilities)),
		wire.Field("intents", wire.Texts(c.Card.Intents)),
		wire.Field("access_control", wire.Obj(wire.TextField("mode", c.Access.Mode))),
		wire.Field("metadata", wire.Obj(
			wire.Field(MetaAgeRecipient, wire.Text(s.Age.PublicText())),
			wire.TextField("software", "agentmesh"),
		)),
	)...)
	card, err := wire.ParseCard(tree, wire.CardRules{AllowHTTP: func(string) bool { return true }})
	if err != nil {
		return wire.Card{}, exit.Fail(exit.Config, fmt.Errorf("the configuration does not make a valid card: %w", err))
	}
	return card, nil
}

// putServedMetadata puts what the process now serves to other networks on the card of its node, if it has one.
func putServedMetadata(p *Process) error {
	if p.node == nil {
		return nil
	}
	return p.node.Registrar().SetMetadata(func(card wire.Card) (wire.Value, error) {
		metadata, _ := card.Tree.Get("metadata")
		metadata = metadata.Without("moltspeak", "moltspeak_agent", "moltspeak_key", "moltspeak_enc_key", "a2a")
		metadata, err := p.addMoltSpeakMetadata(card, metadata)
		return addA2AMetadata(p, card, metadata), err
	})
}

// configuredBase returns the configured base URL of the process: public_url, or the URL of the listener.
func configuredBase(c config.Config) string {
	if c.Public() {
		return strings.TrimRight(c.PublicURL, "/")
	}
	if host, ok := strings.CutSuffix(c.Listen, ":0"); ok { // port 0 is any free port, which only serve knows; show the default one
		return "http://" + host + ":3141"
	}
	return "http://" + c.Listen
}

// lastBase returns the base URL for a process that does not listen. In the local profile, this is the URL of the last
// serve process, from the stored card. With a public_url, or if the card's endpoint is elsewhere, it is the configured
// URL.
func lastBase(dir datadir.Dir, c config.Config) (string, error) {
	card, err := dir.Card()
	if err != nil {
		return "", err
	}
	if base, ok := strings.CutSuffix(card.GetStr("endpoint"), node.Path); ok && !c.Public() {
		return base, nil
	}
	return configuredBase(c), nil
}

// isPublishable reports whether a card may name a URL below base. A card may name a loopback URL only if the agent's
// endpoint is a loopback URL too and no public URL or mailbox is configured.
func isPublishable(c config.Config, base, endpoint string) bool {
	return !IsLoopback(base) || !c.Public() && c.ViaRelay == "" && IsLoopback(endpoint)
}

// IsLoopback reports whether the host of a URL is a loopback address or localhost.
func IsLoopback(target string) bool {
	u, err := url.Parse(target)
	return err == nil && client.IsLoopbackURL(u)
}
