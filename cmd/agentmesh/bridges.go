package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay"
	"github.com/agentmesh/agentmesh/node/bridge/mess"
	"github.com/agentmesh/agentmesh/node/bridge/mew"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// bridgeService is a bridge to another protocol, as the process runs it. Making one starts nothing.
type bridgeService interface {
	bridge.Transport // to the peers behind all links of the kind

	// Mount adds what foreign clients call, where the bridge serves anything.
	Mount(e *echo.Echo)
	// Operations returns the bridge's part of the owner API, below /<kind>.
	Operations() []owner.Operation
	// Run works until ctx ends and returns when everything it started has stopped.
	Run(ctx context.Context) error
	// Links says how the links stand, in the order of the configuration.
	Links() []bridge.LinkStatus
	// Test connects a link as if for the first time and says what is wrong with it.
	Test(ctx context.Context, link string) error
}

// linkConfig is a configured link with its secret.
type linkConfig struct {
	bridge.Link
	Token client.Credential // empty where it has none
}

// bridgeKind makes the bridge to one protocol. It returns nil where there is nothing to do: no link of the kind, and
// nothing of it is served.
type bridgeKind struct {
	bridge.Kind
	make func(p *process, links []linkConfig) (bridgeService, error)
}

// bridgeKinds are the protocols that the process speaks beside its own.
func bridgeKinds() []bridgeKind {
	return []bridgeKind{
		{mess.LinkKind(), newMESS},
		{mew.LinkKind(), newMew},
		{agentrelay.LinkKind(), newAgentRelay},
		{moltspeak.LinkKind(), newMoltSpeak},
	}
}

// bridgeNames lists what a link's kind may be.
func bridgeNames() []string {
	var out []string
	for _, k := range bridgeKinds() {
		out = append(out, k.Name)
	}
	return out
}

// addBridges makes the bridges that the configuration asks for, once the node stands.
func (p *process) addBridges() error {
	for _, kind := range bridgeKinds() {
		var links []linkConfig
		var plain []bridge.Link
		for _, l := range p.cfg.Links {
			if l.Kind != kind.Name {
				continue
			}
			token, err := p.app.token(l)
			if err != nil {
				return fail(exitConfig, err)
			}
			links, plain = append(links, linkConfig{Link: l, Token: token}), append(plain, l)
		}
		if p.node != nil {
			if err := p.node.Attach(kind.Kind, plain); err != nil {
				return fail(exitConfig, err)
			}
		}
		b, err := kind.make(p, links)
		if err != nil {
			return fail(exitConfig, fmt.Errorf("%s: %w", kind.Name, err))
		}
		if b == nil {
			continue
		}
		p.bridges = append(p.bridges, b)
		if p.node != nil {
			out := bridge.Transport(b)
			if kind.Name != moltspeak.Kind {
				out = watched{b, p.personalLeaves}
			}
			p.node.Transport(kind.Name, guided{out, b.Links})
		}
		b.Mount(p.edge.Echo())
		owner.Mount(p.owner.Group(), b.Operations()...)
	}
	owner.Mount(p.owner.Group(), p.linkOperations()...)
	p.mountPages()
	return nil
}

// guided is the transport to the peers behind the links of a kind, which knows the links by name.
type guided struct {
	bridge.Transport
	links func() []bridge.LinkStatus
}

var _ bridge.Guide = guided{}

// Leads implements [bridge.Guide].
func (g guided) Leads(to bridge.Address) error {
	if to.Kind == moltspeak.Kind && to.Link == moltspeak.InboundLink {
		return nil // who came by no link is answered where it said
	}
	names := []string{}
	for _, l := range g.links() {
		if l.Name == to.Link {
			return nil
		}
		names = append(names, l.Name)
	}
	if len(names) == 0 {
		names = append(names, "none")
	}
	return fmt.Errorf("there is no %s link %s; configured: %s", to.Kind, to.Link, strings.Join(names, ", "))
}

// linkOperations returns what the owner may ask about links of any kind.
func (p *process) linkOperations() []owner.Operation {
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
func (p *process) links() []bridge.LinkStatus {
	out := []bridge.LinkStatus{}
	for _, b := range p.bridges {
		out = append(out, b.Links()...)
	}
	return out
}

// linkTest is the outcome of a test.
type linkTest struct {
	Name  string `json:"name"`
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
}

func testLink(ctx context.Context, b bridgeService, name string) linkTest {
	ctx, cancel := context.WithTimeout(ctx, linkTestTime)
	defer cancel()
	if err := b.Test(ctx, name); err != nil {
		return linkTest{Name: name, Error: err.Error()}
	}
	return linkTest{Name: name, OK: true}
}
