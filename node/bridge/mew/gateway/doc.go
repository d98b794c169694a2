// Package gateway serves MEW spaces to any MEW client.
//
// Where the protocol leaves room, the gateway is strict: it judges, logs and queues an envelope under the one lock of
// its space, in the order of Space.judge, and a change of rights acts from the next envelope on. The rights of a
// participant are a list of [capability.Capability] patterns, and only a participant that holds a right can give it.
// Invited participants, grants, masks and bars are store records, which are durable before anybody learns of them.
// Streams, pauses and history end with the process.
//
// The gateway has no access rules, limits or approvals beyond what the protocol needs.
package gateway
