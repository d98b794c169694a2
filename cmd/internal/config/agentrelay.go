package config

import (
	"strconv"
	"time"
)

// AgentRelay configures the AgentRelay (ARC) relay that this process hosts: POST /register, the WebSocket /arc and
// GET /stats on the listener. The relay is for your own agents and those of friends; it is not a public service.
type AgentRelay struct {
	// Host a relay: on, off, or auto, which means on without a public_url. agentmesh bridge enable agentrelay sets it.
	// Links to the relays of others do not need this.
	Serve string `key:"serve"`
	// The relay's name in its welcome frame.
	Name string `key:"name"`
	// Which agents get an id: open (anyone who asks), invite (agents with a code from agentmesh agentrelay invite), or
	// closed (you make tokens with agentmesh agentrelay token). Empty: open without a public_url (the local profile),
	// otherwise closed. Danger: open lets anyone who reaches the listener use your relay.
	Registration string `key:"registration"`
	// The content of GET /stats: public (the agents that are registered and connected), counts, or off.
	Stats string `key:"stats"`
	// Messages per minute and agent. 0: no limit.
	PerMinute int `key:"per_minute"`
	// Messages per hour and agent. 0: no limit.
	PerHour int `key:"per_hour"`
	// Registrations per hour and client address. 0: no limit. The local profile has no limit.
	RegistrationsPerHour int `key:"registrations_per_hour"`
	// Origins of web pages that may connect, besides the listener's own origin.
	Origins []string `key:"origins"`
	// Extensions that the relay offers and announces in its welcome frame: semantic (query), voting, history.
	// Danger: history stores what agents write to each other, including direct messages.
	Extensions []string `key:"extensions"`
	// How long history keeps a message. It keeps at most 10,000.
	HistoryKeep time.Duration `key:"history_keep"`
	// How long agents can vote on a proposal. If it is undecided by then, it is rejected.
	VoteFor time.Duration `key:"vote_for"`
}

func defaultAgentRelay() AgentRelay {
	return AgentRelay{
		Serve: "off", Name: "agentmesh", Stats: "public", PerMinute: 100, PerHour: 1000, RegistrationsPerHour: 10,
		HistoryKeep: 7 * day, VoteFor: 7 * day,
	}
}

func (c AgentRelay) check(p *problems) {
	p.checkOneOf("agentrelay.serve", c.Serve, "auto", "on", "off")
	p.checkOneOf("agentrelay.registration", c.Registration, "", "open", "invite", "closed")
	p.checkOneOf("agentrelay.stats", c.Stats, "public", "counts", "off")
	for i, e := range c.Extensions {
		p.checkOneOf("agentrelay.extensions["+strconv.Itoa(i)+"]", e, "semantic", "voting", "history")
	}
	if c.HistoryKeep < time.Minute {
		p.add("agentrelay.history_keep", "must be at least a minute")
	}
	if c.VoteFor < time.Minute {
		p.add("agentrelay.vote_for", "must be at least a minute")
	}
	for key, n := range map[string]int{"per_minute": c.PerMinute, "per_hour": c.PerHour, "registrations_per_hour": c.RegistrationsPerHour} {
		if n < 0 {
			p.add("agentrelay."+key, "must not be negative")
		}
	}
}
