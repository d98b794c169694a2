// Package link is our node as an agent on an Agent Relay Chat (ARC) relay of somebody else.
//
// A [Link] is one connection. What a relay says of a sender is the relay's word: foreign messages enter the node as
// unverified, and nothing in a control frame can approve, open or close anything. Only what is tunnelled as a signed
// AgentMesh message is verified, by the node's own checks.
//
// Start with [New] and [Link.Run]. The rules cited as AR-… are those of docs/bridges/agentrelay.md.
package link
