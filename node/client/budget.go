package client

import (
	"cmp"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/wire"
)

const defaultLookups = 60 // per minute (AM-43)

// Origin describes where an unverified message came from. The look-up of its sender is charged to Sources.
type Origin struct {
	Sources []rate.Source // the address and networks of the request; empty if unknown
	Known   bool          // the owner knows the agent that the message names as its sender
	Mailed  time.Time     // when a mailbox received the message; zero if it came directly
}

// newLookupBudget returns the budget of look-ups that strangers may cause. Sources share it fairly, so that a source
// that invents senders does not delay first messages from other sources.
func newLookupBudget(perMinute int) *rate.Pool {
	if perMinute < 0 {
		return nil
	}
	perMinute = cmp.Or(perMinute, defaultLookups)
	return rate.NewPool(rate.PerMinute(perMinute), perMinute)
}

// payment pays for one look-up, before the first request to a directory outside this process. A nil payment means
// that the look-up is free.
type payment struct {
	budget *rate.Pool
	origin Origin
	paid   bool
}

// payFor returns the payment for a look-up that a message from origin causes, or nil if the look-up is free. It is
// free if origin is nil (our owner writes to the agent, or the agent answered our message), or if our owner knows the
// agent, which is then looked up at most once a minute.
func (c *Cards) payFor(origin *Origin) *payment {
	if origin == nil || origin.Known {
		return nil
	}
	return &payment{budget: c.budget, origin: *origin}
}

// take pays for the look-up of id before directory d is asked. If the budget is used up, it returns an error that
// matches both errAbandoned and [wire.ErrRateLimited]: other callers that wait for the look-up then try to pay for it.
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
