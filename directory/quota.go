package directory

import (
	"cmp"
	"context"
	"encoding/hex"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Defaults of AM-58.
const (
	defaultPerToken = 10
	defaultPerHost  = 10
	defaultPerHour  = 20
)

// withDefaults returns the quotas with defaults filled in. In the result 0 means no limit.
func (q Quotas) withDefaults(local bool) Quotas {
	if local {
		return Quotas{}
	}
	return Quotas{
		PerToken: max(0, cmp.Or(q.PerToken, defaultPerToken)),
		PerHost:  max(0, cmp.Or(q.PerHost, defaultPerHost)),
		PerHour:  max(0, cmp.Or(q.PerHour, defaultPerHour)),
	}
}

// tokenCount and hostCount return the keys under which the store counts the cards of a credential and of an endpoint
// host.
func tokenCount(owner [32]byte) string { return "token:" + hex.EncodeToString(owner[:]) }
func hostCount(host string) string     { return "host:" + host }

// quotas returns the quotas that a new card must meet.
func (r *Registry) quotas(owner [32]byte, c candidate) []store.Quota {
	if r.isOperator(owner) {
		return nil
	}
	list := []store.Quota{{Key: tokenCount(owner), Max: r.cfg.Quotas.PerToken}}
	if !c.mailbox { // all mailboxes have our own host (AM-66)
		list = append(list, store.Quota{Key: hostCount(c.host), Max: r.cfg.Quotas.PerHost})
	}
	return list
}

// charge takes the registration from the hourly allowance of the client's address, once for all attempts. It returns the
// changes that take it from the allowance that all processes share.
func (g *registration) charge(ctx context.Context) ([]store.Change, error) {
	if !g.s.Client.IsValid() || g.r.isOperator(g.owner) {
		return nil, nil
	}
	var wait time.Duration
	if !g.charged {
		wait, _ = g.r.hourly.Take(g.s.Client, g.now)
		g.charged = wait <= 0
	}
	var changes []store.Change
	var err error
	if wait <= 0 {
		changes, wait, err = g.r.together.Take(ctx, g.s.Client, g.now)
	}
	if wait > 0 {
		err = wire.ErrQuota.After(wait)
	}
	return changes, err
}

// refund gives back the charge of a registration that was refused in the end (AM-43).
func (g *registration) refund() {
	if g.charged {
		g.r.hourly.Return(g.s.Client, g.now)
	}
}

// sameCounts reports whether two cards count against the same quotas, in any order.
func sameCounts(a, b []string) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(key string) bool { return !slices.Contains(b, key) })
}
