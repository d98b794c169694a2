package rate

import (
	"net/netip"
	"sync"
	"time"
)

// Unknown stands for all clients behind a proxy that does not report their addresses (AM-43). Unknown may draw more
// tokens than a single address. It is never barred by [Penalties], and it is not a source of a [Pool].
var Unknown = netip.IPv6Unspecified()

// isSource reports whether an address identifies a client. [Unknown] and the zero address do not.
func isSource(addr netip.Addr) bool { return addr.IsValid() && addr != Unknown }

// unknownFactor is the number of tokens that all unknown clients together may draw, as a multiple of those of one
// address.
const unknownFactor = 10

// Share is a bucket from which a client draws. A draw takes a token from each of the client's buckets, or none.
type Share struct {
	Key    string
	Factor int // size of the bucket, as a multiple of the tokens of one client
}

// Shares returns the buckets from which the client with this address draws: its own and, for IPv6, that of its /56.
func Shares(addr netip.Addr) []Share {
	networks := Networks(addr)
	switch {
	case addr == Unknown:
		return []Share{{"unknown", unknownFactor}}
	case addr.Unmap().Is6():
		return []Share{{textOf(networks[0]), 1}, {textOf(networks[1]), wideFactor}}
	}
	return []Share{{textOf(networks[0]), 1}}
}

// AddrKey returns the key of an address. All addresses that one subscriber can use share a key: the /64 of an IPv6
// address. An IPv4 address that is mapped to IPv6 has the key of the IPv4 address.
func AddrKey(addr netip.Addr) string { return textOf(Networks(addr)[0]) }

// textOf returns the text form of a network, which is part of stored keys: an IPv4 address without "/32", and "" for
// the zero network.
func textOf(network netip.Prefix) string {
	switch {
	case !network.IsValid():
		return ""
	case network.IsSingleIP():
		return network.Addr().String()
	}
	return network.String()
}

// Networks returns the networks around an address, narrowest first: for IPv4 the address itself, its /24 and its /16;
// for IPv6 its /64, which one subscriber has, its /56, /48 and /32. For the zero address it returns a zero network.
func Networks(addr netip.Addr) []netip.Prefix {
	addr = addr.Unmap().WithZone("")
	bits := []int{64, 56, 48, 32}
	if addr.Is4() {
		bits = []int{32, 24, 16}
	} else if !addr.IsValid() {
		bits = []int{0}
	}
	networks := make([]netip.Prefix, len(bits))
	for i, n := range bits {
		networks[i], _ = addr.Prefix(n) // fails only for the zero address
	}
	return networks
}

const (
	levels     = 4 // widths of networks, including the address itself
	wideFactor = 4 // tokens that a network may draw, as a multiple of the tokens of the next narrower level
)

// Allowance gives every address its own token bucket (AM-43). The addresses of an IPv6 /64 count as one address, and
// all addresses of a /56 together draw at most four times as much as one address. The number of buckets is bounded. At
// the bound, an address without a bucket draws from the bucket of its network, so that one network cannot shut out
// others. An Allowance is safe for concurrent use. A nil *Allowance is a limit that is switched off.
type Allowance struct {
	mu      sync.Mutex // makes one draw from several buckets atomic
	levels  [levels]*BucketsBy[netip.Prefix]
	rest    *BucketsBy[netip.Prefix] // for addresses without room at any level
	unknown *BucketsBy[netip.Prefix]
}

// NewAllowance returns an allowance in which the bucket of an address holds burst tokens and refills at the given
// limit. It has at most maxKeys buckets for addresses, and fewer, larger ones for networks.
func NewAllowance(limit Limit, burst, maxKeys int) *Allowance {
	a := &Allowance{unknown: newBucketsBy[netip.Prefix](limit*unknownFactor, burst*unknownFactor, 1)}
	factor := 1
	for i := range a.levels {
		a.levels[i] = newBucketsBy[netip.Prefix](limit*Limit(factor), burst*factor, max(1, maxKeys/factor))
		factor *= wideFactor
	}
	a.rest = newBucketsBy[netip.Prefix](limit*Limit(factor), burst*factor, 1)
	return a
}

// Take takes a token of the address, or returns how long to wait for one.
func (a *Allowance) Take(addr netip.Addr, now time.Time) (wait time.Duration, ok bool) {
	if a == nil {
		return 0, true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	payers := a.payers(addr, now)
	for _, p := range payers {
		wait = max(wait, p.buckets.Peek(p.key, now))
	}
	if wait > 0 {
		return wait, false
	}
	for _, p := range payers {
		p.buckets.Take(p.key, now)
	}
	return 0, true
}

// Return gives back a token that the address took for a request that was then refused.
func (a *Allowance) Return(addr netip.Addr, now time.Time) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.payers(addr, now) {
		p.buckets.Return(p.key, now)
	}
}

// payer is a bucket from which a request takes a token.
type payer struct {
	buckets *BucketsBy[netip.Prefix]
	key     netip.Prefix
}

// payers returns the buckets that pay for the address: its own and, for IPv6, that of the narrowest network with room,
// usually its /56. If the address itself gets no bucket, that network pays alone.
func (a *Allowance) payers(addr netip.Addr, now time.Time) []payer {
	if addr == Unknown {
		return []payer{{a.unknown, netip.Prefix{}}}
	}
	keys := Networks(addr)
	maxPayers := 1
	if addr.Unmap().Is6() && a.levels[0].hasRoom(keys[0], now) {
		maxPayers = 2
	}
	var payers []payer
	for i, key := range keys {
		if len(payers) < maxPayers && a.levels[i].hasRoom(key, now) {
			payers = append(payers, payer{a.levels[i], key})
		}
	}
	if len(payers) == 0 {
		payers = append(payers, payer{a.rest, netip.Prefix{}})
	}
	return payers
}

// Refusals returns how many requests the bucket of an address refused.
func (a *Allowance) Refusals() uint64 {
	if a == nil {
		return 0
	}
	return a.levels[0].Refusals() + a.unknown.Refusals()
}

// NetworkRefusals returns how many requests the bucket of a network refused.
func (a *Allowance) NetworkRefusals() uint64 {
	if a == nil {
		return 0
	}
	n := a.rest.Refusals()
	for _, b := range a.levels[1:] {
		n += b.Refusals()
	}
	return n
}
