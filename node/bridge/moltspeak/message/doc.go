// Package message is the codec of MoltSpeak 0.1: messages, their payloads, classes, signatures, encrypted boxes and
// errors.
//
// It stores and sends nothing. [ReadPacket] unwraps the received bytes, [Parse] reads the members of a message, and
// [Message.Payload] reads the members of its operation. [Draft.Tree], [Sign], [Wrap] and [Seal] write a message. A
// signature covers Python's JSON form of the tree as received, and nothing else.
//
// docs/conformance/moltspeak.txt says what the project does about the rules cited as MS-….
package message
