// Package moltspeak is the bridge to MoltSpeak 0.1, a signed JSON protocol between agents named agent@org, with
// classification and consent. It serves the message endpoint of the protocol, delivers the node's messages to MoltSpeak
// agents behind links, and can serve the protocol's registry.
//
// Package message is the codec; [Bridge] is the agent. The rules are those of the protocol (MS-…). The bridge enforces
// the classification of incoming and outgoing messages. It scans outgoing messages for personal data, and blocks a
// message if no consent covers the data. It refuses unclear messages and never guesses their meaning. The package has
// no access list. A message that passes the checks of the protocol goes to the node through bridge.Receiver, and the
// node applies its own checks.
package moltspeak
