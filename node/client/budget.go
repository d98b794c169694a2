package client

import (
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/wire"
)

const defaultLookups = 60 // per minute (AM-43)

// Origin describes the origin of a message whose sender is not verified yet. The budget of look-ups depends on it.
type Origin struct {
	Sources []rate.Source // sources of the request; empty if unknown
	Known   bool          // the owner knows the agent that the message names as its sender
}

// newLookups returns the budget of look-ups that strangers may cause. Sources share it fairly, so that a source that
// invents senders does not delay the first messages from other sources.
func newLookups(perMinute int) *rate.Pool {
	if perMinute < 0 {
		return nil
	}
	if perMinute == 0 {
		perMinute = defaultLookups
	}
	return rate.NewPool(rate.PerMinute(perMinute), perMinute)
}

// payment pays for one look-up: once, before the look-up asks the first directory outside this process. A nil payment
// means that the look-up is free.
type payment struct {
	budget *rate.Pool
	origin Origin
	paid   bool
}

// payFor returns the payment for a look-up on behalf of origin, or nil if our owner asks. Look-ups of agents that the
// owner knows are free, because there is at most one per minute for each agent.
func (c *Cards) payFor(origin *Origin) *payment {
	if origin == nil || origin.Known {
		return nil
	}
	return &payment{budget: c.budget, origin: *origin}
}

// take pays for the look-up of id before directory d is asked. If the budget is used up, it returns an error that
// matches both errAbandoned and [wire.ErrRateLimited]. That error says nothing about the agent, and another caller that
// waits for the same look-up may still pay for it.
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
