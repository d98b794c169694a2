package daemon

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/bridge"
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
	Token client.Credential // empty where it has none
}

// bridgeKind makes the bridge to one protocol. mesh is nil in a process without a node. make returns nil if there is nothing
// to do: no link of the kind is configured, and nothing of it is served.
type bridgeKind struct {
	bridge.Kind
	make func(p *Process, links []linkConfig, mesh bridge.Mesh) (bridge.Service, error)
}

// bridgeKinds are the protocols that the process speaks beside its own.
func bridgeKinds() []bridgeKind {
	return []bridgeKind{
		{mess.LinkKind(), newMESS},
		{link.LinkKind(), newMew},
		{agentrelay.LinkKind(), newAgentRelay},
		{moltspeak.LinkKind(), newMoltSpeak},
	}
}

// LinkKinds lists what a link's kind may be.
func LinkKinds() []bridge.Kind {
	var out []bridge.Kind
	for _, k := range bridgeKinds() {
		out = append(out, k.Kind)
	}
	return out
}

// addBridges makes the bridges that the configuration asks for, once the node stands.
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
		owner.Mount(p.owner.Group(), b.Operations()...)
	}
	owner.Mount(p.owner.Group(), p.linkOperations()...)
	p.mountPages()
	return nil
}

// linkOperations returns what the owner may ask about links of any kind.
func (p *Process) linkOperations() []owner.Operation {
	return []owner.Operation{
		owner.Raw(http.MethodGet, "/links", owner.Read, func(c echo.Context) error {
			return httpapi.JSON(c, http.StatusOK, owner.List[bridge.LinkStatus]{Items: p.links()})
		}),
		owner.Raw(http.MethodPost, "/links/:name/test", owner.Decide, func(c echo.Context) error {
			name := c.Param("name")
			for _, b := range p.bridges {
				if slices.ContainsFunc(b.Links(), func(l bridge.LinkStatus) bool { return l.Name == name }) {
					if err := httpapi.KeepOpen(c, linkTestTime); err != nil {
						return err
					}
					return httpapi.JSON(c, http.StatusOK, testLink(c.Request().Context(), b, name))
				}
			}
			return &wire.Error{Code: wire.InvalidMessage, Status: http.StatusNotFound, Message: "there is no such link; agentmesh links list names them"}
		}),
	}
}

// links says how all links stand.
func (p *Process) links() []bridge.LinkStatus {
	out := []bridge.LinkStatus{}
	for _, b := range p.bridges {
		out = append(out, b.Links()...)
	}
	return out
}

// LinkTest is the outcome of a test.
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
