// Package mailbox relays the mail of agents without a public address (protocol rules AM-64 to AM-68). Mail waits in the
// store. If the agent is connected, which means that it polls for its mail, a message passes through instead: the relay
// hands it to the agent at once, while the sender waits for the reply. A message that gets no reply in time is stored.
//
// The relay reads the cards from the store. Start with [New] and [Relay.Mount].
package mailbox
