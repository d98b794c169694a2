package daemon

import (
	"cmp"
	"context"
	"slices"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/relay"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

var _ bridge.Service = (*agentrelay.Bridge)(nil)

// newAgentRelay makes the AgentRelay bridge. It returns nil without a node, if this process does not begin with a relay.
func newAgentRelay(p *Process, links []linkConfig, mesh bridge.Mesh) (bridge.Service, error) {
	serve := servesAgentRelay(p)
	if !serve && p.node == nil {
		return nil, nil
	}
	cfg := agentrelay.Config{
		Serve: serve, Dir: string(p.dataDir), Store: p.bridgeStore, HTTP: p.http, Dial: dialer(p), Logger: p.log,
	}
	cfg.Links, cfg.Tokens = splitLinks(links)
	if !slices.ContainsFunc(p.cfg.Links, func(l bridge.Link) bool { return l.Name == ownRelayLink }) {
		cfg.OwnLink = ownRelayLink
	}
	var err error
	if cfg.Relay, err = relay.New(context.Background(), p.relayConfig()); err != nil {
		return nil, err
	}
	if p.node != nil {
		cfg.Mesh = mesh
	}
	return agentrelay.New(cfg)
}

// servesAgentRelay reports whether this process hosts a relay (AR-36).
func servesAgentRelay(p *Process) bool {
	serve := p.switches.in(p.cfg).AgentRelay.Serve
	return serve == "on" || serve == "auto" && !p.cfg.Public()
}

func (p *Process) relayConfig() relay.Config {
	c := p.cfg.AgentRelay
	defaultMode, registrations := credential.Closed, zeroIsOff(c.RegistrationsPerHour)
	if !p.cfg.Public() {
		defaultMode, registrations = credential.Open, -1 // AR-36; no limits in the local profile, as in the directory
	}
	has := func(name string) bool { return slices.Contains(c.Extensions, name) }
	return relay.Config{
		Name: c.Name, Records: p.bridgeStore.Records(), Registration: cmp.Or(credential.Mode(c.Registration), defaultMode),
		Stats: relay.StatsMode(c.Stats), PerMinute: zeroIsOff(c.PerMinute), PerHour: zeroIsOff(c.PerHour),
		RegistrationsPerHour: registrations, Origins: c.Origins, AnyOrigin: p.cfg.Public(), // any page may call the HTTP routes of a public relay
		Extensions: relay.Extensions{
			Semantic: has("semantic"), Voting: has("voting"), History: has("history"),
			Keep: c.HistoryKeep, VoteDuration: c.VoteFor,
		},
		Search: p.newRelaySearch(), Logger: p.log,
	}
}

// newRelaySearch returns a search in the directories that the node joins, or in the directory of this process if the
// node joins none. It returns nil without a directory.
func (p *Process) newRelaySearch() relay.Search {
	from := p.directories
	if len(from) == 0 && p.registry != nil {
		from = []*client.Directory{client.NewDirectory(p.base+"/v1", p.http, client.InProcess(p.server.Internal()))}
	}
	if len(from) == 0 {
		return nil
	}
	return func(ctx context.Context, q client.Query) ([]wire.Card, error) { return client.FindCards(ctx, from, q) }
}
