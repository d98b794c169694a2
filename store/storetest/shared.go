package storetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// handleCount is how many handles (open stores) RunShared has on one data set.
const handleCount = 3

// Shared is a data set that several handles can have open.
type Shared struct {
	Handle func(name string) store.Store
	Close  func() error // closes the data set while its handles are open
}

// RunShared tests an engine whose data several handles can have open at once, as several processes would. It runs the
// whole suite of [Run] with calls that go to the handles in turn, and the tests of leases and of [store.Watcher]. open
// returns a new, empty data set whose leases last for ttl. The data set is closed when its test ends.
func RunShared(t *testing.T, open func(t *testing.T, ttl time.Duration) Shared) {
	t.Helper()
	Run(t, func(t *testing.T) store.Store {
		shared := open(t, time.Minute)
		s := &roundRobin{close: shared.Close}
		for i := range handleCount {
			s.handles = append(s.handles, shared.Handle(fmt.Sprint("handle ", i)))
		}
		s.Store = s.handles[0]
		return s
	})
	for _, test := range []struct {
		name string
		ttl  time.Duration
		run  func(t *testing.T, shared Shared, ttl time.Duration)
	}{
		{"leases", time.Minute, testLeases},
		{"lease of a handle that closed", time.Second, testLeaseOfClosed},
		{"stalled holder", time.Second, testStalledHolder},
		{"one holder at a time", 300 * time.Millisecond, testHolders},
		{"session", 2 * time.Second, testSession},
		{"hints", time.Minute, testHints},
		{"hints to a slow reader", time.Minute, testSlowReader},
		{"feed skips nothing", time.Minute, testFeedRace},
		{"sweep against renewal", time.Minute, testSweepRace},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // these tests mostly wait
			test.run(t, open(t, test.ttl), test.ttl)
		})
	}
}

// roundRobin is a store that passes each call to the next of several handles.
type roundRobin struct {
	store.Store // the first handle
	handles     []store.Store
	n           atomic.Uint64
	close       func() error
}

func (s *roundRobin) next() store.Store { return s.handles[s.n.Add(1)%uint64(len(s.handles))] }

func (s *roundRobin) Close() error { return s.close() }

func (s *roundRobin) Cards() store.Cards     { return s.next().Cards() }
func (s *roundRobin) Steps() store.Steps     { return s.next().Steps() }
func (s *roundRobin) Records() store.Records { return s.next().Records() }

func (s *roundRobin) Sweep(ctx context.Context, now time.Time, limit int) (int, error) {
	return s.next().Sweep(ctx, now, limit)
}

// heldPut returns a change that creates a record under a lease.
func heldPut(key string, held store.Lease) store.Change {
	c := put("test", key)
	c.Held = &held
	return c
}

func acquire(t *testing.T, s store.Store, name string) store.Lease {
	t.Helper()
	lease, err := s.Leases().Acquire(t.Context(), name)
	wantOK(t, "Acquire", err)
	return lease
}

func testLeases(t *testing.T, shared Shared, _ time.Duration) {
	a, b := shared.Handle("a"), shared.Handle("b")
	ctx := t.Context()
	for _, name := range []string{"", string(make([]byte, 65))} {
		_, err := a.Leases().Acquire(ctx, name)
		wantMistake(t, "a lease without a usable name", err)
	}
	first := acquire(t, a, "node")
	wantSame(t, "the same holder again", acquire(t, a, "node"), first)
	_, err := b.Leases().Acquire(ctx, "node")
	wantErr(t, "another handle", err, store.ErrLeaseTaken)
	other := acquire(t, b, "directory")
	list, err := b.Leases().List(ctx)
	wantOK(t, "List", err)
	if len(list) != 2 || list[0].Lease != other || list[0].Holder != "b" || list[1].Lease != first || list[1].Holder != "a" {
		t.Errorf("List = %v", list)
	}
	lost, err := b.Leases().Renew(ctx, []store.Lease{first, other, {Name: "none", Fence: 1}})
	wantOK(t, "Renew", err)
	wantSame(t, "leases that are not of this handle", lost, []store.Lease{first, {Name: "none", Fence: 1}})
	wantOK(t, "unit of the holder", change(t, a, t0, heldPut("x", first)))
	c := conv("am_p", "conv_1")
	apply(t, a, store.Step{Conv: &c, Held: &first})

	wantOK(t, "Release of another handle's lease", b.Leases().Release(ctx, []store.Lease{first}))
	wantOK(t, "unit of the holder", change(t, a, t0, heldPut("y", first)))
	wantOK(t, "Release", a.Leases().Release(ctx, []store.Lease{first}))
	wantErr(t, "unit after the release", change(t, a, t0, heldPut("z", first)), store.ErrLeaseLost)
	second := acquire(t, b, "node")
	if second.Fence <= first.Fence {
		t.Errorf("fence %d after %d", second.Fence, first.Fence)
	}
	_, err = a.Steps().Apply(ctx, store.Step{Conv: &store.Conversation{Key: store.ConvKey{Peer: "am_p", ID: "late"}}, Held: &first, Now: t0})
	wantErr(t, "step under an old fence", err, store.ErrLeaseLost)
	_, err = a.Steps().Conversation(ctx, store.ConvKey{Peer: "am_p", ID: "late"}, t0)
	wantErr(t, "what that step would have written", err, store.ErrNotFound)
}

func testLeaseOfClosed(t *testing.T, shared Shared, ttl time.Duration) {
	a, b := shared.Handle("a"), shared.Handle("b")
	first := acquire(t, a, "node")
	wantOK(t, "Close", a.Close())
	deadline := time.Now().Add(ttl + 5*time.Second)
	for {
		second, err := b.Leases().Acquire(t.Context(), "node")
		if err == nil {
			if second.Fence <= first.Fence {
				t.Errorf("fence %d after %d", second.Fence, first.Fence)
			}
			return
		}
		if !errors.Is(err, store.ErrLeaseTaken) || time.Now().After(deadline) {
			t.Fatalf("Acquire = %v", err)
		}
		time.Sleep(ttl / 10)
	}
}

// testStalledHolder checks that a holder that is suspended past the end of its lease cannot write afterwards, whether
// or not another handle has taken the lease.
func testStalledHolder(t *testing.T, shared Shared, ttl time.Duration) {
	a, b := shared.Handle("a"), shared.Handle("b")
	lease := acquire(t, a, "node")
	wantOK(t, "unit in time", change(t, a, t0, heldPut("in time", lease)))
	time.Sleep(ttl + ttl/2)
	wantErr(t, "late unit", change(t, a, t0, heldPut("late", lease)), store.ErrLeaseLost)
	lost, err := a.Leases().Renew(t.Context(), []store.Lease{lease})
	wantOK(t, "Renew", err)
	wantSame(t, "lost leases", lost, []store.Lease{lease})
	newLease := acquire(t, b, "node")
	wantErr(t, "unit after the takeover", change(t, a, t0, heldPut("later", lease)), store.ErrLeaseLost)
	heldOnly := []store.Change{{Held: &lease}}
	_, err = a.Cards().Put(t.Context(), store.PutCard{Card: card("am_late"), Records: heldOnly, Now: t0})
	wantErr(t, "card after the takeover", err, store.ErrLeaseLost)
	_, err = b.Cards().Put(t.Context(), store.PutCard{Card: card("am_new"), Records: []store.Change{{Held: &newLease}}, Now: t0})
	wantOK(t, "card of the new holder", err)
	wantErr(t, "Withdraw after the takeover", a.Cards().Withdraw(t.Context(), "am_new", store.Any, t0, heldOnly, t0), store.ErrLeaseLost)
	wantOK(t, "unit of the new holder", change(t, b, t0, heldPut("new", newLease)))
	wantSame(t, "what was written", keys(t, b, "test", "", t0), []string{"in time", "new"})
}

// testHolders: while several handles take, use and lose one lease, the fences under which they write never decrease.
func testHolders(t *testing.T, shared Shared, ttl time.Duration) {
	var handles []store.Store
	for i := range handleCount { // before the time begins: beside other tests, this may take seconds
		handles = append(handles, shared.Handle(fmt.Sprint("handle ", i)))
	}
	var all sync.WaitGroup
	var wrote atomic.Int64
	begin := time.Now()
	more := func() bool { // on a slow machine, most leases end before their unit
		past := time.Since(begin)
		return past < 8*ttl || wrote.Load() < handleCount && past < time.Minute
	}
	for _, s := range handles {
		all.Go(func() {
			for n := 0; more(); n++ {
				lease, err := s.Leases().Acquire(t.Context(), "node")
				if errors.Is(err, store.ErrLeaseTaken) {
					time.Sleep(ttl / 20)
					continue
				}
				if err != nil {
					t.Errorf("Acquire = %v", err)
					return
				}
				rec, err := s.Records().Get(t.Context(), "test", "fence", t0)
				if err != nil && !errors.Is(err, store.ErrNotFound) {
					t.Errorf("Get = %v", err)
					return
				}
				body := fmt.Sprintf("%020d", lease.Fence)
				if string(rec.Body) > body {
					// Another handle has written under a later fence, so this lease must be lost.
					body = "stale"
				}
				if n%3 == 2 {
					time.Sleep(ttl + ttl/5) // past the end of the lease
				}
				c := store.Change{Record: store.Record{NS: "test", Key: "fence", Body: []byte(body)}, IfRev: store.Any, Held: &lease}
				switch err := s.Records().Apply(t.Context(), []store.Change{c}, t0); {
				case errors.Is(err, store.ErrLeaseLost):
				case err != nil:
					t.Errorf("Apply = %v", err)
				case body == "stale":
					t.Error("a lease wrote although a later one had written")
				default:
					wrote.Add(1)
				}
				if n%2 == 0 {
					_ = s.Leases().Release(t.Context(), []store.Lease{lease})
				}
			}
		})
	}
	all.Wait()
	if wrote.Load() < handleCount {
		t.Errorf("only %d units were written", wrote.Load())
	}
}

// testSession: the work under a lease has one worker at a time, and moves to another process when its process ends.
func testSession(t *testing.T, shared Shared, ttl time.Duration) {
	var working atomic.Int32
	began := make(chan string, 10)
	start := func(name string) (kill func()) {
		s := shared.Handle(name)
		session := store.NewSession(s.Leases(), slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			session.Do(ctx, "node", func(ctx context.Context) {
				if n := working.Add(1); n != 1 {
					t.Errorf("%d workers at once", n)
				}
				if !session.IsCurrent(ctx) || session.IsElsewhere("node") {
					t.Error("the session does not know its lease")
				}
				if err := s.Records().Apply(ctx, []store.Change{heldPut(name, *store.LeaseOf(ctx))}, t0); err != nil {
					t.Errorf("Apply = %v", err)
				}
				began <- name
				<-ctx.Done()
				working.Add(-1)
			})
		})
		return func() { cancel(); all.Wait() }
	}
	next := func() string {
		select {
		case name := <-began:
			return name
		case <-time.After(ttl + 10*time.Second):
			t.Fatal("nobody does the duty")
			return ""
		}
	}
	kills := map[string]func(){"a": start("a"), "b": start("b")}
	first := next()
	time.Sleep(3 * ttl) // renewed meanwhile
	select {
	case name := <-began:
		t.Fatalf("%s took the duty of %s", name, first)
	default:
	}
	kills[first]()
	if second := next(); second == first {
		t.Errorf("%s began again after its end", first)
	} else {
		kills[second]()
	}
}

func testHints(t *testing.T, shared Shared, _ time.Duration) {
	a, b := shared.Handle("a"), shared.Handle("b")
	ctx, stop := context.WithCancel(t.Context())
	hints := b.Watch(ctx, "test", store.WatchCards, store.WatchConversations)
	want := func(want store.Hint) {
		t.Helper()
		for {
			select {
			case got := <-hints:
				if got == want {
					return
				}
			case <-time.After(5 * time.Second):
				t.Fatalf("no hint %v", want)
			}
		}
	}
	wantOK(t, "create", change(t, a, t0, put("other", "k"), put("test", "k")))
	want(store.Hint{NS: "test", Key: "k"})
	wantOK(t, "delete", change(t, a, t0, store.Change{Record: store.Record{NS: "test", Key: "k"}, IfRev: store.Any, Delete: true}))
	want(store.Hint{NS: "test", Key: "k"})
	c := conv("am_p", "conv_1")
	apply(t, a, store.Step{Conv: &c})
	want(store.Hint{NS: store.WatchConversations, Key: "am_p/conv_1"})
	wantOK(t, "Forget", a.Steps().Forget(ctx, c.Key, store.Any, nil, t0))
	want(store.Hint{NS: store.WatchConversations, Key: "am_p/conv_1"})
	putCard(t, a, card("am_a"))
	want(store.Hint{NS: store.WatchCards, Key: "am_a"})
	wantOK(t, "Withdraw", a.Cards().Withdraw(ctx, "am_a", store.Any, t0, nil, t0))
	want(store.Hint{NS: store.WatchCards, Key: "am_a"})
	wantErr(t, "refused unit", change(t, a, t0, put("other", "k"), put("test", "refused")), store.ErrConflict)
	wantOK(t, "unit of the reader itself", change(t, b, t0, put("test", "own")))
	wantOK(t, "the next unit", change(t, a, t0, put("test", "next")))
	for got := range hints {
		if got.Key == "refused" || got.Key == "own" {
			t.Errorf("unexpected hint %v", got)
		}
		if got.Key == "next" {
			break
		}
	}
	stop()
	for range hints { // ends because the channel is closed
	}
}

// testSlowReader checks that a slow reader delays no writer, learns that it missed hints, and gets hints again.
func testSlowReader(t *testing.T, shared Shared, _ time.Duration) {
	a, b := shared.Handle("a"), shared.Handle("b")
	hints := b.Watch(t.Context(), "test")
	for i := range 1000 {
		c := put("test", fmt.Sprint(i%10))
		c.IfRev = store.Any
		wantOK(t, "Apply", change(t, a, t0, c))
	}
	for lost := false; !lost; {
		select {
		case hint := <-hints:
			lost = hint == store.Hint{}
		case <-time.After(5 * time.Second):
			t.Fatal("no hint that hints were lost")
		}
	}
	wantOK(t, "Apply", change(t, a, t0, put("test", "last")))
	for hint := range hints {
		if hint.Key == "last" {
			return
		}
	}
}

// testFeedRace: while several handles write cards, a reader that follows the feed never skips a change.
func testFeedRace(t *testing.T, shared Shared, _ time.Duration) {
	const each = 60
	var writers sync.WaitGroup
	for i := range handleCount {
		s := shared.Handle(fmt.Sprint("handle ", i))
		writers.Go(func() {
			for n := range each {
				if _, err := s.Cards().Put(t.Context(), store.PutCard{Card: card(fmt.Sprintf("am_%d_%d", i, n)), Now: t0}); err != nil {
					t.Errorf("Put = %v", err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	reader, seen, after := shared.Handle("reader"), map[string]bool{}, uint64(0)
	for last := false; ; {
		page, err := reader.Cards().Changes(t.Context(), after, 7)
		wantOK(t, "Changes", err)
		for _, c := range page {
			if c.Change <= after {
				t.Fatalf("change %d after %d", c.Change, after)
			}
			after, seen[c.ID] = c.Change, true
		}
		if len(page) > 0 {
			continue
		}
		if last {
			break
		}
		select {
		case <-done:
			last = true
		default:
		}
	}
	if len(seen) != handleCount*each {
		t.Errorf("the reader saw %d of %d cards", len(seen), handleCount*each)
	}
}

// testSweepRace: a sweep never removes a record that another handle renewed before.
func testSweepRace(t *testing.T, shared Shared, _ time.Duration) {
	a, b := shared.Handle("a"), shared.Handle("b")
	now := t0.Add(day)
	for round := range 20 {
		key := fmt.Sprint(round)
		c := put("test", key)
		c.Record.Expires = t0.Add(time.Hour)
		wantOK(t, "create", change(t, a, t0, c))
		var both sync.WaitGroup
		both.Go(func() {
			if _, err := b.Sweep(t.Context(), now, 100); err != nil {
				t.Errorf("Sweep = %v", err)
			}
		})
		both.Go(func() {
			renewed := put("test", key)
			renewed.Record.Expires, renewed.IfRev = now.Add(day), store.Any
			if err := a.Records().Apply(t.Context(), []store.Change{renewed}, now); err != nil {
				t.Errorf("Apply = %v", err)
			}
		})
		both.Wait()
		if _, err := b.Records().Get(t.Context(), "test", key, now); err != nil {
			t.Fatalf("a renewed record: %v", err)
		}
	}
}
