// Package capability decides which envelopes a participant of a MEW space may send.
//
// A [Capability] is a pattern over the kind, the addressees and the payload of an envelope. The numbers in comments are
// those of docs/bridges/mew-checklist.md. Start with [Parse] and [FirstAllowing]. [Capability.Contains] compares two
// capabilities for grants, because a participant may grant only what it has. Every decision and comparison has a
// [Budget], because patterns and payloads come from strangers.
package capability
