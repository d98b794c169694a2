package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/a2a"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay"
	"github.com/agentmesh/agentmesh/node/bridge/mess"
	"github.com/agentmesh/agentmesh/node/bridge/mew/link"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/labstack/echo/v4"
)

// linkConfig is a configured link with its secret.
type linkConfig struct {
	bridge.Link
	Token client.Credential // "" for a link without a secret
	own   bool              // it leads to what this process hosts
}

// splitLinks returns links, and their tokens by the name of the link.
func splitLinks(links []linkConfig) (plain []bridge.Link, tokens map[string]client.Credential) {
	tokens = make(map[string]client.Credential)
	for _, l := range links {
		plain, tokens[l.Name] = append(plain, l.Link), l.Token
	}
	return plain, tokens
}

// bridgeKind makes the bridge for one protocol. mesh is nil in a process without a node. make returns a nil bridge if
// this process needs none; the comment of each function says when.
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

// addBridges makes the bridges in the configuration, and mounts their routes, the operations for links, and the owner's
// page. A process with a node makes the node before it.
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
		for _, l := range ownLinks(p, kind.Name) {
			links, plain = append(links, linkConfig{Link: l, own: true}), append(plain, l)
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
		p.hosting.mount(p, b)
	}
	p.mountOperations(slices.Concat(p.linkOperations(), configChanger{p}.bridgeOperations())...)
	p.mountPages()
	return nil
}

// hosting makes one process at a time run the bridges: the links, and the spaces, exchanges and relays that it hosts.
// Bridges keep their state in memory, so a process without the lease uses only their routes, and starts again when it
// gets the lease.
type hosting struct {
	lease     string
	elsewhere bool // another process had the lease when this process started
	again     sync.Once
}

// leaseBridges is the lease for bridges of a process without a node. With a node, the bridges belong to its duties,
// because the node delivers through them.
const leaseBridges = "bridges"

// claim takes the lease for the bridges, unless another process has it.
func (h *hosting) claim(ctx context.Context, p *Process) error {
	h.lease = leaseBridges
	if p.cfg.Has(config.RoleNode) {
		h.lease = node.Lease
	}
	_, err := p.store.Leases().Acquire(ctx, h.lease)
	h.elsewhere = errors.Is(err, store.ErrLeaseTaken)
	if h.elsewhere {
		return nil
	}
	return err
}

// run runs a bridge until ctx ends. If another process has the lease, run waits until that process ends, and then starts
// this process again. It also does so if this process loses the lease.
func (h *hosting) run(ctx context.Context, p *Process, b bridge.Service) (err error) {
	p.session.Do(ctx, h.lease, func(duty context.Context) {
		if !h.elsewhere {
			err = b.Run(duty)
		}
		if ctx.Err() == nil && (h.elsewhere || errors.Is(context.Cause(duty), store.ErrLeaseLost)) {
			h.again.Do(func() {
				p.log.Info("start again, because the lease for the bridges has changed hands", "taken_over", h.elsewhere)
				p.rerun.start(nil)
			})
			<-ctx.Done()
		}
	})
	return err
}

// mount mounts the routes of a bridge. If another process runs the bridge, the routes refuse every request.
func (h *hosting) mount(p *Process, b bridge.Service) {
	operations := b.Operations()
	if !h.elsewhere {
		b.Mount(p.edge.Echo())
		p.mountOperations(operations...)
		return
	}
	scratch := echo.New() // only to list the routes
	b.Mount(scratch)
	for _, r := range scratch.Routes() {
		if r.Method != echo.RouteNotFound {
			p.edge.Echo().Add(r.Method, r.Path, refuseElsewhere)
		}
	}
	operations = slices.Clone(operations)
	for i, op := range operations {
		operations[i] = owner.Raw(op.Method, op.Path, op.Right, refuseElsewhere)
	}
	p.mountOperations(operations...)
}

// refuseElsewhere refuses a request for a bridge that another process runs.
func refuseElsewhere(echo.Context) error {
	return (&wire.Error{
		Code: wire.AgentUnavailable, Status: http.StatusServiceUnavailable, Retry: true,
		Message: "another process of this service answers such requests",
	}).After(2 * time.Second)
}
