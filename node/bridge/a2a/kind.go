package a2a

import (
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Kind is the kind of this bridge's addresses and links (agents that the owner configured).
const Kind = "a2a"

// InboundLink is the link name in the addresses of callers without a configured link.
const InboundLink = "inbound"

// linkPeer is the peer in the address of the agent behind a link: "a2a:claw/agent".
const linkPeer = "agent"

// anonymous is the name that all callers without a token share.
const anonymous = "anonymous"

// LinkKind declares A2A to the node.
func LinkKind() bridge.Kind { return bridge.Kind{Name: Kind, Inbound: InboundLink, Web: true} }

// addressOf returns the address of a caller. The caller whose token has the name of a link is the agent behind it, so
// that our answers go to the URL of the link, and policy.access of the link applies.
func (o *outbound) addressOf(name string) bridge.Address {
	if _, ok := o.links.Find(name); ok {
		return bridge.Address{Kind: Kind, Link: name, Peer: linkPeer}
	}
	return bridge.Address{Kind: Kind, Link: InboundLink, Peer: name}
}

// taskIDOf returns the id of the task that a message opens. If a caller with a token, or a relay, repeats a message,
// the id is the same. The id need not be secret, because a task is served only to its caller.
func taskIDOf(address, messageID string) string {
	h := wire.HashOf(address, "task", messageID)
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// messageIDOf returns the id under which the node knows a caller's message.
func messageIDOf(address, messageID string) wire.MessageID {
	return wire.MessageID("msg_" + wire.HashOf(address, "message", messageID))
}
