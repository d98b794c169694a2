package credential_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// sharedLimits returns a limit of 20 registrations an hour in each of n processes, and a function that registers.
func sharedLimits(t *testing.T, n int) (register func(process int, addr netip.Addr) (time.Duration, error), closeStore func()) {
	t.Helper()
	db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{MinFree: -1})
	if err != nil {
		t.Fatal(err)
	}
	handles, limits := make([]store.Store, n), make([]*credential.SharedLimit, n)
	for i := range n {
		handles[i] = db.Handle(fmt.Sprint("process ", i))
		limits[i] = credential.NewSharedLimit(handles[i].Records(), "registered", 20)
	}
	register = func(process int, addr netip.Addr) (time.Duration, error) {
		now := time.Now()
		changes, wait, err := limits[process].Take(context.Background(), addr, now)
		if err != nil || wait > 0 {
			return wait, err
		}
		return 0, handles[process].Records().Apply(context.Background(), changes, now)
	}
	return register, func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestSharedLimit: two processes together permit the registrations of one token bucket for each address, and say
// exactly how long to wait for the next one.
func TestSharedLimit(t *testing.T) { // AM-58
	synctest.Test(t, func(t *testing.T) {
		register, closeStore := sharedLimits(t, 2)
		defer closeStore()
		for _, c := range []struct {
			name  string
			burst int
			addr  func(i int) netip.Addr
		}{
			{"IPv4", 20, func(int) netip.Addr { return netip.MustParseAddr("192.0.2.1") }},
			{"a neighbor", 20, func(int) netip.Addr { return netip.MustParseAddr("192.0.2.2") }},
			{"IPv6", 20, func(i int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", i+1)) }},
			{"IPv6 /56", 80, func(i int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("2001:db8:1:%x::1", i)) }},
			{"unknown clients", 200, func(int) netip.Addr { return rate.Unknown }},
		} {
			for i := range c.burst {
				if wait, err := register(i%2, c.addr(i)); wait > 0 || err != nil {
					t.Fatalf("%s: registration %d waits %v, %v", c.name, i, wait, err)
				}
			}
			wait, err := register(0, c.addr(c.burst))
			if wait <= 0 || wait > 3*time.Minute || err != nil {
				t.Errorf("%s: registration %d waits %v, %v; want at most three minutes", c.name, c.burst, wait, err)
			}
			time.Sleep(wait)
			if again, err := register(1, c.addr(c.burst)); again > 0 || err != nil {
				t.Errorf("%s: after the wait: %v, %v", c.name, again, err)
			}
			if again, _ := register(0, c.addr(c.burst+1)); again <= 0 {
				t.Errorf("%s: the wait admits more than one", c.name)
			}
		}
	})
}

// TestSharedLimitRace: processes that are asked at the same moment together permit no more than the burst.
func TestSharedLimitRace(t *testing.T) {
	t.Parallel()
	register, closeStore := sharedLimits(t, 3)
	defer closeStore()
	var accepted atomic.Int32
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			wait, err := register(i%3, netip.MustParseAddr("192.0.2.1"))
			switch {
			case err != nil && !errors.Is(err, store.ErrQuota):
				t.Error(err)
			case err == nil && wait == 0:
				accepted.Add(1)
			}
		})
	}
	all.Wait()
	if n := accepted.Load(); n != 20 {
		t.Errorf("%d registrations, want 20", n)
	}
}

// TestSharedLimitAfterFastClock: a registration that was stored while the clock ran a day fast does not lock its
// address out after the correction, and the limit still holds.
func TestSharedLimitAfterFastClock(t *testing.T) {
	db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{MinFree: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	limit := credential.NewSharedLimit(db.Records(), "registered", 20)
	addr, now := netip.MustParseAddr("192.0.2.1"), time.Now()
	for i, at := range append([]time.Time{now.Add(24 * time.Hour)}, slices.Repeat([]time.Time{now}, 19)...) {
		changes, wait, err := limit.Take(t.Context(), addr, at)
		if wait > 0 || err != nil {
			t.Fatalf("registration %d waits %v, %v", i, wait, err)
		}
		if err := db.Records().Apply(t.Context(), changes, at); err != nil {
			t.Fatal(err)
		}
	}
	changes, wait, err := limit.Take(t.Context(), addr, now)
	if err == nil && wait == 0 {
		err = db.Records().Apply(t.Context(), changes, now)
	}
	if wait == 0 && !errors.Is(err, store.ErrQuota) {
		t.Errorf("one registration too many: %v", err)
	}
}
