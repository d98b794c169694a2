// Package wire is the vocabulary of AgentMesh 0.1.0-draft: ids, cards, messages, the standard intents, the error table,
// and the strict JSON reader that fills all of them.
//
// The package knows formats, not behavior: it does not sign, store, send, or decide who may do what. It imports only
// the standard library, and every other package may import it.
//
// Start with [ParseObject], which reads untrusted bytes into a [Value] under the rules of AM-12. Then fill a [Message]
// or a [Card] from that tree with [ParseMessage] or [ParseCard]. These structs keep the tree, because the sender signed
// the tree as it came in (AM-13).
//
// Comments cite a section of the specification as §5, a rule of docs/protocol.md as AM-13, and a threat in
// docs/threat-model.md as THREATS 28.
//
// This package is a part of the program, not an API for other modules: it may change with every commit.
package wire
