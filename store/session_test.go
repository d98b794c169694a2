package store_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/local"
)

// cutOff are leases that cannot be renewed.
type cutOff struct{ *local.Handle }

func (cutOff) Renew(context.Context, []store.Lease) ([]store.Lease, error) {
	return nil, store.ErrUnavailable
}

func newLeases(ttl time.Duration) *local.Leases {
	return &local.Leases{
		TTL: ttl, Floor: func(context.Context) (uint64, error) { return 0, nil },
		Barrier: func(_ context.Context, fn func() error) error { return fn() },
	}
}

// TestClaim: a claim keeps the lease for a duty that begins later than the lease would end.
func TestClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leases := newLeases(3 * time.Second)
		here, there := store.NewSession(leases.Handle("a"), slog.New(slog.DiscardHandler)), store.NewSession(leases.Handle("b"), slog.New(slog.DiscardHandler))
		claimed, end, err := here.Claim(t.Context(), "node")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if _, _, err := there.Claim(t.Context(), "node"); !errors.Is(err, store.ErrLeaseTaken) || !there.IsElsewhere("node") {
			t.Errorf("Claim by another process = %v, want ErrLeaseTaken", err)
		}
		here.Do(t.Context(), "node", func(duty context.Context) {
			if *store.LeaseOf(duty) != *store.LeaseOf(claimed) {
				t.Error("the duty has another lease than the claim")
			}
			end()
			time.Sleep(10 * time.Second)
			if duty.Err() != nil || claimed.Err() == nil {
				t.Errorf("after the end of the claim: duty %v, claim %v", duty.Err(), claimed.Err())
			}
		})
		if _, end, err = there.Claim(t.Context(), "node"); err != nil {
			t.Errorf("Claim of a lease that was released = %v", err)
		}
		end()
	})
}

// TestClaimSoon: a process gets a lease shortly after another one released it, and gives up when its patience or its
// context ends.
func TestClaimSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leases := newLeases(3 * time.Second)
		here, there := store.NewSession(leases.Handle("a"), slog.New(slog.DiscardHandler)), store.NewSession(leases.Handle("b"), slog.New(slog.DiscardHandler))
		_, end, err := here.Claim(t.Context(), "node")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		for _, c := range []struct {
			ctx            context.Context
			patience, most time.Duration
		}{{t.Context(), 0, 100 * time.Millisecond}, {t.Context(), time.Second, 1200 * time.Millisecond}, {ctx, time.Hour, 300 * time.Millisecond}} {
			began := time.Now()
			_, _, err := there.ClaimSoon(c.ctx, "node", c.patience)
			if took := time.Since(began); !errors.Is(err, store.ErrLeaseTaken) || took > c.most {
				t.Errorf("with patience %v: %v after %v", c.patience, err, took)
			}
		}
		time.AfterFunc(time.Second, end)
		began := time.Now()
		_, endThere, err := there.ClaimSoon(t.Context(), "node", 3*time.Second)
		if took := time.Since(began); err != nil || took < time.Second || took > 1200*time.Millisecond {
			t.Fatalf("after the release: %v after %v", err, took)
		}
		endThere()
	})
}

// TestClaimLost: the context of a claim ends when the lease is lost.
func TestClaimLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leases := newLeases(3 * time.Second)
		claimed, end, err := store.NewSession(cutOff{leases.Handle("a")}, slog.New(slog.DiscardHandler)).Claim(t.Context(), "node")
		if err != nil {
			t.Fatal(err)
		}
		defer end()
		select {
		case <-claimed.Done():
		case <-time.After(5 * time.Second):
		}
		if !errors.Is(context.Cause(claimed), store.ErrLeaseLost) {
			t.Errorf("cause = %v, want ErrLeaseLost", context.Cause(claimed))
		}
	})
}

// TestClaimOutlivesContext: a process that stops ends its other work under the lease first, and what uses the claim can
// still store until end is called.
func TestClaimOutlivesContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leases := newLeases(3 * time.Second)
		session := store.NewSession(leases.Handle("a"), slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		claimed, end, err := session.Claim(ctx, "node")
		if err != nil {
			t.Fatal(err)
		}
		stop()
		session.Do(t.Context(), "node", func(context.Context) {})
		synctest.Wait()
		if err := errors.Join(claimed.Err(), leases.Check(store.LeaseOf(claimed), time.Now())); err != nil {
			t.Errorf("before end: %v", err)
		}
		end()
		if err := leases.Check(store.LeaseOf(claimed), time.Now()); claimed.Err() == nil || !errors.Is(err, store.ErrLeaseLost) {
			t.Errorf("after end: %v, %v", claimed.Err(), err)
		}
	})
}
