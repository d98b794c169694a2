// Package agentrelay speaks Agent Relay Chat (ARC), "IRC for agents": a relay that this process hosts, and links that
// carry the node to the relays of others.
//
// It joins its parts into one [Bridge]: package frame is the codec, package relay the hosted relay, package link the node
// as an agent on somebody else's relay.
package agentrelay
