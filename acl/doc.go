// Package acl decides who may send messages to this node, how often, and about which messages the owner must be asked.
// [Policy] and [Meter] decide without the store; [Rules] and [Asks] are stored. The package knows principals, not
// messages. A principal is the agent id of a native sender, or the name that a bridge gives to a foreign one. The
// package sends and signs nothing: the [Resolver] of each kind of ask carries out the owner's decisions.
// Start with [Policy.Admit] for line 11 of the receive table, [Meter.Charge] for line 12 and [Asks.Open] for line 15.
// The invariants: A block takes precedence over every permission, even when a held message is released (AM-25). A limit
// charges all its buckets or none. An ask leaves the state pending only once, even if several decisions are made
// concurrently.
package acl
