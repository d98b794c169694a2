// Package mew speaks MEW v0.4: a [Gateway] serves spaces to any MEW client, and links carry the node into spaces of
// others.
//
// The gateway is strict where the protocol leaves room: an envelope is judged, logged and queued under the one lock
// of its space, in the order of Space.judge, and a change of rights acts from the next envelope on. What a
// participant may do is a list of [capability.Capability] patterns; who nobody gave a right does not get it from anybody who has
// none. What lasts (invited participants, grants, masks, bars) is a store record that is durable before anybody is
// told; streams, pauses and history end with the process.
//
// It has no access rules, limits or approvals of its own beyond what the protocol needs. docs/bridges/mew.md maps the
// protocol to this package, rule by rule.
package mew
