// Package quota holds what the peers of a MoltSpeak agent may use up: messages, look-ups of keys, registrations. What
// strangers use up is never missing for peers that the owner knows, and strangers share it fairly by source.
package quota

import (
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
)

const (
	perAgent   = 100  // messages a minute (MS-48); twice as many at once
	perOrg     = 1000 // of all agents of an organization, and of all strangers together
	tracked    = 10_000
	lookupRate = 60 // a minute
)

// Known is what peers that the owner knows may send: each, and all of one organization (MS-48).
type Known struct{ agents, orgs *rate.Buckets }

// NewKnown returns full budgets.
func NewKnown() Known {
	return Known{newBuckets(perAgent), newBuckets(perOrg)}
}

func newBuckets(perMinute int) *rate.Buckets {
	return rate.NewBuckets(rate.PerMinute(perMinute), 2*perMinute, tracked)
}

// Take charges a message to its sender and the sender's organization.
func (k Known) Take(name, org string, now time.Time) (wait time.Duration, ok bool) {
	if wait, ok = k.agents.Take(name, now); !ok {
		return wait, false
	}
	return k.orgs.Take(org, now)
}

// Strangers is what strangers may send: each as much as a known peer, and all together what one organization may. The
// organization that a stranger names counts for nothing, or one attacker would use up that of others.
type Strangers struct {
	each *rate.Buckets
	all  *rate.Pool
}

// NewStrangers returns full budgets.
func NewStrangers() Strangers {
	return Strangers{newBuckets(perAgent), rate.NewPool(rate.PerMinute(perOrg), 2*perOrg)}
}

// Take charges a message to its source and its sender. The source comes first, so that made-up names fill no table.
func (s Strangers) Take(name string, sources []rate.Source, now time.Time) (wait time.Duration, ok bool) {
	if wait, ok = s.all.Take(sources, name, now); !ok {
		return wait, false
	}
	if wait, ok = s.each.Take(name, now); !ok {
		s.all.Return(sources, name, now)
	}
	return wait, ok
}

// Lookups are the questions about keys to registries and directories that messages may cause. Messages of senders that
// the owner knows, and messages whose signature verified, have some of their own.
type Lookups struct{ known, signed, unsigned *rate.Pool }

// NewLookups returns full pools.
func NewLookups() Lookups {
	pool := func() *rate.Pool { return rate.NewPool(rate.PerMinute(lookupRate), lookupRate) }
	return Lookups{pool(), pool(), pool()}
}

// Of returns the pool for a message.
func (l Lookups) Of(signed, known bool) *rate.Pool {
	switch {
	case !signed:
		return l.unsigned
	case known:
		return l.known
	}
	return l.signed
}

// NewRegistrations lets an address register perHour agents in a registry. A tenth of its places is there at once, and all of
// them within the time for which a place is kept.
func NewRegistrations(perHour, places int, kept time.Duration) *rate.Registrations {
	return rate.NewRegistrations(perHour, rate.NewPool(rate.Limit(float64(places)/kept.Seconds()), places/10))
}
