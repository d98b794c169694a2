package daemon

import (
	"context"
	"net"
	"net/url"
	"slices"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/link"
	"github.com/agentmesh/agentmesh/node/client"
)

// newMewLinks makes the bridge with the node's links to MEW spaces that others host.
func (p *Process) newMewLinks(links []linkConfig, mesh bridge.Mesh) (*link.Bridge, error) {
	cfg := link.Config{
		Mesh: mesh, Tokens: map[string]client.Credential{}, Records: p.store.Records(), Steps: p.store.Steps(), Logger: p.log,
		Dial: func(ctx context.Context, u *url.URL) (net.Conn, error) { return p.http.Connect(ctx, client.Owner, u) },
	}
	exempt, _ := p.cfg.Exempt()
	for _, l := range links {
		if slices.Contains(exempt, link.Principal(l.Name)) {
			l.Policy.Limits = bridge.NoLinkLimits()
		}
		cfg.Links, cfg.Tokens[l.Name] = append(cfg.Links, l.Link), l.Token
	}
	return link.New(cfg)
}
