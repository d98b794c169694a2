package store_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// TestObserved checks that each committed unit is reported once, with the bodies of its records, whichever method
// committed it. A unit that was refused, or was applied before, is not reported.
func TestObserved(t *testing.T) {
	db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{MinFree: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	s := store.Observe(db)
	if store.Observe(s) != s {
		t.Error("a store that reports its commits was wrapped again")
	}
	var seen []string
	s.OnCommit(func(changes []store.Change) {
		for _, c := range changes {
			seen = append(seen, c.Record.Key+"="+string(c.Record.Body))
		}
	})
	ctx, now := t.Context(), time.Now()
	put := func(key string) []store.Change {
		return []store.Change{{Record: store.Record{NS: "test", Key: key, Body: []byte("body of " + key)}}}
	}
	conv := store.Conversation{Key: store.ConvKey{Peer: "p", ID: "c"}, Body: []byte("{}"), Open: true}
	step := func(key string) error {
		_, err := s.Steps().Apply(ctx, store.Step{
			Conv: &conv, Records: put(key), Replay: &store.Replay{Sender: "p", MessageID: "m", Conv: conv.Key, Status: 200}, Now: now,
		})
		return err
	}
	var card store.Card
	for _, c := range []struct {
		name string
		do   func() error
		want string // the key that is reported; "" for none
		err  error
	}{
		{"record", func() error { return s.Records().Apply(ctx, put("record"), now) }, "record", nil},
		{"record that is there", func() error { return s.Records().Apply(ctx, put("record"), now) }, "", store.ErrConflict},
		{"step", func() error { return step("step") }, "step", nil},
		{"step again", func() error { return step("again") }, "", nil},
		{"card", func() (err error) {
			card, err = s.Cards().Put(ctx, store.PutCard{Card: store.Card{ID: "card"}, Records: put("card"), Now: now})
			return err
		}, "card", nil},
		{"card that is there", func() error {
			_, err := s.Cards().Put(ctx, store.PutCard{Card: store.Card{ID: "card"}, Records: put("other"), Now: now})
			return err
		}, "", store.ErrConflict},
		{"withdrawal", func() error { return s.Cards().Withdraw(ctx, "card", card.Rev, now, put("withdrawal"), now) }, "withdrawal", nil},
		{"removal", func() error {
			row, err := s.Steps().Conversation(ctx, conv.Key, now)
			if err != nil {
				return err
			}
			return s.Steps().Forget(ctx, conv.Key, row.Rev, put("removal"), now)
		}, "removal", nil},
		{"nothing", func() error { return s.Records().Apply(ctx, nil, now) }, "", nil},
	} {
		seen = nil
		if err := c.do(); !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", c.name, err, c.err)
		}
		switch {
		case c.want == "" && len(seen) > 0:
			t.Errorf("%s: reported %q, want nothing", c.name, seen)
		case c.want != "" && (len(seen) != 1 || seen[0] != c.want+"=body of "+c.want):
			t.Errorf("%s: reported %q", c.name, seen)
		}
	}
}

// TestFollow checks that observers get the changes of another process with the records as they are now, and that units
// of a duty are stored under its lease.
func TestFollow(t *testing.T) {
	db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{MinFree: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	other := db.Handle("other")
	s := store.Observe(db.Handle("this"))
	seen, lost := make(chan []store.Change, 10), make(chan struct{}, 1)
	s.OnCommit(func(changes []store.Change) { seen <- changes }, "test")
	s.OnLoss(func() { lost <- struct{}{} })
	s.OnRemote("own", func(c store.Change) {
		t.Errorf("a change of this process, or of another namespace, was reported: %s", c.Record.NS)
	})
	ctx, stop := context.WithCancel(t.Context())
	var following sync.WaitGroup
	defer following.Wait()
	defer stop()
	following.Go(func() { s.Follow(ctx) })
	following.Go(func() { s.Follow(ctx) })

	change := func(s store.Store, ctx context.Context, ns string, remove bool) error {
		c := store.Change{Record: store.Record{NS: ns, Key: "k", Body: []byte("body"), Terms: []string{"term"}}, IfRev: store.Any, Delete: remove}
		return s.Records().Apply(ctx, []store.Change{c}, time.Now())
	}
	await := func(deleted bool) {
		t.Helper()
		select {
		case got := <-seen:
			if c := got[0]; len(got) != 1 || c.Record.Key != "k" || c.Delete != deleted || c.IfRev != store.Any || deleted == (string(c.Record.Body) == "body") {
				t.Errorf("observed %v, deleted = %v", got, deleted)
			}
		case <-time.After(5 * time.Second):
			t.Fatal("nothing was observed")
		}
	}
	for first := true; first; { // until somebody follows
		if err := change(other, ctx, "test", false); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-seen:
			seen <- got
			first = false
		case <-time.After(10 * time.Millisecond):
		}
	}
	await(false)
	time.Sleep(20 * time.Millisecond)
	for len(seen) > 0 {
		<-seen
	}
	if err := errors.Join(change(other, ctx, "elsewhere", false), change(other, ctx, "test", true)); err != nil {
		t.Fatal(err)
	}
	await(true)

	lease, err := s.Leases().Acquire(ctx, "duty")
	if err != nil {
		t.Fatal(err)
	}
	duty := store.WithLease(ctx, lease)
	if err := errors.Join(change(s, duty, "elsewhere", false), change(s, ctx, "own", false)); err != nil {
		t.Errorf("unit of the holder: %v", err)
	}
	if err := change(s.Under(&lease), ctx, "own", false); err != nil {
		t.Errorf("unit of the holder: %v", err)
	}
	if err := s.Leases().Release(ctx, []store.Lease{lease}); err != nil {
		t.Fatal(err)
	}
	conv := store.Conversation{Key: store.ConvKey{Peer: "p", ID: "c"}, Body: []byte("{}")}
	_, err = s.Steps().Apply(duty, store.Step{Conv: &conv, Now: time.Now()})
	_, put := s.Cards().Put(duty, store.PutCard{Card: store.Card{ID: "am_a", Expires: time.Now().Add(time.Hour)}, Now: time.Now()})
	for _, err := range []error{err, put, change(s, duty, "elsewhere", false), change(s.Under(&lease), ctx, "own", false)} {
		if !errors.Is(err, store.ErrLeaseLost) {
			t.Errorf("unit of a duty that was lost: %v, want ErrLeaseLost", err)
		}
	}
	if len(lost) > 0 {
		t.Error("hints were lost")
	}
}

// TestSessionSharesALease: work that begins while other work under the same lease ends keeps the lease.
func TestSessionSharesALease(t *testing.T) {
	db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{MinFree: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	s := store.Observe(storetest.NewShaky(db, time.Millisecond))
	session := store.NewSession(s.Leases(), slog.New(slog.DiscardHandler))
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for n := range 20 {
				session.Do(t.Context(), "duty", func(ctx context.Context) {
					c := store.Change{Record: store.Record{NS: "test", Key: fmt.Sprint(i, "/", n)}, IfRev: store.Any}
					if err := s.Records().Apply(ctx, []store.Change{c}, time.Now()); err != nil || !session.IsCurrent(ctx) {
						t.Errorf("unit of a duty: %v", err)
					}
				})
			}
		})
	}
	all.Wait()
	if list, err := s.Leases().List(t.Context()); err != nil || len(list) != 0 || session.Held("duty") != nil {
		t.Errorf("List = %v, %v after all duties ended", list, err)
	}
}

// TestRereadLater: a second after an observer could not read a change, OnLoss functions are called, once for all
// calls of RereadLater until then.
func TestRereadLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{MinFree: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		s := store.Observe(db)
		var lost atomic.Int32
		s.OnLoss(func() { lost.Add(1) })
		ctx, stop := context.WithCancel(t.Context())
		var following sync.WaitGroup
		following.Go(func() { s.Follow(ctx) })
		synctest.Wait()
		before := lost.Load()
		for range 3 {
			s.RereadLater()
		}
		time.Sleep(900 * time.Millisecond)
		synctest.Wait()
		if n := lost.Load(); n != before {
			t.Errorf("OnLoss was called %d times before the pause", n-before)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := lost.Load(); n != before+1 {
			t.Errorf("OnLoss was called %d times, want once", n-before)
		}
		stop()
		following.Wait()
	})
}

// TestFollowReadsFirst: OnLoss functions are called once when Follow begins, unless no other process can have changed
// anything.
func TestFollowReadsFirst(t *testing.T) {
	for ttl, want := range map[time.Duration]int32{0: 0, time.Minute: 1} {
		synctest.Test(t, func(t *testing.T) {
			db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{MinFree: -1, LeaseTTL: ttl})
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			s := store.Observe(db)
			var lost atomic.Int32
			s.OnLoss(func() { lost.Add(1) })
			ctx, stop := context.WithCancel(t.Context())
			var following sync.WaitGroup
			following.Go(func() { s.Follow(ctx) })
			synctest.Wait()
			if n := lost.Load(); n != want {
				t.Errorf("with a TTL of %v, OnLoss was called %d times, want %d", ttl, n, want)
			}
			stop()
			following.Wait()
		})
	}
}
