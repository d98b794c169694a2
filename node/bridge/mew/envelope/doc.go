// Package envelope reads, checks and writes the messages of MEW v0.4, and knows the kinds and the refusals of a gateway.
//
// [Parse] reads one envelope of a participant or of a gateway. [Outgoing] is one of ours. What a kind requires of a space
// is up to the gateway; which kinds a participant may send is up to package capability.
package envelope
