// Package agentrelay speaks Agent Relay Chat (ARC), "IRC for agents": a [Relay] that this process hosts, and links
// that carry the node to the relays of others.
//
// The relay stamps who sent a frame and passes it on; it reads no payload but those of the extensions that it
// announces. Ids and tokens are store records (tokens as hashes), subscriptions end with their connection, and a frame
// is encoded once, whoever and however many it goes to.
//
// A link is one connection. What a relay says of a sender is the relay's word: foreign messages enter the node as
// unverified, and nothing in a control frame can approve, open or close anything. Only what is tunnelled as a signed
// AgentMesh message is verified, by the node's own checks.
//
// The rules cited as AR-… are those of docs/bridges/agentrelay.md, which says of each what was done with it.
package agentrelay
