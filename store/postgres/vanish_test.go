//go:build slow

package postgres

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
)

// TestVanishedHost checks that duties, hints, reads and sweeps go on soon after the host of the database vanished and
// another one took its place. The connections to the old host stay open, as after a loss of power.
func TestVanishedHost(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	proxy, through := newCutter(t, database)
	a := open(t, Config{URL: database, Name: "a", LeaseTTL: time.Minute})
	b := open(t, Config{URL: through, ListenURL: database, Name: "b", LeaseTTL: time.Minute})
	lease, err := a.Leases().Acquire(t.Context(), "duty")
	if err != nil {
		t.Fatal(err)
	}
	observed := store.Observe(b)
	first, heard := make(chan struct{}, 100), make(chan struct{}, 100)
	observed.OnCommit(func(changes []store.Change) {
		if changes[0].Record.Key == "first" {
			first <- struct{}{}
		} else {
			heard <- struct{}{}
		}
	}, "test")
	observed.OnLoss(func() { heard <- struct{}{} })
	session := store.NewSession(b.Leases(), slog.New(slog.NewTextHandler(t.Output(), nil)))
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	all.Go(func() { observed.Follow(ctx) })
	for following := false; !following; {
		if err := apply(ctx, a, store.Change{Record: store.Record{NS: "test", Key: "first"}, IfRev: store.Any}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-first:
			following = true
		case <-time.After(10 * time.Millisecond):
		}
	}
	began := make(chan struct{})
	all.Go(func() {
		session.Do(ctx, "duty", func(duty context.Context) { close(began); <-duty.Done() })
	})
	for !session.IsElsewhere("duty") {
		time.Sleep(10 * time.Millisecond)
	}
	useAll(t, b)

	proxy.vanish()
	for len(heard) > 0 { // hints that were lost before
		<-heard
	}
	limit := time.After(2 * answerFor)
	done := make(chan error, 20)
	for range cap(done) / 2 {
		go func() {
			_, err := b.Cards().List(ctx, store.CardQuery{Limit: 1, Now: now})
			done <- err
		}()
		go func() {
			_, err := b.Sweep(ctx, now, 10)
			done <- err
		}()
	}
	if err := errors.Join(a.Leases().Release(ctx, []store.Lease{lease}), apply(ctx, a, put("key"))); err != nil {
		t.Fatal(err)
	}
	for name, event := range map[string]chan struct{}{"the duty of A": began, "a change of A": heard} {
		select {
		case <-event:
		case <-limit:
			t.Fatalf("B did not notice %s", name)
		}
	}
	for range cap(done) {
		select {
		case err := <-done:
			if err != nil && !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("a call while the host vanished = %v", err)
			}
		case <-limit:
			t.Fatal("a call waits for a host that vanished")
		}
	}
	if _, err := b.Records().Get(ctx, "test", "key", now); err != nil {
		t.Errorf("Get after that = %v", err)
	}
}

// useAll makes the pool open all its connections.
func useAll(t *testing.T, s *Store) {
	t.Helper()
	for range s.pool.Config().MaxConns {
		conn, err := s.acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
	}
}

// TestVanishedHostIdle checks that a call tests an idle connection, and that all connections are given up if the host
// vanished.
func TestVanishedHostIdle(t *testing.T) {
	t.Parallel()
	proxy, through := newCutter(t, pgtest.Database(t))
	s := open(t, Config{URL: through})
	lease, err := s.Leases().Acquire(t.Context(), "duty")
	if err != nil {
		t.Fatal(err)
	}
	proxy.vanish()
	<-time.After(1100 * time.Millisecond) // the pool tests connections that were idle for a second
	if again, err := s.Leases().Acquire(t.Context(), "duty"); err != nil || again != lease {
		t.Errorf("Acquire = %v, %v; want the lease %v", again, err, lease)
	}
	begun := time.Now()
	if _, err := s.Records().Get(t.Context(), "test", "key", now); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("Get = %v", err)
	}
	if took := time.Since(begun); took > connectFor {
		t.Errorf("Get took %v: the other connections were not given up", took)
	}
}
