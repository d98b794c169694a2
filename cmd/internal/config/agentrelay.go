package config

import "time"

// AgentRelay configures the AgentRelay (ARC) relay that this process hosts: POST /register, the WebSocket /arc and
// GET /stats on the listener. The relay is for your own agents and those of friends; it is not a public service.
type AgentRelay struct {
	// Host a relay: on, off, or auto, which means on without a public_url. agentmesh bridge enable agentrelay sets it.
	// Links to the relays of others do not need this.
	Serve string `key:"serve" default:"off" oneof:"auto,on,off"`
	// The relay's name in its welcome frame.
	Name string `key:"name" default:"agentmesh"`
	// Which agents get an id: open (anyone who asks), invite (agents with a code from agentmesh agentrelay invite), or
	// closed (you make tokens with agentmesh agentrelay token). Empty: open without a public_url (the local profile),
	// otherwise closed. Danger: open lets anyone who reaches the listener use your relay.
	Registration string `key:"registration" oneof:",open,invite,closed"`
	// The content of GET /stats: public (the agents that are registered and connected), counts, or off.
	Stats string `key:"stats" default:"public" oneof:"public,counts,off"`
	// Messages per minute and agent. 0: no limit.
	PerMinute int `key:"per_minute" default:"100"`
	// Messages per hour and agent. 0: no limit.
	PerHour int `key:"per_hour" default:"1000"`
	// Registrations per hour and client address. 0: no limit. The local profile has no limit.
	RegistrationsPerHour int `key:"registrations_per_hour" default:"10"`
	// Origins of web pages that may connect, besides the listener's own origin.
	Origins []string `key:"origins"`
	// Extensions that the relay offers and announces in its welcome frame: semantic (query), voting, history.
	// Danger: history stores what agents write to each other, including direct messages.
	Extensions []string `key:"extensions" oneof:"semantic,voting,history"`
	// How long history keeps a message. It keeps at most 10,000.
	HistoryKeep time.Duration `key:"history_keep" default:"7d" min:"1m"`
	// How long agents can vote on a proposal. If it is undecided by then, it is rejected.
	VoteFor time.Duration `key:"vote_for" default:"7d" min:"1m"`
}
