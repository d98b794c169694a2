// Package agentrelay speaks Agent Relay Chat (ARC), "IRC for agents": a relay that this process hosts, and links that
// connect the node to this relay and to others.
//
// It joins its parts into one [Bridge]. Package frame is the codec, package relay is the hosted relay, and package link
// is the node as an agent on a relay.
package agentrelay
