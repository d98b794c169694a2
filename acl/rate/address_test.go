package rate_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
)

// v6 returns an address in subnet n, which is a /64, of a /48.
func v6(network string, n int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("%s:%x::1", network, n))
}

// TestAddrKey checks that the addresses of one subscriber share a key (THREATS rows 24, 25).
func TestAddrKey(t *testing.T) {
	for _, tt := range []struct{ a, b string }{
		{"2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff"},
		{"192.0.2.7", "::ffff:192.0.2.7"},
		{"fe80::1%eth0", "fe80::2%eth1"},
	} {
		a, b := rate.AddrKey(netip.MustParseAddr(tt.a)), rate.AddrKey(netip.MustParseAddr(tt.b))
		if a != b {
			t.Errorf("AddrKey(%s) = %s, AddrKey(%s) = %s, want the same", tt.a, a, tt.b, b)
		}
	}
	for _, tt := range []struct{ a, b string }{
		{"2001:db8:1:2::1", "2001:db8:1:3::1"},
		{"192.0.2.7", "192.0.2.8"},
	} {
		a, b := rate.AddrKey(netip.MustParseAddr(tt.a)), rate.AddrKey(netip.MustParseAddr(tt.b))
		if a == b {
			t.Errorf("AddrKey(%s) = AddrKey(%s) = %s, want two keys", tt.a, tt.b, a)
		}
	}
}

// TestAllowanceAtItsBound checks that addresses of one network that take up all buckets shut out neither an address of
// another network nor one of their own network, and that an address that was refused stays refused (THREATS row 32).
func TestAllowanceAtItsBound(t *testing.T) {
	const bound = 1 << 12
	a := rate.NewAllowance(rate.PerHour(20), 20, bound)
	spent := netip.MustParseAddr("192.0.2.1")
	for range 20 {
		a.Take(spent, start)
	}
	for i := range bound {
		a.Take(v6("2001:db8:1", i), start)
	}
	for _, addr := range []string{"198.51.100.7", "203.0.113.9", "2001:db9::1", "2001:db8:2::1", "2001:db8:1:ffff::1"} {
		if wait, ok := a.Take(netip.MustParseAddr(addr), start); !ok {
			t.Errorf("Take(%s) = %v, false, want ok", addr, wait)
		}
	}
	if _, ok := a.Take(spent, start); ok {
		t.Error("an address without tokens was served")
	}
}

// TestAllowanceIsBounded checks that memory stays bounded, however many networks come, and that the common bucket is
// the last resort.
func TestAllowanceIsBounded(t *testing.T) {
	const bound = 1 << 12
	a := rate.NewAllowance(rate.PerHour(20), 20, bound)
	before := heapBytes()
	for i := range 100_000 {
		a.Take(netip.AddrFrom4([4]byte{byte(i >> 16), byte(i >> 8), byte(i), 1}), start)
		a.Take(netip.AddrFrom16([16]byte{0x20, byte(i >> 16), byte(i >> 8), byte(i)}), start)
	}
	if grown := heapBytes() - before; grown > 3*400*bound {
		t.Errorf("200,000 networks took %d bytes, want at most %d", grown, 3*400*bound)
	}
	runtime.KeepAlive(a)
}

// TestAllowanceOfA56 checks that the subnets of a /56 together draw four times what one subnet may draw (THREATS row
// 25).
func TestAllowanceOfA56(t *testing.T) {
	a := rate.NewAllowance(rate.PerMinute(10), 10, 1000)
	served := 0
	for i := range 256 {
		if _, ok := a.Take(v6("2001:db8:1", i), start); ok {
			served++
		}
	}
	if served != 40 {
		t.Errorf("256 subnets of a /56 were served %d times, want 40", served)
	}
}

// TestAllowanceReturn checks that a token that an address gives back can be taken again, but no more than that, even if
// its network paid.
func TestAllowanceReturn(t *testing.T) {
	a := rate.NewAllowance(rate.PerHour(2), 2, 1)
	for _, addr := range []netip.Addr{v6("2001:db8:1", 1), v6("2001:db8:2", 1), rate.Unknown} {
		served := 0
		for range 100 {
			if _, ok := a.Take(addr, start); !ok {
				break
			}
			served++
		}
		a.Return(addr, start)
		if _, ok := a.Take(addr, start); !ok || served == 100 {
			t.Errorf("%s was served %d times, and then again: %t, want true", addr, served, ok)
		}
		if _, ok := a.Take(addr, start); ok {
			t.Errorf("%s got back more than it returned", addr)
		}
	}
	other := netip.MustParseAddr("192.0.2.1")
	a.Return(other, start) // this address took nothing
}

// TestUnknownClients checks that clients without a known address share ten times what one address has, and are never
// barred.
func TestUnknownClients(t *testing.T) {
	a, p := rate.NewAllowance(rate.PerMinute(10), 10, 10), rate.NewPenalties(10, time.Minute, 10)
	served := 0
	for range 1000 {
		if _, ok := a.Take(rate.Unknown, start); !ok {
			break
		}
		p.Fault(rate.Unknown, start)
		served++
	}
	if served != 100 {
		t.Errorf("unknown clients were served %d times, want 100", served)
	}
	if wait := p.Admit(rate.Unknown, start); wait != 0 {
		t.Errorf("Admit of unknown clients = %v, want 0", wait)
	}
	if got := rate.AddrSources(rate.Unknown); got != nil {
		t.Errorf("AddrSources of an unknown client = %v, want none", got)
	}
}

// TestNilLimits checks that a limit that is switched off never refuses.
func TestNilLimits(t *testing.T) {
	var (
		a    *rate.Allowance
		p    *rate.Penalties
		pool *rate.Pool
		addr = netip.MustParseAddr("192.0.2.1")
	)
	p.Fault(addr, start)
	_, drawn := pool.Take(nil, "x", start)
	if _, ok := a.Take(addr, start); !ok || p.Admit(addr, start) != 0 || !drawn {
		t.Error("a limit that is switched off refused")
	}
	a.Return(addr, start)
	if a.Refusals()+a.NetworkRefusals()+p.Refusals()+pool.Refusals() != 0 {
		t.Error("a limit that is switched off counted a refusal")
	}
	if err := pool.Restore(pool.Snapshot(start), start); err != nil {
		t.Errorf("Restore of a nil *Pool: %v", err)
	}
}
