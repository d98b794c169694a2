// Package moltspeak is the bridge to MoltSpeak 0.1, a signed JSON protocol between agents named agent@org, with
// classification and consent. It serves the message endpoint of the protocol, delivers the node's messages to
// MoltSpeak agents behind links, and can serve the protocol's registry.
//
// Package message is the codec; [Bridge] is the agent. The rules are those of the protocol (MS-…). A class is enforced
// in both directions. Outgoing messages are scanned for personal data and blocked if no consent covers it. Unclear
// messages are refused, never guessed.
//
// The package has no access list: a message that passes the checks of the protocol then meets those of the node,
// through bridge.Receiver.
package moltspeak
