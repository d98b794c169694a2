package rate_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
)

func faults(p *rate.Penalties, addr netip.Addr, n int, now time.Time) {
	for range n {
		p.Fault(addr, now)
	}
}

// TestPenalties checks that the tenth fault within a minute bars an address for ten minutes, and not its neighbor.
func TestPenalties(t *testing.T) {
	bad, good := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for _, tt := range []struct {
		name    string
		lasting time.Duration
		want    time.Duration
	}{
		{"for ten minutes", 10 * time.Minute, 10 * time.Minute},
		{"until a fault is forgotten", 0, 6 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := rate.NewPenalties(10, tt.lasting, 100)
			faults(p, bad, 9, start)
			if wait := p.Admit(bad, start); wait != 0 {
				t.Errorf("Admit after nine faults = %v, want 0", wait)
			}
			faults(p, bad, 1, start)
			if wait := p.Admit(bad, start); wait != tt.want {
				t.Errorf("Admit after ten faults = %v, want %v", wait, tt.want)
			}
			if wait := p.Admit(bad, start.Add(tt.want)); wait != 0 {
				t.Errorf("Admit after the penalty = %v, want 0", wait)
			}
			if wait := p.Admit(good, start); wait != 0 {
				t.Errorf("Admit of another address = %v, want 0", wait)
			}
			if n := p.Refusals(); n != 1 {
				t.Errorf("%d refusals counted, want 1", n)
			}
		})
	}
}

// TestFullPenaltyList checks that a list that is full of addresses of one /48 bars no address that made no fault, in
// that /48 or in another network, and still bars the address that was barred last (THREATS row 32).
func TestFullPenaltyList(t *testing.T) {
	const bound = 1 << 12
	p := rate.NewPenalties(10, 10*time.Minute, bound)
	for i := range bound + 100 {
		faults(p, v6("2001:db8:1", i), 10, start.Add(time.Duration(i)))
	}
	now := start.Add(time.Second)
	for _, addr := range []string{"2001:db8:1:ffff::1", "2001:db8:2::1", "198.51.100.7"} {
		if wait := p.Admit(netip.MustParseAddr(addr), now); wait != 0 {
			t.Errorf("Admit(%s) = %v, want 0", addr, wait)
		}
	}
	if wait := p.Admit(v6("2001:db8:1", bound+99), now); wait == 0 {
		t.Error("the address that was barred last is served")
	}
}

// TestPenaltyOfANetwork checks that a network whose addresses make many faults gets a lower allowance, and that other
// networks do not.
func TestPenaltyOfANetwork(t *testing.T) {
	p := rate.NewPenalties(10, 10*time.Minute, 1<<16)
	for i := range 200 {
		faults(p, v6("2001:db8:1", i), 9, start) // no address is barred
	}
	served := 0
	for i := range 200 {
		if p.Admit(v6("2001:db8:1", i), start) == 0 {
			served++
		}
		if wait := p.Admit(v6("2001:db8:2", i), start); wait != 0 {
			t.Fatalf("Admit of another network = %v, want 0", wait)
		}
	}
	if served != 60 {
		t.Errorf("a network with many faults was served %d times, want 60", served)
	}
}

// TestPenaltiesWithoutAnAddress checks that a client without an address, such as a client of a Unix socket, is never
// barred.
func TestPenaltiesWithoutAnAddress(t *testing.T) {
	p := rate.NewPenalties(10, 10*time.Minute, 100)
	faults(p, netip.Addr{}, 20, start)
	if wait := p.Admit(netip.Addr{}, start); wait != 0 {
		t.Errorf("Admit without an address = %v, want 0", wait)
	}
}

// TestPenaltiesAfterAClockStep checks that a clock that is set back by an hour lengthens no penalty.
func TestPenaltiesAfterAClockStep(t *testing.T) {
	bad := netip.MustParseAddr("192.0.2.1")
	p := rate.NewPenalties(10, 10*time.Minute, 100)
	faults(p, bad, 10, start.Add(time.Hour))
	if wait := p.Admit(bad, start); wait > 10*time.Minute {
		t.Errorf("Admit after the clock was set back = %v, want at most 10m0s", wait)
	}
}
