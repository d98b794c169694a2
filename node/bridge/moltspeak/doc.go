// Package moltspeak is the bridge to MoltSpeak 0.1, a signed JSON protocol between agents named agent@org. Every
// message has a classification, and personal data needs a consent. The bridge serves the message endpoint of the
// protocol, delivers the node's messages to MoltSpeak agents behind links, and can serve the protocol's registry.
//
// Package message is the codec; [Bridge] is the agent. The rules cited as MS-… are those of
// docs/conformance/moltspeak.txt. The bridge enforces the classification of incoming and outgoing messages. The
// bridge scans outgoing messages for personal data, and blocks a message if no consent covers the data. It refuses
// unclear messages and never guesses their meaning. The package has no access list. A message that passes the checks
// of the protocol goes to the node through bridge.Receiver, and the node applies its own checks.
package moltspeak
