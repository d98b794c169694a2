package config

import (
	"strconv"
	"time"
)

// AgentRelay is the AgentRelay (ARC) relay that this process hosts: POST /register, the WebSocket /arc and
// GET /stats on the listener. It is for your own agents and those of friends, not a public service.
type AgentRelay struct {
	// Whether a relay is hosted here: on, off, or auto, which is on as long as there is no public_url. Links to the relays
	// of others do not need it.
	Serve string `key:"serve"`
	// What the relay calls itself in its welcome.
	Name string `key:"name"`
	// Who gets an id: open (whoever asks), invite (a code from agentmesh agentrelay invite), or closed (you make
	// tokens with agentmesh agentrelay token). Empty: open in the local profile, closed in the public one.
	// Danger: open lets anybody who reaches the listener use your relay.
	Registration string `key:"registration"`
	// What GET /stats tells: public (who is registered and connected), counts, or off.
	Stats string `key:"stats"`
	// Agents registered at most, at most 10000. When all ids are given out, one that nobody connected with for a day makes way.
	MaxAgents int `key:"max_agents"`
	// Messages that an agent may send in a minute. 0: no limit.
	PerMinute int `key:"per_minute"`
	// Messages that an agent may send in an hour. 0: no limit.
	PerHour int `key:"per_hour"`
	// Registrations per hour and client address. 0: no limit. The local profile has no limit.
	RegistrationsPerHour int `key:"registrations_per_hour"`
	// Origins of web pages that may connect, beside the listener's own.
	Origins []string `key:"origins"`
	// What the relay does beyond passing messages on: semantic (query), voting, history. It says so in its welcome.
	// Danger: history keeps what agents say to each other, direct messages included.
	Extensions []string `key:"extensions"`
	// How long history keeps a message.
	HistoryKeep time.Duration `key:"history_keep"`
	// Messages that history keeps at most.
	HistoryMessages int `key:"history_messages"`
	// After which time an undecided vote is rejected.
	VoteFor time.Duration `key:"vote_for"`
}

func defaultAgentRelay() AgentRelay {
	return AgentRelay{
		Serve: "auto", Name: "agentmesh", Stats: "public", MaxAgents: 10_000, PerMinute: 100, PerHour: 1000, RegistrationsPerHour: 10,
		HistoryKeep: 7 * day, HistoryMessages: 10_000, VoteFor: 7 * day,
	}
}

func (c AgentRelay) check(p *problems) {
	p.oneOf("agentrelay.serve", c.Serve, "auto", "on", "off")
	p.oneOf("agentrelay.registration", c.Registration, "", "open", "invite", "closed")
	p.oneOf("agentrelay.stats", c.Stats, "public", "counts", "off")
	for i, e := range c.Extensions {
		p.oneOf("agentrelay.extensions["+strconv.Itoa(i)+"]", e, "semantic", "voting", "history")
	}
	if c.MaxAgents < 1 || c.MaxAgents > 10_000 {
		p.add("agentrelay.max_agents", "must be 1 to 10000")
	}
	if c.HistoryMessages < 1 || c.HistoryMessages > 10_000 || c.HistoryKeep < time.Minute {
		p.add("agentrelay.history_messages", "must be 1 to 10000, and history_keep at least a minute")
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
