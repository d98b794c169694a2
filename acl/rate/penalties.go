package rate

import (
	"cmp"
	"net/netip"
	"sync/atomic"
	"time"
)

// loweredPerMinute is the number of requests per minute that all addresses of a network share after they made too many
// faults.
const loweredPerMinute = 60

// Penalties bar addresses that make too many faults (AM-43). The list is bounded; when it is full, the entry that would
// be forgotten first is dropped. An IPv6 /64 counts as one address. Wider networks (/24 of IPv4; /56 and /48 of IPv6)
// are not barred: if the addresses of such a network together make too many faults, those that are not barred share 60
// requests a minute. Penalties are safe for concurrent use. A nil *Penalties bars nobody.
type Penalties struct {
	faults   *BucketsBy[netip.Prefix]    // by address; each fault takes a token
	barred   *BucketsBy[netip.Prefix]    // an address with an empty bucket is barred; if nil, faults decides
	networks [2]*BucketsBy[netip.Prefix] // like faults, for the next two wider networks
	lowered  *BucketsBy[netip.Prefix]    // the requests that a network with too many faults may make
	refused  atomic.Uint64
}

// NewPenalties returns an empty list of at most maxKeys addresses. Faults are forgotten at an even pace, perMinute in a
// minute. An address with perMinute faults is barred for barFor or, if that is 0, until one of them is forgotten.
func NewPenalties(perMinute int, barFor time.Duration, maxKeys int) *Penalties {
	p := &Penalties{
		faults:  newBucketsBy[netip.Prefix](PerMinute(perMinute), perMinute, maxKeys),
		lowered: newBucketsBy[netip.Prefix](PerMinute(loweredPerMinute), loweredPerMinute, maxKeys),
	}
	if barFor > 0 {
		p.barred = newBucketsBy[netip.Prefix](Limit(1/barFor.Seconds()), 1, maxKeys)
	}
	factor := 1
	for i := range p.networks {
		factor *= wideFactor
		p.networks[i] = newBucketsBy[netip.Prefix](PerMinute(factor*perMinute), factor*perMinute, max(1, maxKeys/factor))
	}
	return p
}

// Fault counts a fault of the address. It ignores faults of [Unknown] and of the zero address.
func (p *Penalties) Fault(addr netip.Addr, now time.Time) {
	if p == nil || !isSource(addr) {
		return
	}
	keys := Networks(addr)
	p.faults.charge(keys[0], now)
	if p.faults.waitIfEmpty(keys[0], now) > 0 { // all tokens are used up
		p.barred.charge(keys[0], now)
	}
	for i, key := range wider(keys) {
		p.networks[i].charge(key, now)
	}
}

// Fail counts a fault of the address, unless it must still wait because of earlier faults: then Fail returns the wait.
func (p *Penalties) Fail(addr netip.Addr, now time.Time) time.Duration {
	wait := p.Admit(addr, now)
	if wait == 0 {
		p.Fault(addr, now)
	}
	return wait
}

// Admit returns how long the address must wait, or 0. If the addresses of its network have made too many faults, Admit
// also takes one of the requests that the network shares.
func (p *Penalties) Admit(addr netip.Addr, now time.Time) time.Duration {
	if p == nil || !isSource(addr) {
		return 0
	}
	wait := p.admit(Networks(addr), now)
	if wait > 0 {
		p.refused.Add(1)
	}
	return wait
}

// admit is [Penalties.Admit] for an address with these networks; see [Networks].
func (p *Penalties) admit(keys []netip.Prefix, now time.Time) time.Duration {
	list := cmp.Or(p.barred, p.faults)
	if wait := list.waitIfEmpty(keys[0], now); wait > 0 {
		return wait
	}
	for i, key := range wider(keys) {
		if isLowered := p.networks[i].waitIfEmpty(key, now) > 0; !isLowered || !p.lowered.hasRoom(key, now) {
			continue // a network for which the full list has no room is not limited
		}
		if wait, ok := p.lowered.Take(key, now); !ok {
			return wait
		}
	}
	return 0
}

// wider returns the keys of the networks to which penalties apply: one for IPv4, two for IPv6.
func wider(keys []netip.Prefix) []netip.Prefix { return keys[1 : len(keys)-1] }

// Refusals returns how often an address had to wait.
func (p *Penalties) Refusals() uint64 {
	if p == nil {
		return 0
	}
	return p.refused.Load()
}
