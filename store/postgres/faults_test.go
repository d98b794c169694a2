//go:build slow

package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/engine"
	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
)

// cutter is a proxy before a server. It cuts connections at random: after it passed on what the client sent, so that
// the client does not get the answer, or before.
type cutter struct {
	address net.Listener
	server  string
	rate    atomic.Int64 // of a thousand messages, how many end their connection
	cuts    atomic.Int64
	hosts   atomic.Int64 // that vanished: their connections stay open and pass nothing on
	turns   atomic.Int64 // round trips: how often a client sent something after an answer
}

// vanish makes all connections silent, without ending them. New connections work.
func (c *cutter) vanish() { c.hosts.Add(1) }

// newCutter starts a proxy and returns it with the connection string through it.
func newCutter(t *testing.T, database string) (*cutter, string) {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(dir, ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{address: listener, server: filepath.Join(u.Query().Get("host"), ".s.PGSQL.5432")}
	u.RawQuery = url.Values{"host": {dir}, "sslmode": {"disable"}, "options": {u.Query().Get("options")}}.Encode()
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go c.serve(client)
		}
	}()
	t.Cleanup(func() { listener.Close() })
	return c, u.String()
}

func (c *cutter) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("unix", c.server)
	if err != nil {
		return
	}
	defer server.Close()
	host := c.hosts.Load()
	var answered atomic.Bool
	answered.Store(true)
	go func() {
		toClient := c.upTo(client, host)
		_, _ = io.Copy(writerFunc(func(b []byte) (int, error) { // ends with either connection
			answered.Store(true)
			return toClient.Write(b)
		}), server)
		client.Close()
	}()
	for buf := make([]byte, 1<<16); ; {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		if answered.Swap(false) {
			c.turns.Add(1)
		}
		cut := rand.Int64N(1000) < c.rate.Load()
		if cut {
			c.cuts.Add(1)
			if rand.IntN(4) == 0 {
				return
			}
			client.Close() // the answer is lost
		}
		if _, err := c.upTo(server, host).Write(buf[:n]); err != nil || cut {
			time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
			return
		}
	}
}

// upTo returns w until the host vanishes, and then a writer that discards everything.
func (c *cutter) upTo(w io.Writer, host int64) io.Writer {
	return writerFunc(func(b []byte) (int, error) {
		if c.hosts.Load() != host {
			return len(b), nil
		}
		return w.Write(b)
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// audit writes messages of several conversations from several senders until stop is closed, and then checks that each
// acknowledged message was stored once, and no other one.
func audit(t *testing.T, s *Store, check *Store, during func()) {
	t.Helper()
	const senders = 6
	const enough = 50 // messages that a run acknowledges
	var acknowledged, unknown [senders][]string
	var left atomic.Int64
	left.Store(enough)
	stop, reached := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	for i := range senders {
		key := store.ConvKey{Peer: "am_p", ID: fmt.Sprint(i)}
		all.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				id := fmt.Sprintf("m%d-%d", i, n)
				work := func(n int) store.Record {
					return store.Record{NS: "work", Key: fmt.Sprintf("%d-%08d", i, n), Due: store.DueNow, Lane: fmt.Sprint(i)}
				}
				_, err := s.Steps().Apply(t.Context(), store.Step{
					Conv: &store.Conversation{Key: key, Rev: store.Any, Open: true}, Append: []store.Entry{{MessageID: id}},
					// The first change fails if the step was applied before.
					Records: []store.Change{put(id), {Record: work(n)}, {Record: work(n - 3), IfRev: store.Any, Delete: true}},
					Now:     now,
				})
				switch {
				case err == nil:
					if acknowledged[i] = append(acknowledged[i], id); left.Add(-1) == 0 {
						close(reached)
					}
				case errors.Is(err, store.ErrUnavailable):
					unknown[i] = append(unknown[i], id)
				default:
					t.Errorf("Apply = %v", err)
				}
			}
		})
	}
	during()
	select {
	case <-reached:
	case <-time.After(time.Minute): // on a busy machine, few commits succeed between two failures
	}
	close(stop)
	all.Wait()
	total, maybe := 0, 0
	for i := range senders {
		entries, err := check.Steps().Transcript(t.Context(), store.ConvKey{Peer: "am_p", ID: fmt.Sprint(i)}, 0, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		stored := make(map[string]int)
		for _, e := range entries {
			stored[e.MessageID]++
		}
		for _, id := range acknowledged[i] {
			if stored[id] != 1 {
				t.Errorf("acknowledged message %s is stored %d times", id, stored[id])
			}
			delete(stored, id)
		}
		for _, id := range unknown[i] {
			delete(stored, id)
		}
		if len(stored) > 0 {
			t.Errorf("stored, but not sent: %v", stored)
		}
		total, maybe = total+len(acknowledged[i]), maybe+len(unknown[i])
	}
	first := make(map[string]string) // the first record of each lane
	for rec, err := range store.AllRecords(t.Context(), check.Records(), "work", "", now) {
		if err != nil {
			t.Fatal(err)
		}
		if first[rec.Lane] == "" {
			first[rec.Lane] = rec.Key
		}
	}
	due, _, err := check.Records().Due(t.Context(), "work", now, nil, 100)
	if err != nil || len(due) != len(first) {
		t.Errorf("%d of %d lanes are due: %v", len(due), len(first), err)
	}
	for _, rec := range due {
		if first[rec.Lane] != rec.Key {
			t.Errorf("%s is due before %s", rec.Key, first[rec.Lane])
		}
	}
	t.Logf("%d acknowledged, %d unknown", total, maybe)
	if total < enough {
		t.Errorf("only %d messages were acknowledged", total)
	}
}

// TestLostConnections cuts connections at random, also between a commit and its answer.
func TestLostConnections(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	proxy, through := newCutter(t, database)
	s, direct := open(t, Config{URL: through}), open(t, Config{URL: database})
	audit(t, s, direct, func() {
		proxy.rate.Store(50)
		time.Sleep(2 * time.Second)
		for deadline := time.Now().Add(time.Minute); proxy.cuts.Load() < 5 && time.Now().Before(deadline); {
			time.Sleep(100 * time.Millisecond) // a busy machine sends little
		}
		proxy.rate.Store(0)
	})
	if proxy.cuts.Load() < 5 {
		t.Errorf("only %d connections were cut", proxy.cuts.Load())
	}
}

// TestTerminatedBackends ends the processes of the server at random.
func TestTerminatedBackends(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	s, direct := open(t, Config{URL: database, Name: "victim"}), open(t, Config{URL: database, Name: "check"})
	audit(t, s, direct, func() {
		for range 60 {
			time.Sleep(25 * time.Millisecond)
			_, err := direct.pool.Exec(t.Context(), "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'agentmesh/victim' order by random() limit 1")
			if err != nil {
				t.Error(err)
			}
		}
	})
	// The connection for notifications was ended too, and is there again.
	hints := s.Watch(t.Context(), "test")
	for deadline := time.After(20 * time.Second); ; {
		if err := apply(t.Context(), direct, store.Change{Record: store.Record{NS: "test", Key: "hint"}, IfRev: store.Any}); err != nil {
			t.Fatal(err)
		}
		select {
		case hint := <-hints:
			if hint.Key == "hint" {
				return
			}
		case <-time.After(100 * time.Millisecond):
		case <-deadline:
			t.Fatal("no hint")
		}
	}
}

// TestServerGone checks that a store without its server refuses calls in time and takes them again when the server is
// back, and that a commit whose wait for a standby was canceled is not acknowledged, but that other processes hear of
// it.
func TestServerGone(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t)
	s := open(t, Config{URL: server.URL("postgres"), Name: "test"})
	if err := apply(t.Context(), s, put("before")); err != nil {
		t.Fatal(err)
	}
	server.Kill()
	begun := time.Now()
	if err := apply(t.Context(), s, put("during")); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("Apply without a server = %v", err)
	}
	_, err := s.Records().Get(t.Context(), "test", "before", now)
	if !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("Get without a server = %v", err)
	}
	if _, err := s.Cards().List(t.Context(), store.CardQuery{Limit: 1, Now: now}); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("List without a server = %v", err)
	}
	if err := s.Ping(t.Context()); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("Ping without a server = %v", err)
	}
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("four refusals took %v", took)
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	if err := apply(t.Context(), s, put("after")); err != nil {
		t.Errorf("Apply with the server = %v", err)
	}
	if _, err := s.Records().Get(t.Context(), "test", "before", now); err != nil {
		t.Errorf("Get of what was acknowledged = %v", err)
	}

	hints := open(t, Config{URL: server.URL("postgres"), Name: "other"}).Watch(t.Context(), "other")
	for _, sql := range []string{"alter system set synchronous_standby_names = '*'", "select pg_reload_conf()"} {
		if err := server.Exec(sql); err != nil {
			t.Fatal(err)
		}
	}
	outcome := make(chan error, 1)
	go func() { // the server takes the new setting a little later
		var err error
		for i := 0; err == nil; i++ {
			err = apply(context.WithoutCancel(t.Context()), s, put(fmt.Sprint("alone ", i)))
		}
		outcome <- err
	}()
	admin, err := pgx.Connect(t.Context(), server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(t.Context())
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		var canceled int
		err := admin.QueryRow(t.Context(), "select count(pg_cancel_backend(pid)) from pg_stat_activity where wait_event = 'SyncRep'").Scan(&canceled)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("no commit waits for a standby: %v", err)
		}
		if canceled > 0 {
			break
		}
	}
	if err := <-outcome; !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a commit without its standby = %v", err)
	}
	select {
	case <-hints:
	case <-time.After(10 * time.Second):
		t.Error("another process did not hear that it missed a commit")
	}
	for _, sql := range []string{"alter system reset synchronous_standby_names", "select pg_reload_conf()"} {
		if err := server.Exec(sql); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNeverCancels checks that a connection that is given up sends no request to cancel.
func TestNeverCancels(t *testing.T) {
	t.Parallel()
	s := open(t, Config{URL: pgtest.Database(t)})
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if err := conn.Conn().PgConn().CancelRequest(t.Context()); !goldentest.Refuses(t, "cancel", err) {
		t.Errorf("CancelRequest = %v", err)
	}
}

// TestStalledWriter checks that a process that stands still in the middle of a transaction delays the others only for a
// short time, although it holds locks that all of them need.
func TestStalledWriter(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	stalled, other := open(t, Config{URL: database, Name: "stalled"}), open(t, Config{URL: database, Name: "other"})
	if err := apply(t.Context(), other, put("before")); err != nil {
		t.Fatal(err)
	}
	conn, err := stalled.acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, sql := range []string{"begin", "select from records for update"} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	begun := time.Now()
	if err := apply(t.Context(), other, store.Change{Record: store.Record{NS: "test", Key: "before"}, IfRev: store.Any}); err != nil {
		t.Error(err)
	}
	if took := time.Since(begun); took > 3500*time.Millisecond {
		t.Errorf("another process waited for %v", took)
	}
}

// TestLeaseDuringCommit checks that a holder can renew its lease while a unit under the lease is being committed, and
// that nobody else can take the lease meanwhile, although it has ended.
func TestLeaseDuringCommit(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	const ttl = 500 * time.Millisecond
	holder, other := open(t, Config{URL: database, Name: "holder", LeaseTTL: ttl}), open(t, Config{URL: database, Name: "other", LeaseTTL: ttl})
	lease, err := holder.Leases().Acquire(t.Context(), "duty")
	if err != nil {
		t.Fatal(err)
	}
	planned, goOn, done := make(chan bool), make(chan bool), make(chan error)
	go func() {
		add := func(n *engine.Needs) { n.Leases = []string{"duty"} }
		done <- driver{holder}.Do(t.Context(), engine.Call{Needs: add, Check: func(tx engine.Tx) (func(store.Rev) error, error) {
			planned <- true
			<-goOn
			return func(store.Rev) error { return nil }, tx.CheckLease(&lease)
		}})
	}()
	<-planned
	ctx, cancel := context.WithTimeout(t.Context(), ttl/2)
	if lost, err := holder.Leases().Renew(ctx, []store.Lease{lease}); err != nil || len(lost) > 0 {
		t.Errorf("Renew during a commit = %v, %v", lost, err)
	}
	cancel()
	<-time.After(ttl) // the lease has ended
	ctx, cancel = context.WithTimeout(t.Context(), ttl)
	if _, err := other.Leases().Acquire(ctx, "duty"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("another process acquires the lease during a commit: %v", err)
	}
	cancel()
	close(goOn)
	if err := <-done; err != nil {
		t.Errorf("a unit under a lease that ended during its commit = %v", err)
	}
}

// TestLeasesAreNotQueued checks that leases are renewed although reads use all connections of the pool.
func TestLeasesAreNotQueued(t *testing.T) {
	t.Parallel()
	s := open(t, Config{URL: pgtest.Database(t)})
	lease, err := s.Leases().Acquire(t.Context(), "duty")
	if err != nil {
		t.Fatal(err)
	}
	for range s.pool.Config().MaxConns {
		conn, err := s.acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if lost, err := s.Leases().Renew(ctx, []store.Lease{lease}); err != nil || len(lost) > 0 {
		t.Errorf("Renew = %v, %v", lost, err)
	}
}

// TestSilentHost checks that a writer soon uses the second host of the connection string if the first one accepts
// connections and does not answer.
func TestSilentHost(t *testing.T) {
	t.Parallel()
	u, err := url.Parse(pgtest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	silent := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(silent, ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	q := u.Query()
	q.Set("host", silent+","+q.Get("host"))
	u.RawQuery = q.Encode()
	s := open(t, Config{URL: u.String()})
	s.pool.Reset() // the next call connects again
	begun := time.Now()
	if err := apply(t.Context(), s, put("key")); err != nil {
		t.Error(err)
	}
	if took := time.Since(begun); took > 2*connectFor {
		t.Errorf("a write took %v", took)
	}
}

// TestSearchesShareFailure checks that searches that wait for the same read of the feed fail together if the server
// does not answer it.
func TestSearchesShareFailure(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	s := open(t, Config{URL: database})
	holder, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close(t.Context())
	for _, sql := range []string{"begin", "lock table changes"} {
		if _, err := holder.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	begun := time.Now()
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			if _, err := s.Cards().Count(t.Context(), now); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("Count = %v", err)
			}
		})
	}
	all.Wait()
	if took := time.Since(begun); took > 3*answerFor {
		t.Errorf("the searches took %v", took)
	}
}
