// Package node is one owner's agent endpoint: it takes signed messages in, hands them to the agent behind it,
// asks the owner where it must, and sends what they answer.
//
// The way of a message is [Node.Receive] (HTTP and the checks of lines 1 to 8 of the receive table in
// docs/protocol.md), then [Node.Accept] (lines 9 to 16), which is where bridges enter too. Everything that an
// acceptance changes is one [store.Step], committed before an answer leaves (AM-26). No step is open during
// network, signature or hook work.
//
// It is not a directory, knows no command line and reads no file: cmd wires it.
package node
