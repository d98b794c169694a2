package directory

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/directory/mailbox"
	"github.com/agentmesh/agentmesh/directory/moderation"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// startProcesses starts two processes of one directory over one store.
func startProcesses(t *testing.T, change ...func(*Config)) [2]*world {
	t.Helper()
	db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{MinFree: -1, LeaseTTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() {
		stop()
		running.Wait()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	var ws [2]*world
	for i := range ws {
		ws[i] = newWorldOver(t, db.Handle(fmt.Sprint("process ", i)), change...)
		running.Go(func() { ws[i].reg.Run(ctx) })
	}
	time.Sleep(100 * time.Millisecond) // both follow each other
	return ws
}

// positionOf returns a function that returns the newest position of the feed.
func positionOf(db store.Store) func(context.Context) (uint64, error) {
	var position atomic.Uint64
	return func(ctx context.Context) (uint64, error) {
		for {
			changes, err := db.Cards().Changes(ctx, position.Load(), 100)
			if err != nil || len(changes) == 0 {
				return position.Load(), err
			}
			position.Store(changes[len(changes)-1].Change)
		}
	}
}

// within fails the test unless done becomes true within a second.
func within(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a second: %s", what)
		}
	}
}

// TestDirectoryProcesses: what one process of a directory stores reaches the other within a second: cards, changes of
// the feed, mail, and bans.
func TestDirectoryProcesses(t *testing.T) {
	t.Parallel()
	ws := startProcesses(t)
	here, there := ws[0], ws[1]
	here.register(alice, mailboxCard("am_alice"))
	there.register(bob, testCard("am_bob"))
	want(t, there.do("GET", "/v1/agents/am_alice", ""), 200, "")
	here.register(alice, mailboxCard("am_alice").With("description", wire.Text("renewed")))
	within(t, "the cached card is replaced", func() bool {
		return there.do("GET", "/v1/agents/am_alice", "").Body.String() == here.do("GET", "/v1/agents/am_alice", "").Body.String()
	})

	_, next := there.changes("", 9)
	time.AfterFunc(50*time.Millisecond, func() { here.register("carol-credential-3", testCard("am_carol")) })
	began := time.Now()
	if page, err := there.reg.Changes(t.Context(), next, 9, maxWait); err != nil || len(page.Changes) == 0 || time.Since(began) > time.Second {
		t.Errorf("changes = %+v, %v after %v", page, err, time.Since(began))
	}

	time.AfterFunc(50*time.Millisecond, func() {
		wantReceipt(t, there.do("POST", "/v1/relay", testMessage("1", "am_bob", "am_alice"), withBearer(bob)...), 201)
	})
	began = time.Now()
	if items, err := here.pollMail(t.Context(), alice, mailbox.Query{Wait: maxWait}); err != nil || len(items) != 1 || time.Since(began) > time.Second {
		t.Errorf("mail = %v, %v after %v", items, err, time.Since(began))
	}

	if err := there.reg.bans.Check(t.Context(), "am_carol", nil, "", noClient, wire.Now()); err != nil { // fills the cache
		t.Fatal(err)
	}
	if _, err := here.reg.Ban(t.Context(), moderation.Ban{Kind: moderation.BanID, Value: "am_carol", Reason: "test"}, "test"); err != nil {
		t.Fatal(err)
	}
	within(t, "the ban holds", func() bool {
		return there.reg.bans.Check(t.Context(), "am_carol", nil, "", noClient, wire.Now()) != nil
	})
}

// TestMailBoundsOfProcesses: the bounds of a mailbox hold for all processes together, and mail that one process deletes
// makes room at the other.
func TestMailBoundsOfProcesses(t *testing.T) {
	t.Parallel()
	ws := startProcesses(t)
	ws[0].register(alice, mailboxCard("am_alice"))
	box, kept := ws[0].card("am_alice"), 0
	const share = mailbox.MaxMail / mailbox.SenderDivisor
	count := func(w *world) int {
		return w.countMail().N
	}
	for i := range 2 * share {
		if err := ws[i%2].storeFake(box, "am_bob", "{}"); err == nil {
			kept++
		}
		within(t, "both count the mail", func() bool { return count(ws[0]) == kept && count(ws[1]) == kept })
	}
	if kept != share {
		t.Errorf("%d messages of one sender are kept, want %d", kept, share)
	}
	if err := ws[0].reg.relay.EmptyMailbox(t.Context(), "am_alice"); err != nil {
		t.Fatal(err)
	}
	within(t, "there is room again", func() bool { return count(ws[1]) == 0 })
}

// TestRegistrationsOfProcesses: the cards of one credential, the cards of one host and the uses of an invite have one
// limit for all processes together, even if both are asked at once.
func TestRegistrationsOfProcesses(t *testing.T) { // AM-56, AM-58
	t.Parallel()
	const limit, tries = 3, 12
	race := func(try func(i int) (ok bool)) (n int32) {
		var accepted atomic.Int32
		var all sync.WaitGroup
		for i := range tries {
			all.Go(func() {
				if try(i) {
					accepted.Add(1)
				}
			})
		}
		all.Wait()
		return accepted.Load()
	}
	register := func(w *world, credential, id, host string, header ...string) bool {
		card := testCard(id, text("endpoint", "https://"+host+"/agentmesh"))
		return w.do("POST", "/v1/agents", string(card.JSON()), append(withBearer(credential), header...)...).Code == 201
	}
	ws := startProcesses(t, func(c *Config) { c.Quotas = Quotas{PerToken: limit, PerHost: limit, PerHour: -1} })
	if n := race(func(i int) bool {
		return register(ws[i%2], alice, fmt.Sprint("am_a", i), fmt.Sprint("a", i, ".example"))
	}); n != limit {
		t.Errorf("%d cards of one credential, want %d", n, limit)
	}
	n := race(func(i int) bool {
		return register(ws[i%2], fmt.Sprint("another-credential-", i), fmt.Sprint("am_b", i), "shared.example")
	})
	if n != limit {
		t.Errorf("%d cards of one host, want %d", n, limit)
	}
	ws = startProcesses(t, inviteOnly)
	code := ws[0].issue("").Code
	if n := race(func(i int) bool {
		return register(ws[i%2], alice, fmt.Sprint("am_c", i), "c.example", wire.HeaderInvite, code)
	}); n != 1 {
		t.Errorf("one invite admits %d cards", n)
	}
}

// TestOneProcessProbes: an endpoint is probed once, by the process with the lease, whichever process registered it.
func TestOneProcessProbes(t *testing.T) {
	t.Parallel()
	var probes atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		probes.Add(1)
		w.WriteHeader(http.StatusNotFound)
	}))
	defer srv.Close()
	h := client.NewHTTP(client.HTTPConfig{Local: true})
	t.Cleanup(h.Close)
	ws := startProcesses(t, func(c *Config) { c.Local, c.HTTP = true, h })
	other := ws[0]
	if !other.reg.cfg.Session.IsElsewhere(Lease) {
		other = ws[1]
	}
	other.register(alice, testCard("am_alice", text("endpoint", srv.URL+"/agentmesh")))
	for end := time.Now().Add(10 * time.Second); probes.Load() == 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(300 * time.Millisecond)
	if n := probes.Load(); n != 1 {
		t.Errorf("%d probes, want 1", n)
	}
}

// TestCachedCardsOfProcesses: a process that asks for the position of the feed serves no card and no list from memory
// after another process changed a card, even if no hint has arrived.
func TestCachedCardsOfProcesses(t *testing.T) {
	t.Parallel()
	db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{MinFree: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	here := newWorldOver(t, db.Handle("here"))
	there := newWorldOver(t, db.Handle("there"), func(c *Config) { c.FeedPosition = positionOf(db) }) // it does not run, so no hint arrives
	here.register(alice, testCard("am_alice"))
	for _, path := range []string{"/v1/agents", "/v1/agents/am_alice"} {
		want(t, there.do("GET", path, ""), 200, "") // fills the cache
	}
	here.register(alice, testCard("am_alice").With("description", wire.Text("renewed")))
	for _, path := range []string{"/v1/agents/am_alice", "/v1/agents"} { // a list replaces cached cards
		if body := there.do("GET", path, "").Body.String(); !strings.Contains(body, "renewed") {
			t.Errorf("GET %s is from before the change: %s", path, body)
		}
	}
}

// TestCallBoundsOfProcesses: one process counts the tasks of A2A calls that the other stores and deletes, so a mailbox
// whose tasks have ended takes calls at both.
func TestCallBoundsOfProcesses(t *testing.T) {
	t.Parallel()
	ws := startProcesses(t, func(c *Config) { c.Addresses = httpapi.New(httpapi.Config{RequestsPerMinute: -1}).Addresses() })
	ws[0].register(alice, mailboxCard("am_alice"))
	want(t, ws[0].do("PUT", "/v1/mailbox/am_alice/a2a", a2aCard(aliceDoor), withBearer(alice)...), 204, "")
	calls := 0
	isAccepted := func(w *world) bool {
		calls++
		_, failure, _ := w.call("t", "SendMessage", sendParams(fmt.Sprint("m", calls), "hi", ""))
		return failure.IsNull()
	}
	for _, w := range ws {
		if !isAccepted(w) { // each process reads the tasks in the store now, and never again
			t.Fatal("the first call is refused")
		}
	}
	fill := func(from, n int, state string, remove bool) {
		t.Helper()
		var changes []store.Change
		for i := from; i < from+n; i++ {
			key, now := fmt.Sprint("task-", i), wire.Now()
			row := fmt.Sprintf(`{"id":%q,"agent":"am_alice","source":"a2a:%d","context":"c","created_at":%q,"state":%q,"size":2}`, key, i, now.Format(time.RFC3339Nano), state)
			changes = append(changes,
				store.Change{IfRev: store.Any, Delete: remove, Record: store.Record{NS: "relay-task", Key: key, Body: []byte(row), Terms: []string{"agent:am_alice"}, Expires: now.Add(time.Hour)}},
				store.Change{IfRev: store.Any, Delete: remove, Record: store.Record{NS: "relay-task-body", Key: key, Body: []byte("{}"), Expires: now.Add(time.Hour)}})
		}
		if err := ws[0].store.Records().Apply(t.Context(), changes, wire.Now()); err != nil {
			t.Fatal(err)
		}
	}
	fill(0, mailbox.MaxMail-2, "TASK_STATE_COMPLETED", false)
	within(t, "the other process makes room", func() bool { return isAccepted(ws[1]) })
	fill(0, mailbox.MaxMail-2, "", true)
	fill(0, mailbox.MaxMail-calls, "TASK_STATE_WORKING", false)
	within(t, "the other process refuses a call", func() bool { return !isAccepted(ws[1]) })
	fill(0, mailbox.MaxMail-calls, "", true)
	within(t, "the other process counts the deleted tasks", func() bool { return isAccepted(ws[1]) })
}
