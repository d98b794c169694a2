// Package acl decides who may send messages to this node, how often, and what its owner must be asked. It contains the
// pure decisions ([Policy], [Meter]) and the stored ones ([Rules], [Asks]).
//
// The package works on principals, not on messages. A principal is what access rules apply to: the agent id of a native
// sender, or the name that a bridge gives to a foreign one. The package never sends, signs, or carries out what the
// owner decided. The [Resolver] of each kind of ask does that.
//
// Start with [Policy.Admit] for line 11 of the receive table, [Meter.Charge] for line 12 and [Asks.Open] for line 15.
//
// The invariants: A block beats every allow, also when a held message is released (AM-25). A limit charges all its
// buckets or none. An ask leaves the state pending once, however many decisions are made concurrently.
package acl
