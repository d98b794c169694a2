package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew"
)

// mewService is what of MEW this process runs: the spaces that it hosts.
type mewService struct {
	gateway *mew.Gateway // nil: none is hosted
}

var _ bridgeService = (*mewService)(nil)

// newMew makes the part of MEW that the configuration asks for; nil where it asks for none.
func newMew(p *process, links []linkConfig) (bridgeService, error) {
	if len(p.cfg.MEW.Spaces) == 0 {
		return nil, nil
	}
	cfg := mew.GatewayConfig{
		Records: p.store.Records(), Audit: p.audit, PublicURL: socketURL(p.base), Origins: p.cfg.MEW.Origins,
		CORSOrigins: p.cfg.MEW.Origins, Logger: p.log,
	}
	for _, s := range p.cfg.MEW.Spaces {
		space, err := p.app.mewSpace(s)
		if err != nil {
			return nil, fmt.Errorf("space %s: %w", s.ID, err)
		}
		cfg.Spaces = append(cfg.Spaces, space)
	}
	g, err := mew.NewGateway(context.Background(), cfg)
	if err != nil {
		return nil, err
	}
	return &mewService{gateway: g}, nil
}

// socketURL is where WebSockets reach the listener.
func socketURL(base string) string {
	return "ws" + strings.TrimPrefix(base, "http")
}

func (m *mewService) Mount(e *echo.Echo)            { m.gateway.Mount(e) }
func (m *mewService) MountOwner(g *echo.Group)      { m.gateway.MountOwner(g) }
func (m *mewService) Run(ctx context.Context) error { return m.gateway.Run(ctx) }

// Links returns none: hosting needs no link.
func (m *mewService) Links() []bridge.LinkStatus { return nil }

func (m *mewService) Test(_ context.Context, link string) error {
	return fmt.Errorf("there is no link %s", link)
}

func (m *mewService) Deliver(_ context.Context, d bridge.Delivery) (bridge.Delivered, error) {
	return bridge.Delivered{}, fmt.Errorf("there is no link %s", d.Address)
}
