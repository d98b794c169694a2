package client

import (
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/wire"
)

const defaultLookups = 60 // a minute (AM-43)

// Origin is where a message came from, for the budget of look-ups: its sender is not proven yet.
type Origin struct {
	Sources []rate.Source // of the request; empty if nothing tells
	Known   bool          // the owner knows the agent that the message names as its sender
}

// newLookups returns what strangers may make us look up. Sources share it fairly, so that one that makes up senders does
// not make the first messages of everybody else wait.
func newLookups(perMinute int) *rate.Pool {
	if perMinute < 0 {
		return nil
	}
	if perMinute == 0 {
		perMinute = defaultLookups
	}
	return rate.NewPool(rate.PerMinute(perMinute), perMinute)
}

// payment pays for one look-up, once, when the first directory outside this process is asked. A nil payment is free.
type payment struct {
	budget *rate.Pool
	origin Origin
	paid   bool
}

// payFor returns the payment for a look-up on behalf of origin, nil for nobody but our owner. Agents that the owner knows
// are free: there is no more than one look-up a minute for each.
func (c *Cards) payFor(origin *Origin) *payment {
	if origin == nil || origin.Known {
		return nil
	}
	return &payment{budget: c.budget, origin: *origin}
}

// take pays for the look-up of id before directory d is asked, or refuses it with an error that is both errAbandoned and [wire.ErrRateLimited]: the
// refusal says nothing about the agent, and others who wait for the same look-up may pay for it.
func (p *payment) take(d *Directory, id wire.AgentID, now time.Time) error {
	if p == nil || p.paid || d.inside {
		return nil
	}
	wait, ok := p.budget.Take(p.origin.Sources, string(id), now)
	if !ok {
		return abandon(wire.ErrRateLimited.After(wait))
	}
	p.paid = true
	return nil
}
