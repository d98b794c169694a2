package client

import (
	"context"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	defaultLookups = 60 // a minute (AM-43)
	lookupShare    = 3  // one address gets at most one in so many
	maxPayers      = 1 << 16
)

// lookups is what strangers may make us look up: so many a minute in all, and of these a share for each address, so
// that one that makes up senders does not make the first messages of everybody else wait.
type lookups struct {
	all    *rate.Buckets // under one key
	shares *rate.Buckets // by payer
}

func newLookups(perMinute int) lookups {
	if perMinute < 0 {
		return lookups{}
	}
	if perMinute == 0 {
		perMinute = defaultLookups
	}
	share := max(1, perMinute/lookupShare)
	return lookups{
		all:    rate.NewBuckets(rate.PerMinute(perMinute), perMinute, 1),
		shares: rate.NewBuckets(rate.PerMinute(share), share, maxPayers),
	}
}

// take takes a look-up, or refuses it with [wire.ErrRateLimited].
func (l lookups) take(ctx context.Context, now time.Time) error {
	if payer, _ := ctx.Value(payerKey{}).(string); payer != "" {
		if wait, ok := l.shares.Take(payer, now); !ok {
			return wire.ErrRateLimited.After(wait)
		}
	}
	if wait, ok := l.all.Take("", now); !ok {
		return wire.ErrRateLimited.After(wait)
	}
	return nil
}

type payerKey struct{}

// PaidBy returns a context for what a stranger causes: its look-ups are charged to the share of payer, the key of its
// address. Without one, or where payer is empty, only the budget of all strangers counts.
func PaidBy(ctx context.Context, payer string) context.Context {
	return context.WithValue(ctx, payerKey{}, payer)
}
