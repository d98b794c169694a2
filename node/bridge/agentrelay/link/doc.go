// Package link makes our node an agent on an Agent Relay Chat (ARC) relay.
//
// A [Link] is one connection. Only the relay vouches for the sender of a frame, so the node treats foreign messages
// as unverified. No frame from the relay itself can approve, open or close anything. The node verifies only signed
// AgentMesh messages that arrive inside frames, through the tunnel; for these it makes its own checks.
//
// Start with [New] and [Link.Run]. The rules cited as AR-… are those of docs/conformance/agentrelay.txt.
package link
