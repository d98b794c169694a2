// Package acl decides who may talk to this node, how often, and what its owner must be asked: the pure decisions
// ([Policy], [Meter]) and the remembered ones ([Rules], [Asks]).
//
// It knows principals, not messages: a principal is whatever access rules act on, an agent id for a native sender
// or the name that a bridge gives a foreign one. It never sends, signs, or carries out what the owner decided;
// that is the [Resolver] of each kind of ask.
//
// Start with [Policy.Admit] for line 11 of the receive table, [Meter.Charge] for line 12 and [Asks.Open] for line 15.
//
// What holds always: block beats every allow, also when a held message is released (AM-25). A limit charges all its
// buckets or none. An ask leaves the state pending once, whoever decides it and however many try.
package acl
