package rate_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
)

func TestRegistrations(t *testing.T) {
	now := time.Now()
	one, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1")
	take := func(r *rate.Registrations, from netip.Addr, want, wantEverybody bool) {
		t.Helper()
		if wait, everybody := r.Take(from, now); wait == 0 != want || everybody != wantEverybody {
			t.Errorf("Take(%s) = %v, %v, want taken %v, refused because of everybody %v", from, wait, everybody, want, wantEverybody)
		}
	}
	r := rate.NewRegistrations(2, rate.NewPool(rate.PerHour(10), 10))
	take(r, one, true, false)
	take(r, one, true, false)
	take(r, one, false, false)
	for i := range 6 { // with these, the network has drawn what is open to all
		take(r, netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + i)}), true, false)
	}
	another := netip.MustParseAddr("192.0.2.20")
	take(r, another, false, true)
	take(r, other, true, false)
	r.Return(one, now)
	r.Return(netip.MustParseAddr("192.0.2.10"), now)
	take(r, another, true, false)
	if r.Refusals() != 1 {
		t.Errorf("an address was refused %d times because of itself, want once", r.Refusals())
	}
	none := rate.NewRegistrations(0, rate.NewPool(rate.PerHour(1), 1))
	for range 5 {
		take(none, one, true, false)
	}
	none.Return(one, now)
	unbounded := rate.NewRegistrations(2, nil)
	take(unbounded, one, true, false)
	unbounded.Return(one, now)
}

// TestPenaltiesFail checks that Fail counts only wrong credentials, and makes an address wait only after too many.
func TestPenaltiesFail(t *testing.T) {
	p, now, addr := rate.NewPenalties(3, 0, 10), time.Now(), netip.MustParseAddr("192.0.2.1")
	for i := range 3 {
		if wait := p.Fail(addr, now); wait != 0 {
			t.Fatalf("fault %d: wait %v", i, wait)
		}
	}
	if p.Fail(addr, now) == 0 || p.Fail(addr, now.Add(time.Minute)) != 0 {
		t.Error("the fourth fault must wait, for less than a minute")
	}
}
