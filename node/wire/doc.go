// Package wire is the vocabulary of AgentMesh 0.1.0-draft: ids, cards, messages, the standard intents, the
// error table and the strict JSON reader that all of them are filled from.
//
// It knows formats, not behaviour: nothing here signs, stores, sends or decides who may do what. It imports
// the standard library only, and every other package may import it.
//
// Start with [ParseObject], which reads untrusted bytes into a [Value] under the rules of AM-12, and fill a
// [Message] or a [Card] from that same tree with [ParseMessage] or [ParseCard]. What was signed is the tree as
// it came in (AM-13), so a struct here always carries the tree that it was filled from.
package wire
