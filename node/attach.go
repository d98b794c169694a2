package node

import (
	"cmp"
	"context"
	"errors"
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

// Attach takes the links of a kind under the node's access rules: policy.access of a link decides about everybody behind
// it, whatever the bridge calls them. The error names each key of a policy that the kind does not honor.
func (n *Node) Attach(kind bridge.Kind, links []bridge.Link) error {
	for _, l := range links {
		var wrong []error
		for _, e := range kind.CheckPolicy(l) {
			wrong = append(wrong, e)
		}
		if len(wrong) > 0 {
			return errors.Join(wrong...)
		}
		n.linkModes.Store(kind.Name+":"+l.Name, n.linkMode(acl.Mode(l.Policy.Access)))
	}
	return nil
}

// HoldRule adds a rule about the intents of a bridge behind the rules that the owner configured.
func (n *Node) HoldRule(r acl.HoldRule) {
	n.cfg.Policy.Hold = append(slices.Clone(n.cfg.Policy.Hold), r)
}

// linkMode returns the access mode of a link with the given policy.access. The default is approval, except that a link
// lets nobody ask where the node itself takes messages from listed peers only.
func (n *Node) linkMode(access acl.Mode) acl.Mode {
	switch {
	case access != "":
		return access
	case n.mode() == acl.Allowlist:
		return acl.Allowlist
	}
	return acl.Approval
}

// modeFor returns the access mode for the peer with a foreign address: that of its link. For a native peer, whose address
// is empty, and for a foreign one that came to a service of this process and not over a link, it is the node's own.
func (n *Node) modeFor(address string) acl.Mode {
	if m, ok := n.linkModes.Load(linkOf(address)); ok {
		return m.(acl.Mode)
	}
	return n.mode()
}

// policyFor returns the access policy for the peer with a foreign address, see [Node.modeFor].
func (n *Node) policyFor(address string) acl.Policy {
	p := n.cfg.Policy
	p.Mode = n.modeFor(address)
	return p
}

// KeepOpen lets conversations of an intent be silent for longer than others before they expire: their end is the bridge's
// to send.
func (n *Node) KeepOpen(intent wire.Intent, d time.Duration) { n.idle[intent] = d }

// Aside follows the messages of peers that no handler gets to see: a close, and the word that the peer's owner is asked
// first.
type Aside interface {
	// Aside returns what changes in the step that takes the message in.
	Aside(in bridge.Inbound) []store.Change
	// Committed is told of the changes of each unit that is committed in this process. It must not block.
	Committed(changes []store.Change)
}

// Failures is an [Aside] that also follows messages of ours that will never be delivered.
type Failures interface {
	// Undelivered returns what such a message was about, in the words of the owner's notice, and what changes in the step
	// that gives it up. quiet says that the owner need not be told.
	Undelivered(ctx context.Context, u bridge.Undelivered) (about string, quiet bool, changes []store.Change)
}

// undeliverable tells those who follow of a letter that is given up.
func (n *Node) undeliverable(ctx context.Context, l Letter) (about string, quiet bool, changes []store.Change) {
	u := bridge.Undelivered{To: l.To, Address: l.Address, ConvID: l.Conversation, MessageID: l.MessageID, Intent: l.Intent, Status: l.Status}
	if l.Err != nil {
		u.Code, u.Reason = l.Err.Code, l.Err.Message
	}
	for _, a := range n.asides {
		if f, ok := a.(Failures); ok {
			what, silent, more := f.Undelivered(ctx, u)
			about, quiet, changes = cmp.Or(about, what), quiet || silent, append(changes, more...)
		}
	}
	return about, quiet, changes
}

// Follow names one who follows them.
func (n *Node) Follow(a Aside) { n.asides = append(n.asides, a) }

// aside collects what they want changed.
func (n *Node) aside(in bridge.Inbound) []store.Change {
	var changes []store.Change
	for _, a := range n.asides {
		changes = append(changes, a.Aside(in)...)
	}
	return changes
}
