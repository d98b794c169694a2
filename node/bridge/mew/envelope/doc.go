// Package envelope reads, checks and writes the messages of MEW v0.4. It lists their kinds and the refusals of a
// gateway.
//
// [Parse] reads an envelope from a participant or a gateway. [Outgoing] is an envelope that the gateway writes, and
// [Draft] is one that a participant sends. The gateway enforces [Rules], which apply to every participant; package
// capability decides which envelopes one participant may send. Comments cite rules such as MEW-1 from
// docs/conformance/mew.txt.
package envelope
