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

// TestPool checks that one source gets half of the pool, and leaves the rest to sources that drew little (AM-42).
func TestPool(t *testing.T) {
	p := rate.NewPool(rate.PerHour(50), 50)
	if n := drain(p, sources("192.0.2.1", "token:a"), "", start); n != 25 {
		t.Errorf("one source drew %d of 50, want 25", n)
	}
	if n := drain(p, sources("192.0.2.1"), "", start); n != 0 {
		t.Errorf("the same address without its credential drew %d, want 0", n)
	}
	if n := drain(p, sources("203.0.113.1", "token:a"), "", start); n != 0 {
		t.Errorf("the same credential from another address drew %d, want 0", n)
	}
	if n := drain(p, sources("192.0.2.77"), "", start); n != 0 {
		t.Errorf("another address of a /24 that drew 25 of its 20 drew %d, want 0", n)
	}
	if n := drain(p, nil, "am_mail", start); n != 10 {
		t.Errorf("an agent without a source drew %d, want its share, 10", n)
	}
	if n := drain(p, nil, "am_other", start); n != 3 {
		t.Errorf("agents without a source drew %d more, want 3: half of what was left is not theirs", n)
	}
	if n := drain(p, sources("198.51.100.9"), "", start); n != 10 {
		t.Errorf("a newcomer drew %d, want its share, 10", n)
	}
	if wait, ok := p.Take(sources("198.51.100.9"), "", start); ok || wait != 6*time.Minute {
		t.Errorf("Take of a source without a share = %v, %v, want 6m0s, false", wait, ok)
	}
	if wait := p.Peek(sources("198.51.100.9"), "", start.Add(6*time.Minute)); wait != 0 {
		t.Errorf("Peek after the wait = %v, want 0", wait)
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
			if maxDraws := n + int(now.Sub(start).Hours()*float64(n)+1e-6); taken > maxDraws {
				t.Fatalf("%d draws in %v, want at most %d", taken, now.Sub(start), maxDraws)
			}
		}
		step := time.Duration(rapid.SampledFrom([]int{-1, 1}).Draw(t, "direction")) * time.Hour
		if wait := p.Peek(sources("198.51.100.9"), "", now.Add(step)); wait != 0 {
			t.Fatalf("after a step of %v the newcomer waits %v", step, wait)
		}
	})
}
