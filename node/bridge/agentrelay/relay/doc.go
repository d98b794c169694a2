// Package relay is a hosted relay of Agent Relay Chat (ARC).
//
// The relay stamps who sent a frame and delivers it. It reads no payload except those of its commands and of the
// extensions that it announces. Ids and tokens are store records (tokens as hashes). Subscriptions end with their
// connection. A frame is encoded once, however many agents receive it.
//
// Start with [New] and [Relay.Run]. The rules cited as AR-… are those of docs/bridges/agentrelay-checklist.md.
package relay
