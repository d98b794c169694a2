// Package quota bounds what the peers of a MoltSpeak agent may use: messages and look-ups of keys. Strangers have
// quotas of their own, which are divided fairly among their network addresses and networks.
package quota

import (
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
)

const (
	perAgent   = 100    // messages per minute (MS-48); the burst is twice as many
	perOrg     = 1000   // for all agents of an organization, and for all strangers together
	maxTracked = 10_000 // senders or organizations in one table
	lookupRate = 60     // per minute
)

// Known is the message quota of peers that the owner knows: per agent and per organization (MS-48).
type Known struct{ agents, orgs *rate.Buckets }

// NewKnown returns full buckets.
func NewKnown() Known {
	return Known{newBuckets(perAgent), newBuckets(perOrg)}
}

func newBuckets(perMinute int) *rate.Buckets {
	return rate.NewBuckets(rate.PerMinute(perMinute), 2*perMinute, maxTracked)
}

// Take charges a message to its sender and the sender's organization.
func (k Known) Take(name, org string, now time.Time) (wait time.Duration, ok bool) {
	if wait, ok = k.agents.Take(name, now); !ok {
		return wait, false
	}
	if wait, ok = k.orgs.Take(org, now); !ok {
		k.agents.Return(name, now)
	}
	return wait, ok
}

// Strangers is the message quota of strangers: per stranger as for a known peer, and for all together as for one
// organization. The organization that a stranger claims does not count, because otherwise an attacker could use up the
// quota of that organization.
type Strangers struct {
	each *rate.Buckets
	all  *rate.Pool
}

// NewStrangers returns full buckets.
func NewStrangers() Strangers {
	return Strangers{newBuckets(perAgent), rate.NewPool(rate.PerMinute(perOrg), 2*perOrg)}
}

// Take charges a message to its source and its sender. The source comes first, so that invented names fill no table.
func (s Strangers) Take(name string, sources []rate.Source, now time.Time) (wait time.Duration, ok bool) {
	if wait, ok = s.all.Take(sources, name, now); !ok {
		return wait, false
	}
	if wait, ok = s.each.Take(name, now); !ok {
		s.all.Return(sources, name, now)
	}
	return wait, ok
}

// Lookups is the quota of key look-ups in registries and directories that messages may cause. It has a pool for signed
// messages of known senders, one for signed messages of other senders, and one for messages whose signature is not
// verified yet.
type Lookups struct{ known, signed, unsigned *rate.Pool }

// NewLookups returns full pools.
func NewLookups() Lookups {
	pool := func() *rate.Pool { return rate.NewPool(rate.PerMinute(lookupRate), lookupRate) }
	return Lookups{pool(), pool(), pool()}
}

// PoolFor returns the pool for a message.
func (l Lookups) PoolFor(signed, known bool) *rate.Pool {
	switch {
	case !signed:
		return l.unsigned
	case known:
		return l.known
	}
	return l.signed
}
