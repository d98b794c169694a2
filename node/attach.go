package node

import (
	"maps"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// What bridges attach to a node besides [Node.Transport]. All of it is for set-up, before [Node.Run].

// Route adds a route behind those that the owner configured for some intents, and before one for all of them.
func (n *Node) Route(r Route) {
	at := slices.IndexFunc(n.cfg.Routes, func(have Route) bool { return have.Pattern == "*" })
	if at < 0 {
		at = len(n.cfg.Routes)
	}
	n.cfg.Routes = slices.Insert(slices.Clone(n.cfg.Routes), at, r)
}

// AccessMode gives a principal an access mode of its own, as a link to a foreign network has one.
func (n *Node) AccessMode(principal string, m acl.Mode) {
	modes := maps.Clone(n.cfg.Policy.Modes)
	if modes == nil {
		modes = make(map[string]acl.Mode)
	}
	modes[principal] = m
	n.cfg.Policy.Modes = modes
}

// modeFor is the access mode that holds for a principal.
func (n *Node) modeFor(principal string) acl.Mode {
	if m := n.cfg.Policy.Modes[principal]; m != "" {
		return m
	}
	return n.mode()
}

// KeepOpen lets conversations of an intent be silent for longer than others before they expire: their end is the bridge's
// to send.
func (n *Node) KeepOpen(intent wire.Intent, d time.Duration) { n.idle[intent] = d }

// OnClose names what is asked when a peer closes a conversation. What it returns changes in the step that accepts the
// close, which no handler gets to see.
func (n *Node) OnClose(f func(in bridge.Inbound) []store.Change) { n.onClose = append(n.onClose, f) }

// closed collects what those that follow closes want changed.
func (n *Node) closed(in bridge.Inbound) []store.Change {
	var changes []store.Change
	for _, f := range n.onClose {
		changes = append(changes, f(in)...)
	}
	return changes
}
