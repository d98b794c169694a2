// Package rules decides what happens to a message: may it, does it wait, who answers. Its functions have no clock, no
// store and no network. The caller, package node, loads a [State], asks, and carries out the [Verdict] in one step of
// the store. "Line 15" means line 15 of the receive table in docs/protocol.md.
package rules
