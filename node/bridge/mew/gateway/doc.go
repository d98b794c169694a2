// Package gateway serves MEW spaces to any MEW client.
//
// There are two sorts of spaces. A hosted space comes from the configuration of the node and belongs to the node's
// owner. A drop-in space, a [DropIn], comes from the files of the reference implementation of MEW and follows the rules
// of that implementation.
//
// The gateway handles the envelopes of a space one after the other: it checks, logs and queues each one under the lock
// of the space. Space.judge has the order of the checks.
//
// The rights of a participant are a list of [capability.Capability] patterns. A change of rights takes effect with the
// next envelope. A participant can give others only rights that it holds; the owner of a hosted space and the inviters
// of a drop-in space may give more.
//
// Invitations, grants, revocations and kicks are stored before anybody learns of them. Streams, pauses and history end
// with the process. The gateway has no access rules, limits or approvals beyond what the protocol needs.
//
// Comments cite rules such as MEW-37 from docs/conformance/mew.txt.
package gateway
