package rate_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/agentmesh/agentmesh/acl/rate"
)

func sources(addr string, more ...string) []rate.Source {
	list := rate.AddrSources(netip.MustParseAddr(addr))
	for _, key := range more {
		list = append(list, rate.Source{Key: key, Width: 1})
	}
	return list
}

// drain takes tokens until the sources must wait, and returns how many it took.
func drain(p *rate.Pool, s []rate.Source, id string, now time.Time) (n int) {
	for {
		if _, ok := p.Take(s, id, now); !ok {
			return n
		}
		n++
	}
}

// TestPool checks that one source gets four fifths of the pool, that the next tokens are for sources that drew little, and
// the last ones for those that drew nothing (AM-42, AM-97).
func TestPool(t *testing.T) {
	p := rate.NewPool(rate.PerHour(50), 50)
	for _, tt := range []struct {
		who     string
		sources []rate.Source
		id      string
		want    int
	}{
		{"one source", sources("192.0.2.1", "token:a"), "", 40},
		{"the same address without its credential", sources("192.0.2.1"), "", 0},
		{"the same credential from another address", sources("203.0.113.1", "token:a"), "", 0},
		{"another address of a /24 that drew 40 of its 20", sources("192.0.2.77"), "", 0},
		{"another address of a /16 that drew", sources("192.0.77.1", "token:b"), "", 10},
		{"an agent without a source", nil, "am_mail", 0},
		{"another agent without a source", nil, "am_other", 0},
		{"one more address of a /16 that drew", sources("192.0.78.1"), "", 0},
		{"a newcomer", sources("198.51.100.9"), "", 1},
		{"another address of its /24", sources("198.51.100.10"), "", 0},
		{"another address of its /16", sources("198.51.7.10"), "", 0},
		{"another newcomer with the first credential", sources("203.0.113.2", "token:a"), "", 0},
		{"another newcomer", sources("203.0.113.2"), "", 1},
		{"a newcomer with IPv6", sources("2001:db8::1"), "", 1},
		{"another address of its /32", sources("2001:db8:77::1"), "", 0},
	} {
		if n := drain(p, tt.sources, tt.id, start); n != tt.want {
			t.Errorf("%s drew %d, want %d", tt.who, n, tt.want)
		}
	}
	mail := rate.NewPool(rate.PerHour(50), 50)
	for i, want := range []int{40, 10, 0} {
		if n := drain(mail, nil, fmt.Sprint("am_mail", i), start); n != want {
			t.Errorf("agent %d without a source drew %d, want %d", i, n, want)
		}
	}
	// Three of the last places were taken, and these come back first.
	if wait, ok := p.Take(sources("198.51.100.9"), "", start); ok || wait != 4*72*time.Second {
		t.Errorf("Take of a source that drew once = %v, %v, want 4m48s, false", wait, ok)
	}
	if wait := p.Peek(sources("198.51.100.9"), "", start.Add(4*72*time.Second)); wait != 0 {
		t.Errorf("Peek after the wait = %v, want 0", wait)
	}
}

// TestSixteenNetworks checks that 16 networks that take whatever they get, for hours, never keep a newcomer out, in
// whatever order they come (AM-97, THREATS row 31).
func TestSixteenNetworks(t *testing.T) {
	network := func(i int) []rate.Source { return sources(fmt.Sprintf("203.%d.113.66", i), fmt.Sprintf("token:%d", i)) }
	for name, flood := range map[string]func(p *rate.Pool, now time.Time){
		"one after the other": func(p *rate.Pool, now time.Time) {
			for i := range 16 {
				drain(p, network(i), "", now)
			}
		},
		"in turn": func(p *rate.Pool, now time.Time) {
			for served := true; served; {
				served = false
				for i := range 16 {
					_, ok := p.Take(network(i), "", now)
					served = served || ok
				}
			}
		},
		"ten messages each": func(p *rate.Pool, now time.Time) {
			for i := range 160 {
				p.Take(network(i/10), "", now)
			}
		},
	} {
		p := rate.NewPool(rate.PerHour(50), 50)
		for i := range 8 * 60 {
			now := start.Add(time.Duration(i) * time.Minute)
			flood(p, now)
			if i%15 != 0 {
				continue
			}
			if wait, ok := p.Take(sources(fmt.Sprintf("198.%d.100.9", i/15)), "", now); !ok {
				t.Fatalf("%s: after %d minutes a newcomer waits %v", name, i, wait)
			}
		}
	}
}

// TestSmallPools checks that a pool of one token serves one stranger.
func TestSmallPools(t *testing.T) {
	for n := 1; n <= 8; n++ {
		p := rate.NewPool(rate.PerHour(n), n)
		if got := drain(p, sources("192.0.2.1"), "", start); got == 0 {
			t.Errorf("the first source drew nothing of %d", n)
		}
		if got := drain(p, sources("198.51.100.9"), "", start); n > 1 && got == 0 {
			t.Errorf("the second source drew nothing of %d", n)
		}
	}
}

// TestPoolUnderASlowFlood checks that a source that takes each token as soon as it comes back does not keep the pool
// closed (THREATS row 31).
func TestPoolUnderASlowFlood(t *testing.T) {
	p := rate.NewPool(rate.PerHour(50), 50)
	drain(p, sources("192.0.2.1"), "", start)
	for i := range 200 {
		now := start.Add(time.Duration(i) * 72 * time.Second)
		p.Take(sources("192.0.2.1", fmt.Sprintf("token:%d", i%6)), "", now)
		if i%10 != 9 {
			continue
		}
		newcomer := sources(fmt.Sprintf("198.51.%d.9", i))
		if wait, ok := p.Take(newcomer, "", now); !ok {
			t.Fatalf("newcomer after %d messages waits %v", i, wait)
		}
	}
}

// TestPoolSnapshot checks that a restart forgets neither the state of the pool nor which sources drew from it.
func TestPoolSnapshot(t *testing.T) {
	p := rate.NewPool(rate.PerHour(50), 50)
	drain(p, sources("192.0.2.1"), "", start)
	restored := rate.NewPool(rate.PerHour(50), 50)
	if err := restored.Restore(p.Snapshot(start), start); err != nil {
		t.Fatal(err)
	}
	if n := drain(restored, sources("192.0.2.1"), "", start); n != 0 {
		t.Errorf("after the restart the source that drew half drew %d, want 0", n)
	}
	if n := drain(restored, sources("198.51.100.9"), "", start); n != 10 {
		t.Errorf("after the restart a newcomer drew %d, want 10", n)
	}
	again := rate.NewPool(rate.PerHour(50), 50)
	if err := again.Restore(restored.Snapshot(start), start); err != nil {
		t.Fatal(err)
	}
	if n := drain(again, sources("198.51.77.9"), "", start); n != 0 {
		t.Errorf("after the restart a network that drew something drew %d of the last places, want 0", n)
	}
	for _, damaged := range []string{"{", `{"all":[]}`, `{"all":{},"shares":{"1":[]}}`} {
		if err := restored.Restore([]byte(damaged), start); err == nil {
			t.Errorf("Restore(%s) = nil, want an error", damaged)
		}
	}
}

// TestPoolIsFair checks that, whatever an attacker on one network with a few credentials does, a newcomer is served at
// any time, even after a step of the clock, and that the pool never gives more than it has.
func TestPoolIsFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(10, 100).Draw(t, "tokens")
		p := rate.NewPool(rate.PerHour(n), n)
		now, taken := start, 0
		for i := range rapid.IntRange(1, 300).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(2*time.Minute)).Draw(t, "pause")))
			addr := fmt.Sprintf("192.0.2.%d", rapid.IntRange(1, 60).Draw(t, "address"))
			credential := fmt.Sprintf("token:%d", rapid.IntRange(1, 6).Draw(t, "credential"))
			if _, ok := p.Take(sources(addr, credential), "", now); ok {
				taken++
			}
			if wait := p.Peek(sources("198.51.100.9"), "", now); wait != 0 {
				t.Fatalf("the newcomer waits %v after %d draws", wait, i)
			}
			if maxDraws := n + n*2/5 + int(now.Sub(start).Hours()*float64(n)+1e-6); taken > maxDraws {
				t.Fatalf("%d draws in %v, want at most %d", taken, now.Sub(start), maxDraws)
			}
		}
		step := time.Duration(rapid.SampledFrom([]int{-1, 1}).Draw(t, "direction")) * time.Hour
		if wait := p.Peek(sources("198.51.100.9"), "", now.Add(step)); wait != 0 {
			t.Fatalf("after a step of %v the newcomer waits %v", step, wait)
		}
	})
}
