// Package gateway serves MEW spaces to any MEW client.
//
// The gateway is strict where the protocol leaves room: an envelope is judged, logged and queued under the one lock
// of its space, in the order of Space.judge, and a change of rights acts from the next envelope on. What a
// participant may do is a list of [capability.Capability] patterns; a participant gets a right only from one that holds it.
// What lasts (invited participants, grants, masks, bars) is a store record that is durable before anybody is
// told; streams, pauses and history end with the process.
//
// The gateway has no access rules, limits or approvals beyond what the protocol needs.
package gateway
