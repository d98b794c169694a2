// Package gateway serves MEW spaces to any MEW client. The gateway handles the envelopes of a space one after the
// other: it checks, logs and queues each one under the lock of the space. The checks have the order of Space.judge. A
// change of rights takes effect with the next envelope. The rights of a participant are a list of
// [capability.Capability] patterns. A participant can give others only rights that it holds; the owner of a hosted
// space and the inviters of a drop-in space may give more. Invitations, grants, revocations and kicks are store
// records, which are durable before anybody learns of them. Streams, pauses and history end with the process.
//
// The gateway has no access rules, limits or approvals beyond what the protocol needs.
package gateway
