// Package moltspeak is the bridge to MoltSpeak 0.1, a signed JSON protocol between agents named agent@org with
// classification and consent. It serves the message endpoint of the protocol, delivers the node's messages to
// MoltSpeak agents behind links, and can serve its registry.
//
// Package message is the codec; [Bridge] is the peer. The rules are those of the protocol (MS-…): a class is enforced in
// both directions; what leaves is scanned for personal data and blocked where no consent covers it; what
// is unclear is refused and never guessed.
//
// It is not an access list: a message that passes the protocol's own checks meets the node's, through bridge.Receiver.
package moltspeak
