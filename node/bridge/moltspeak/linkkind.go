package moltspeak

import (
	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
)

// encryptAlways is the one value of policy.encrypt: everything to the peer is encrypted, not only what its class asks for.
const encryptAlways = "always"

// LinkKind declares MoltSpeak to the node.
func LinkKind() bridge.Kind {
	return bridge.Kind{
		Name: Kind, Encrypt: []string{encryptAlways}, Check: namesPeer, Inbound: InboundLink, Screens: true,
		// A query commits the owner to nothing, and neither does its answer: like mesh.request_info it leaves at once.
		Holds: []acl.HoldRule{{Intent: string(IntentQuery), Direction: acl.Out, Hold: acl.Never}},
	}
}

// namesPeer refuses policy.access of a link without options.peer: every agent calls the same endpoint of ours, and the
// name is how the bridge tells which of them is behind the link.
func namesPeer(l bridge.Link) *bridge.PolicyError {
	if l.Policy.Access == "" || l.Options["peer"] != "" {
		return nil
	}
	return &bridge.PolicyError{
		Link: l.Name, Key: "policy.access",
		Why: "it has no effect without options.peer, because access.mode decides about agents that no link names",
		Fix: "add options.peer (agent@org) to link " + l.Name + ", or remove policy.access",
	}
}
