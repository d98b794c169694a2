package daemon

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/a2a"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay"
	"github.com/agentmesh/agentmesh/node/bridge/mess"
	"github.com/agentmesh/agentmesh/node/bridge/mew/link"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// linkConfig is a configured link with its secret.
type linkConfig struct {
	bridge.Link
	Token client.Credential // "" for a link without a secret
}

// bridgeKind makes the bridge for one protocol. mesh is nil in a process without a node. make returns a nil bridge if the
// configuration has no link of the kind and does not serve the protocol.
type bridgeKind struct {
	bridge.Kind
	make func(p *Process, links []linkConfig, mesh bridge.Mesh) (bridge.Service, error)
}

// bridgeKinds returns the kinds for all foreign protocols.
func bridgeKinds() []bridgeKind {
	return []bridgeKind{
		{mess.LinkKind(), newMESS},
		{link.LinkKind(), newMew},
		{agentrelay.LinkKind(), newAgentRelay},
		{moltspeak.LinkKind(), newMoltSpeak},
		{a2a.LinkKind(), newA2A},
	}
}

// LinkKinds returns the kinds of links that the program has.
func LinkKinds() []bridge.Kind {
	var out []bridge.Kind
	for _, k := range bridgeKinds() {
		out = append(out, k.Kind)
	}
	return out
}

// addBridges makes the bridges in the configuration and mounts their routes. The node must exist.
func (p *Process) addBridges() error {
	for _, kind := range bridgeKinds() {
		var links []linkConfig
		var plain []bridge.Link
		for _, l := range p.cfg.Links {
			if l.Kind != kind.Name {
				continue
			}
			token, err := p.src.LinkToken(l)
			if err != nil {
				return exit.Fail(exit.Config, err)
			}
			links, plain = append(links, linkConfig{Link: l, Token: token}), append(plain, l)
		}
		var mesh bridge.Mesh
		if p.node != nil {
			var err error
			if mesh, err = p.node.Attach(kind.Kind, plain); err != nil {
				return exit.Fail(exit.Config, err)
			}
		}
		b, err := kind.make(p, links, mesh)
		if err != nil {
			return exit.Fail(exit.Config, fmt.Errorf("%s: %w", kind.Name, err))
		}
		if b == nil {
			continue
		}
		p.bridges = append(p.bridges, b)
		if p.node != nil {
			p.node.Connect(kind.Kind, b)
		}
		b.Mount(p.edge.Echo())
		p.mountOperations(b.Operations()...)
	}
	p.mountOperations(p.linkOperations()...)
	p.mountPages()
	return nil
}

// linkOperations returns the operations of the owner API for links of all kinds.
func (p *Process) linkOperations() []owner.Operation {
	return []owner.Operation{
		owner.Raw(http.MethodGet, "/links", owner.Read, func(c echo.Context) error {
			return httpapi.JSON(c, http.StatusOK, owner.List[bridge.LinkStatus]{Items: p.links()})
		}),
		owner.Raw(http.MethodPost, "/links/:name/test", owner.Decide, func(c echo.Context) error {
			name := c.Param("name")
			b := p.findBridge(name)
			if b == nil {
				return &wire.Error{Code: wire.InvalidMessage, Status: http.StatusNotFound, Message: "there is no such link; list the links with: agentmesh links list"}
			}
			if err := httpapi.KeepOpen(c, linkTestTime); err != nil {
				return err
			}
			return httpapi.JSON(c, http.StatusOK, testLink(c.Request().Context(), b, name))
		}),
	}
}

// links returns the status of all links.
func (p *Process) links() []bridge.LinkStatus {
	out := []bridge.LinkStatus{}
	for _, b := range p.bridges {
		out = append(out, b.Links()...)
	}
	return out
}

// LinkTest is the result of testing a link.
type LinkTest struct {
	Name  string `json:"name"`
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
}

func testLink(ctx context.Context, b bridge.Service, name string) LinkTest {
	ctx, cancel := context.WithTimeout(ctx, linkTestTime)
	defer cancel()
	if err := b.Test(ctx, name); err != nil {
		return LinkTest{Name: name, Error: err.Error()}
	}
	return LinkTest{Name: name, OK: true}
}

// linkTestTime bounds the test of one link.
const linkTestTime = 20 * time.Second
