package directory

import (
	"cmp"
	"encoding/hex"
	"net/netip"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Defaults of AM-58.
const (
	defaultPerToken = 10
	defaultPerHost  = 10
	defaultPerHour  = 20
)

// settled returns the quotas with defaults filled in; 0 then means no limit.
func (q Quotas) settled(local bool) Quotas {
	if local {
		return Quotas{}
	}
	return Quotas{
		PerToken: max(0, cmp.Or(q.PerToken, defaultPerToken)),
		PerHost:  max(0, cmp.Or(q.PerHost, defaultPerHost)),
		PerHour:  max(0, cmp.Or(q.PerHour, defaultPerHour)),
	}
}

func tokenCount(owner [32]byte) string { return "token:" + hex.EncodeToString(owner[:]) }
func hostCount(host string) string     { return "host:" + host }

// quotas returns what bounds a new card.
func (r *Registry) quotas(owner [32]byte, c candidate) []store.Quota {
	if r.operator(owner) {
		return nil
	}
	list := []store.Quota{{Key: tokenCount(owner), Max: r.cfg.Quotas.PerToken}}
	if !c.mailbox { // all mailboxes have our own host (AM-66)
		list = append(list, store.Quota{Key: hostCount(c.host), Max: r.cfg.Quotas.PerHost})
	}
	return list
}

// charge takes one registration from the allowance of the client's address.
func (r *Registry) charge(client netip.Addr, owner [32]byte, now time.Time) error {
	if !client.IsValid() || r.operator(owner) {
		return nil
	}
	if wait, ok := r.hourly.Take(rate.AddrKey(client), now); !ok {
		return wire.ErrQuota.After(wait)
	}
	return nil
}

// sameCounts says whether two cards count against the same keys, in whatever order the store keeps them.
func sameCounts(a, b []string) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(key string) bool { return !slices.Contains(b, key) })
}
