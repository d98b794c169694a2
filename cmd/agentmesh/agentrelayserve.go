package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// agentRelayService is what of AgentRelay this process runs: the relay that it hosts.
type agentRelayService struct {
	relay *agentrelay.Relay // nil: none is hosted
}

var _ bridgeService = (*agentRelayService)(nil)

// newAgentRelay makes the part of AgentRelay that the configuration asks for; nil where it asks for none.
func newAgentRelay(p *process, links []linkConfig) (bridgeService, error) {
	if !p.cfg.AgentRelay.Serve {
		return nil, nil
	}
	relay, err := agentrelay.NewRelay(context.Background(), p.relayConfig())
	if err != nil {
		return nil, err
	}
	p.edge.Health("agentrelay", func(context.Context) (any, error) { return relay.Health(), nil })
	return &agentRelayService{relay: relay}, nil
}

// relayConfig is what the configuration means to the relay.
func (p *process) relayConfig() agentrelay.RelayConfig {
	c := p.cfg.AgentRelay
	mode := agentrelay.RegistrationOpen // AR-36
	if p.cfg.Public() {
		mode = agentrelay.RegistrationClosed
	}
	has := func(name string) bool { return slices.Contains(c.Extensions, name) }
	return agentrelay.RelayConfig{
		Name: c.Name, Records: p.store.Records(), Registration: cmp.Or(agentrelay.Registration(c.Registration), mode),
		Stats: agentrelay.StatsMode(c.Stats), MaxAgents: c.MaxAgents, PerMinute: offBelowOne(c.PerMinute), PerHour: offBelowOne(c.PerHour),
		RegistrationsPerHour: offBelowOne(c.RegistrationsPerHour), Origins: c.Origins, AnyOrigin: p.cfg.Public(),
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

func (s *agentRelayService) Mount(e *echo.Echo)            { s.relay.Mount(e) }
func (s *agentRelayService) MountOwner(g *echo.Group)      { s.relay.MountOwner(g) }
func (s *agentRelayService) Run(ctx context.Context) error { return s.relay.Run(ctx) }

func (s *agentRelayService) Links() []bridge.LinkStatus { return nil }

func (s *agentRelayService) Test(_ context.Context, link string) error {
	return fmt.Errorf("there is no link %s", link)
}

func (s *agentRelayService) Deliver(_ context.Context, d bridge.Delivery) (bridge.Delivered, error) {
	return bridge.Delivered{}, fmt.Errorf("there is no link %s", d.Address)
}
