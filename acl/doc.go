// Package acl decides who may send messages to this node, how often, and about which messages the owner must be asked.
// Such a question to the owner is an ask. [Policy] and [Meter] decide without the store; [Rules] and [Asks] are stored.
// The package knows principals, not messages. A principal is the agent id of a native sender, or the name that a bridge
// gives to a foreign one. The package sends and signs nothing: the [Resolver] of each kind of ask carries out the
// owner's decisions. Start with [Policy.Admit], [Meter.Charge] and [Asks.Open], which are lines 11, 12 and 15 of the
// receive table in docs/protocol.md. The invariants: A block takes precedence over every permission, even when a held
// message is released (AM-25). A limit charges all its buckets or none. An ask leaves the state pending only once, even
// if several decisions are made concurrently.
//
// This package is a part of the program, not an API for other modules: it may change with every commit.
package acl
