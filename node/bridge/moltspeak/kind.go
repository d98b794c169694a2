package moltspeak

import (
	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
)

// encryptAlways is the only value that policy.encrypt may have. It encrypts every message to the peer, whatever its
// class, except a hello. To a peer that has shown no key, only errors, pongs and the messages of a handshake leave.
const encryptAlways = "always"

// LinkKind returns what the node must know about MoltSpeak links.
func LinkKind() bridge.Kind {
	return bridge.Kind{
		Name: Kind, Encrypt: []string{encryptAlways}, Check: checkAccess, Inbound: InboundLink, Screens: true,
		// Neither a query nor its answer commits the owner, so both leave at once, as with mesh.request_info.
		Holds: []acl.HoldRule{{Intent: string(IntentQuery), Direction: acl.Out, Hold: acl.Never}},
		// A command of the owner is the owner's decision.
		OwnerHolds: []acl.HoldRule{
			{Intent: string(IntentTask), Direction: acl.Out, Hold: acl.Never}, {Intent: string(IntentTool), Direction: acl.Out, Hold: acl.Never},
		},
	}
}

// checkAccess refuses policy.access for a link without options.peer. All agents call the same endpoint of ours, so only
// options.peer says which agent the link is for.
func checkAccess(l bridge.Link) *bridge.PolicyError {
	if l.Policy.Access == "" || l.Options["peer"] != "" {
		return nil
	}
	return &bridge.PolicyError{
		Link: l.Name, Key: "policy.access",
		Why: "it has no effect without options.peer, because access.mode decides about agents that no link names",
		Fix: "add options.peer (agent@org) to link " + l.Name + ", or remove policy.access",
	}
}
