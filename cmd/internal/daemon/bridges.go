package daemon

import (
	"context"
	"fmt"
	"slices"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/a2a"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay"
	"github.com/agentmesh/agentmesh/node/bridge/mess"
	"github.com/agentmesh/agentmesh/node/bridge/mew/link"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak"
	"github.com/agentmesh/agentmesh/node/client"
)

// linkConfig is a configured link with its secret.
type linkConfig struct {
	bridge.Link
	Token client.Credential // "" for a link without a secret
	own   bool              // made by ownLinks; leads to something that this process hosts
}

// splitLinks returns the links, and their tokens by the name of the link.
func splitLinks(links []linkConfig) (plain []bridge.Link, tokens map[string]client.Credential) {
	tokens = make(map[string]client.Credential)
	for _, l := range links {
		plain, tokens[l.Name] = append(plain, l.Link), l.Token
	}
	return plain, tokens
}

// bridgeKind makes the bridge for one protocol. mesh is nil in a process without a node. make returns a nil bridge if
// this process does not need one; the comment of each function in bridgeKinds says when.
type bridgeKind struct {
	bridge.Kind
	make func(p *Process, links []linkConfig, mesh bridge.Mesh) (bridge.Service, error)
}

// runningBridge is a bridge of a process, with the kind of its links.
type runningBridge struct {
	bridge.Kind
	bridge.Service
}

func bridgeKinds() []bridgeKind {
	return []bridgeKind{
		{mess.LinkKind(), newMESS},
		{link.LinkKind(), newMew},
		{agentrelay.LinkKind(), newAgentRelay},
		{moltspeak.LinkKind(), newMoltSpeak},
		{a2a.LinkKind(), newA2A},
	}
}

// LinkKinds returns the kinds of links: one for each network with a bridge.
func LinkKinds() []bridge.Kind {
	var out []bridge.Kind
	for _, k := range bridgeKinds() {
		out = append(out, k.Kind)
	}
	return out
}

// readLink returns a configured link as the bridge of its kind gets it.
func (p *Process) readLink(l bridge.Link) (linkConfig, error) {
	token, err := p.src.LinkToken(l)
	if l.Dir != "" {
		l.Dir = p.src.ResolvePath(l.Dir)
	}
	if exempt, _ := p.cfg.Exempt(); l.Kind == link.Kind && slices.Contains(exempt, link.Principal(l.Name)) {
		l.Policy.Limits = bridge.NoLinkLimits()
	}
	return linkConfig{Link: l, Token: token}, err
}

// findBridge returns the bridge for links of a kind, or nil if this process has none.
func (p *Process) findBridge(kind string) bridge.Service {
	if i := slices.IndexFunc(p.bridges, func(b runningBridge) bool { return b.Name == kind }); i >= 0 {
		return p.bridges[i].Service
	}
	return nil
}

// startLink starts a link of the configuration.
func (p *Process) startLink(ctx context.Context, l bridge.Link) error {
	configured, err := p.readLink(l)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(p.bridges, func(b runningBridge) bool { return b.Name == l.Kind })
	if _, err := p.node.Attach(p.bridges[i].Kind, []bridge.Link{configured.Link}); err != nil {
		return err
	}
	if err := p.bridges[i].PutLink(configured.Link, configured.Token); err != nil {
		p.node.Detach(l.Kind, l.Name)
		return fmt.Errorf("%s: %w", l.Kind, err)
	}
	auditPolicy(ctx, p)
	return nil
}

// stopLink stops a link and removes it.
func (p *Process) stopLink(ctx context.Context, kind, name string) {
	p.findBridge(kind).RemoveLink(name)
	p.node.Detach(kind, name)
	auditPolicy(ctx, p)
}

// auditPolicy puts the access rules into the audit log after a change of the links. The next start tries again.
func auditPolicy(ctx context.Context, p *Process) {
	if err := p.node.AuditPolicy(context.WithoutCancel(ctx)); err != nil {
		p.log.Error("audit entry of the access rules not stored; the next start tries again", "err", err)
	}
}

// addBridges makes the bridges in the configuration, and mounts their routes, the operations for links, and the owner's
// page. If the process has a node, the caller makes the node first.
func (p *Process) addBridges() error {
	// If this process loses the lease for the bridges, bridgeStore stores nothing more.
	p.bridgeStore = p.store.Under(p.hosting.currentLease())
	for _, kind := range bridgeKinds() {
		var links []linkConfig
		for _, l := range p.cfg.Links {
			if l.Kind != kind.Name {
				continue
			}
			configured, err := p.readLink(l)
			if err != nil {
				return exit.Fail(exit.Config, err)
			}
			links = append(links, configured)
		}
		for _, l := range ownLinks(p, kind.Name) {
			links = append(links, linkConfig{Link: l, own: true})
		}
		var mesh bridge.Mesh
		if p.node != nil {
			var err error
			plain, _ := splitLinks(links)
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
		p.bridges = append(p.bridges, runningBridge{kind.Kind, b})
		if p.node != nil {
			p.node.Connect(kind.Kind, b)
		}
		p.hosting.mount(p, kind.Name, b)
		showServing(p, kind.Name)
	}
	p.mountOperations(slices.Concat(p.linkOperations(), configChanger{p}.bridgeOperations())...)
	return p.mountPages()
}
