package daemon

import (
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/a2a"
	"github.com/agentmesh/agentmesh/node/client"
)

// newA2A makes the A2A bridge. Every process with a node has one, because the owner may write to any A2A agent by its
// URL. It serves others only if the configuration says so.
func newA2A(p *Process, links []linkConfig, mesh bridge.Mesh) (bridge.Service, error) {
	if p.node == nil {
		return nil, nil
	}
	cfg := a2a.Config{
		Serve: p.cfg.A2A.Serve == "on", Anonymous: p.cfg.A2A.Anonymous, URL: p.base, Version: p.build.Version, Local: !p.cfg.Public(),
		Addresses: p.edge.Addresses(), Tokens: map[string]client.Credential{}, Mesh: mesh, Store: p.store, HTTP: p.http,
		Idle: p.cfg.Conversations.Idle, Logger: p.log,
	}
	if len(p.directories) > 0 {
		cfg.Directory = p.directories[0].Base
	}
	for _, l := range links {
		cfg.Links, cfg.Tokens[l.Name] = append(cfg.Links, l.Link), l.Token
	}
	return a2a.New(cfg)
}
