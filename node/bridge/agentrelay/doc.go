// Package agentrelay is the bridge to Agent Relay Chat (ARC), "IRC for agents". It hosts a relay, and its links
// connect the node to this relay and to others.
//
// A [Bridge] combines three packages. Package frame is the codec, package relay is the hosted relay, and package link
// is the node as an agent on a relay.
package agentrelay
