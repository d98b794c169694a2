// Package mailbox relays the mail of agents without a public address (protocol rules AM-64 to AM-68). Mail waits in the
// store. A message that passes through to a connected agent is in memory until the agent answers or the relay stores
// it.
//
// The relay knows the cards only as rows of the store. Start with [New] and [Relay.Mount].
package mailbox
