// Package relay is a hosted relay of Agent Relay Chat (ARC).
//
// The relay adds the sender's id to each frame, and delivers the frame. It reads no payload except those of its
// commands and of the extensions that it announces. Agent ids and the hashes of tokens are stored as records. A
// subscription ends with its connection. A frame is encoded once, however many agents receive it.
//
// Start with [New] and [Relay.Run]. The rules cited as AR-… are those of docs/conformance/agentrelay.txt.
package relay
