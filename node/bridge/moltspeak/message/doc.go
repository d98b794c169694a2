// Package message is the codec of MoltSpeak 0.1: messages, their payloads, classes, signatures, boxes and errors.
//
// It stores and sends nothing. [ReadPacket] opens what travelled, [Parse] reads the members of a message and
// [Message.Payload] what its operation needs; [Draft.Tree], [Sign], [Wrap] and [Seal] write a message. A signature is over
// Python's JSON of the tree as received and nothing else.
//
// The rules cited as MS-… are those of docs/bridges/moltspeak.md.
package message
