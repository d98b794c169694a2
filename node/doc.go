// Package node is the agent endpoint of one owner. It receives signed messages, passes them to the agent behind it,
// asks the owner if it must, and sends the answers.
//
// A message enters through the HTTP handler, which runs lines 1 and 2 of the receive table in docs/protocol.md. It
// continues in [Node.Receive] (lines 3 to 8) and ends in [Node.Accept] (lines 9 to 16). Bridges call Accept directly: a
// foreign message or peer is one of another protocol, behind a bridge, and a native one speaks AgentMesh itself.
//
// Everything that an acceptance changes is one [store.Step], committed before an answer leaves (AM-26). A
// [conversations.Unit] collects these changes. No step is open during network, signature or hook work.
//
// Comments cite a rule of docs/protocol.md as AM-26, a line of its receive table as "line 15", and a threat in
// docs/threat-model.md as THREATS 39.
//
// The package reads neither the command line nor files: its caller passes everything in a [Config].
package node
