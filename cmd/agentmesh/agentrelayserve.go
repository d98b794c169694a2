package main

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

var _ bridgeService = (*agentrelay.Bridge)(nil)

// newAgentRelay makes the part of AgentRelay that the configuration asks for; nil where it asks for none.
func newAgentRelay(p *process, links []linkConfig) (bridgeService, error) {
	serve := p.cfg.AgentRelay.Serve == "on" || p.cfg.AgentRelay.Serve == "auto" && !p.cfg.Public() // AR-36
	if !serve && len(links) == 0 {
		return nil, nil
	}
	cfg := agentrelay.Config{
		Dir: p.home.dir, Store: p.store, HTTP: p.http, Logger: p.log, Tokens: make(map[string]client.Credential),
	}
	for _, l := range links {
		cfg.Links = append(cfg.Links, l.Link)
		cfg.Tokens[l.Name] = l.Token
	}
	if serve {
		relay, err := agentrelay.NewRelay(context.Background(), p.relayConfig())
		if err != nil {
			return nil, err
		}
		p.edge.Health(agentrelay.Kind, func(context.Context) (any, error) { return relay.Health(), nil })
		cfg.Relay = relay
	}
	if p.node == nil {
		return agentrelay.New(cfg)
	}
	identity, err := p.secrets.age.MarshalText()
	if err != nil {
		return nil, err
	}
	cfg.Node, cfg.Tunnel, cfg.Identity = p.node, p.node.Receive, strings.TrimSpace(string(identity))
	b, err := agentrelay.New(cfg)
	if err != nil {
		return nil, err
	}
	if len(links) > 0 {
		p.node.Carry(b.Carry)
	}
	return b, nil
}

// isRelayToken says whether a file of the data directory is the token of a link that registered itself.
func isRelayToken(name string) bool {
	return strings.HasPrefix(name, "agentrelay-") && strings.HasSuffix(name, ".json")
}

// relayConfig is what the configuration means to the relay.
func (p *process) relayConfig() agentrelay.RelayConfig {
	c := p.cfg.AgentRelay
	mode, registrations := credential.Closed, offBelowOne(c.RegistrationsPerHour)
	if !p.cfg.Public() {
		mode, registrations = credential.Open, -1 // AR-36; without limits, like registrations at the directory
	}
	has := func(name string) bool { return slices.Contains(c.Extensions, name) }
	return agentrelay.RelayConfig{
		Name: c.Name, Records: p.store.Records(), Registration: cmp.Or(credential.Mode(c.Registration), mode),
		Stats: agentrelay.StatsMode(c.Stats), MaxAgents: c.MaxAgents, PerMinute: offBelowOne(c.PerMinute), PerHour: offBelowOne(c.PerHour),
		RegistrationsPerHour: registrations, Origins: c.Origins, AnyOrigin: p.cfg.Public(),
		Extensions: agentrelay.Extensions{
			Semantic: has("semantic"), Voting: has("voting"), History: has("history"),
			Keep: c.HistoryKeep, MaxMessages: c.HistoryMessages, VoteFor: c.VoteFor,
		},
		Search: p.searchFor(), Logger: p.log,
	}
}

// searchFor asks the directories that the node joined, else the one in this process; nil where there is none.
func (p *process) searchFor() agentrelay.Search {
	from := p.joined
	if len(from) == 0 && p.registry != nil {
		from = []*client.Directory{client.NewDirectory(p.base+"/v1", p.http, client.InProcess(p.edge.Internal()))}
	}
	if len(from) == 0 {
		return nil
	}
	return func(ctx context.Context, q agentrelay.SearchQuery) ([]agentrelay.Found, error) {
		query := client.Query{Text: q.Text, Limit: q.Limit}
		if q.Capability != "" {
			query.Capabilities = []string{q.Capability}
		}
		if q.Intent != "" {
			query.Intents = []wire.Intent{wire.Intent(q.Intent)}
		}
		var out []agentrelay.Found
		var last error
		for _, d := range from {
			page, err := d.Search(ctx, query)
			if err != nil {
				last = err
				continue
			}
			for _, v := range page.Agents {
				if card, err := wire.ParseCard(v, wire.CardRules{AllowHTTP: p.http.AllowHTTP(client.Loopback)}); err == nil {
					out = append(out, agentrelay.Found{Name: card.Name, Description: card.Description, Capabilities: card.Capabilities})
				}
			}
		}
		if len(out) > 0 {
			return out, nil
		}
		return nil, last
	}
}
