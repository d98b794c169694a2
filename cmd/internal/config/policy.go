package config

import (
	"net/netip"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
)

// Policy returns the access policy that the configuration describes.
func (c Config) Policy() acl.Policy {
	p := acl.Policy{Mode: acl.Mode(c.Access.Mode), Allow: c.Access.Allow, Block: c.Access.Block}
	for _, r := range c.Hold {
		p.Hold = append(p.Hold, acl.HoldRule{
			Intent: r.Intent, Actions: r.Actions, Direction: acl.Direction(r.Direction), Hold: acl.Hold(r.Hold),
			Name: r.Name, Unless: acl.Mandate(r.Unless),
		})
	}
	return p
}

// Outbound returns the policy for outgoing messages.
func (c Config) Outbound() node.OutboundPolicy {
	return node.OutboundPolicy{Mode: acl.Mode(c.Outgoing.Mode), Allow: c.Outgoing.Allow, Approve: c.Outgoing.Approve, Seal: node.Sealing(c.Outgoing.Seal)}
}

// Rates returns the limits on messages.
func (c Config) Rates() acl.Rates {
	return acl.Rates{
		NewConversations: c.Limits.MessagesNewConversations,
		Conversation:     c.Limits.MessagesConversation,
		Total:            c.Limits.MessagesTotal,
		TokenContexts:    c.Limits.A2AContexts,
	}
}

// Exempt splits limits.exempt into principals, which have no message limits, and networks, which have no request
// limits. Principals are agents, links and foreign peers.
func (c Config) Exempt() (principals []string, networks []netip.Prefix) {
	for _, e := range c.Limits.Exempt {
		if n, err := netip.ParsePrefix(e); err == nil {
			networks = append(networks, n)
		} else if a, err := netip.ParseAddr(e); err == nil {
			networks = append(networks, netip.PrefixFrom(a, a.BitLen()))
		} else {
			principals = append(principals, e)
		}
	}
	return principals, networks
}

// Label returns the hook's name, or its kind and intent if it has no name.
func (h Hook) Label() string {
	kind := "inbox"
	switch {
	case h.Name != "":
		return h.Name
	case len(h.Exec) > 0:
		kind = "exec"
	case h.Webhook != "":
		kind = "webhook"
	case h.A2A != "":
		kind = "a2a"
	case h.OpenClaw != "":
		kind = "openclaw"
	}
	return kind + " " + h.Intent
}
