// Package capability decides which envelopes a participant of a MEW space may send.
//
// A [Capability] is a pattern over the kind, the addressees and the payload of an envelope. Start with [Parse] and
// [FirstAllowing]. [Capability.Contains] compares two capabilities for grants, because a participant may grant only what
// it has. Every decision and comparison has a [Budget], because patterns and payloads come from strangers. Comments
// cite rules such as MEW-24 from docs/conformance/mew.txt.
package capability
