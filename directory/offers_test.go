package directory

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/directory/admission"
	"github.com/agentmesh/agentmesh/directory/mailbox"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store/bolt"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// sharedProcesses runs n processes of one directory on one store, whose calls take up to delay. They know of each
// other, and the mailboxes of newRelayWorld are registered.
func sharedProcesses(t *testing.T, n int, delay time.Duration, change ...func(*Config)) (ws []*world, stop func()) {
	t.Helper()
	db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{MinFree: -1, InitialMmapSize: -1})
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	for i := range n {
		w := newWorldOver(t, storetest.NewShaky(db.Handle(fmt.Sprint("process ", i)), delay), append(change, func(c *Config) {
			c.FeedPosition = positionOf(db)
		})...)
		ws = append(ws, w)
	}
	ws[0].register(alice, mailboxCard("am_alice"))
	ws[0].register(bob, testCard("am_bob"))
	// The processes read these under locks, in which no other goroutine can wait with a fake clock. Registrations at the
	// same time in one process would hang for this reason: they read the bans under a lock again and again.
	for _, w := range ws {
		if _, err := w.reg.relay.Counts(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := w.reg.cursors.Get(t.Context()); err != nil {
			t.Fatal(err)
		}
		running.Go(func() { w.reg.Run(ctx) })
	}
	time.Sleep(time.Second) // all follow each other
	return ws, func() {
		cancel()
		running.Wait()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
}

// poll fetches mail of Alice over a process, which waits for up to 25 seconds.
func (w *world) poll() ([]mailbox.Item, error) {
	return w.pollMail(w.t.Context(), alice, mailbox.Query{Wait: 25 * time.Second})
}

// TestPassThroughOfProcesses: a sender gets the agent's own reply on its connection whichever processes the sender
// asks, the agent polls, and the agent replies at. Nothing is left in the mailbox.
func TestPassThroughOfProcesses(t *testing.T) { // AM-67
	for _, n := range []int{2, 3} {
		t.Run(fmt.Sprint(n, " processes"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ws, stop := sharedProcesses(t, n, 20*time.Millisecond)
				defer stop()
				seen := map[string]int{}
				for at := range n * n * n {
					sender, poller, replier := ws[at%n], ws[at/n%n], ws[at/n/n]
					var agent sync.WaitGroup
					reply := testMessage(fmt.Sprint("r", at), "am_alice", "am_bob")
					agent.Go(func() {
						items, err := poller.poll()
						if err != nil || len(items) != 1 || items[0].ReplyBy == "" {
							t.Errorf("round %d: the agent gets %+v, %v; want one message that passes through", at, items, err)
							return
						}
						seen[items[0].RelayID]++
						want(t, replier.do("POST", "/v1/relay/"+items[0].RelayID+"/reply", reply, withBearer(alice)...), 200, "")
						want(t, ws[0].do("POST", "/v1/relay/"+items[0].RelayID+"/reply", reply, withBearer(alice)...), 409, "")
					})
					time.Sleep(time.Second)
					began := time.Now()
					got := sender.do("POST", "/v1/mailbox/am_alice", testMessage(fmt.Sprint(at), "am_bob", "am_alice"))
					if got.Code != 200 || got.Body.String() != reply || time.Since(began) > time.Second {
						t.Errorf("round %d: the sender gets %d %s after %v", at, got.Code, got.Body, time.Since(began))
					}
					agent.Wait()
				}
				if len(seen) != n*n*n {
					t.Errorf("%d different messages passed, want %d", len(seen), n*n*n)
				}
				if items := ws[n-1].mail(alice, ""); len(items) != 0 {
					t.Errorf("in the mailbox: %+v", items)
				}
			})
		})
	}
}

// TestPassThroughOfProcessesEnds: if the agent of another process is gone, does not fetch the message, or answers too
// late, the message waits in the mailbox once, and its sender gets a receipt.
func TestPassThroughOfProcessesEnds(t *testing.T) { // AM-67
	synctest.Test(t, func(t *testing.T) {
		ws, stop := sharedProcesses(t, 2, 20*time.Millisecond)
		defer stop()
		here, there := ws[0], ws[1]
		post := func(id string, wait time.Duration) string {
			t.Helper()
			began := time.Now()
			receipt := wantReceipt(t, here.do("POST", "/v1/mailbox/am_alice", testMessage(id, "am_bob", "am_alice")), 202)
			if took := time.Since(began); took < wait || took > wait+time.Second {
				t.Errorf("message %s: the sender waited %v, want %v", id, took, wait)
			}
			return receipt
		}
		fetch := func(receipt string) {
			t.Helper()
			items, err := there.poll()
			if err != nil || len(items) != 1 || items[0].ReplyBy != "" || items[0].RelayID != receipt {
				t.Fatalf("the mailbox has %+v, %v; want %s", items, err, receipt)
			}
			want(t, there.do("POST", "/v1/relay/"+receipt+"/ack", "", withBearer(alice)...), 200, "")
		}
		fetch(post("never_connected", 0))
		fetch(post("gone_again", 3*time.Second)) // the poll before was short ago

		var agent sync.WaitGroup
		agent.Go(func() {
			items, err := there.poll()
			if err != nil || len(items) != 1 || items[0].ReplyBy == "" {
				t.Errorf("the agent gets %+v, %v", items, err)
				return
			}
			for range 3 { // a poll does not get it twice
				if again := there.mail(alice, ""); len(again) != 0 {
					t.Errorf("meanwhile the agent gets %+v", again)
				}
				time.Sleep(9 * time.Second)
			}
			late := testMessage("r", "am_alice", "am_bob")
			want(t, there.do("POST", "/v1/relay/"+items[0].RelayID+"/reply", late, withBearer(alice)...), 409, "")
		})
		time.Sleep(time.Second)
		receipt := post("slow", mailbox.ReplyWithin)
		agent.Wait()
		fetch(receipt)

		time.Sleep(10 * time.Minute)
		fetch(post("gone_for_long", 0))
		for _, id := range []string{"relay_x", strings.Repeat("x", 2000)} {
			want(t, there.do("POST", "/v1/relay/"+id+"/reply", testMessage("r", "am_alice", "am_bob"), withBearer(alice)...), 409, "")
		}
	})
}

// TestPassThroughSharesOfProcesses: senders that nobody knows have no more places for pass-through at two processes
// than at one.
func TestPassThroughSharesOfProcesses(t *testing.T) { // THREATS 26, AM-67
	synctest.Test(t, func(t *testing.T) {
		ws, stop := sharedProcesses(t, 3, 0)
		defer stop()
		if _, err := ws[2].pollMail(t.Context(), alice, mailbox.Query{Wait: time.Second}); err != nil {
			t.Fatal(err)
		}
		var senders sync.WaitGroup
		for i := range 40 {
			senders.Go(func() {
				ws[i%2].do("POST", "/v1/mailbox/am_alice", testMessage(fmt.Sprint(i), fmt.Sprint("am_ghost", i), "am_alice"))
			})
		}
		time.Sleep(2 * time.Second)
		senders.Go(func() {
			want(t, ws[0].do("POST", "/v1/mailbox/am_alice", testMessage("b", "am_bob", "am_alice")), 200, "")
		})
		time.Sleep(500 * time.Millisecond)
		passing := map[bool]int{}
		items, err := ws[2].pollMail(t.Context(), alice, mailbox.Query{Limit: 100})
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range items {
			if item.ReplyBy == "" {
				continue
			}
			tree, err := wire.ParseObject(item.Message)
			if err != nil {
				t.Fatal(err)
			}
			if passing[tree.GetStr("from") == "am_bob"]++; tree.GetStr("from") == "am_bob" {
				reply := testMessage("r", "am_alice", "am_bob")
				want(t, ws[2].do("POST", "/v1/relay/"+item.RelayID+"/reply", reply, withBearer(alice)...), 200, "")
			}
		}
		if passing[false] != mailbox.MaxTransitOfSender || passing[true] != 1 {
			t.Errorf("passing: %d of strangers, %d of Bob; want %d and 1", passing[false], passing[true], mailbox.MaxTransitOfSender)
		}
		senders.Wait()
	})
}

// TestHourlyLimitOfProcesses: the registrations of an address in an hour have one limit for all processes together,
// also after a restart, and a refused registration is free.
func TestHourlyLimitOfProcesses(t *testing.T) { // AM-43, AM-58
	synctest.Test(t, func(t *testing.T) {
		ws, stop := sharedProcesses(t, 3, time.Millisecond, func(c *Config) { c.Quotas = Quotas{PerToken: -1, PerHost: 1} })
		defer stop()
		time.Sleep(time.Hour) // since the cards of sharedProcesses
		register := func(w *world, owner, id, host string) int {
			card := testCard(id, text("endpoint", "https://"+host+"/agentmesh"))
			return w.do("POST", "/v1/agents", string(card.JSON()), withBearer(owner)...).Code
		}
		for i := range admission.DefaultPerHour {
			if got := register(ws[i%3], "another-credential", "am_bob", "x.example"); got != 409 {
				t.Errorf("an id that is taken = %d, want 409", got)
			}
			if got := register(ws[i%3], alice, fmt.Sprint("am_", i), fmt.Sprintf("h%d.example", i)); got != 201 {
				t.Errorf("card %d = %d", i, got)
			}
			if got := register(ws[i%3], alice, "am_x", "h0.example"); got != 429 {
				t.Errorf("a host without room = %d, want 429", got)
			}
		}
		for i, w := range ws {
			if got := register(w, alice, fmt.Sprint("am_more", i), fmt.Sprintf("m%d.example", i)); got != 429 {
				t.Errorf("process %d registers more = %d, want 429", i, got)
			}
		}
		ws[1].reg.gate = admission.New(admission.Config{Store: ws[1].store, Mode: Open, Quotas: Quotas{PerToken: -1, PerHost: 1}, Shared: true}) // as after a restart
		card := testCard("am_after", text("endpoint", "https://after.example/agentmesh"))
		got := ws[1].do("POST", "/v1/agents", string(card.JSON()), withBearer(alice)...)
		if got.Code != 429 || got.Header().Get("Retry-After") == "" {
			t.Errorf("after a restart = %d, Retry-After %q", got.Code, got.Header().Get("Retry-After"))
		}
		time.Sleep(3 * time.Minute)
		if got := register(ws[1], alice, "am_later", "later.example"); got != 201 {
			t.Errorf("three minutes later = %d, want 201", got)
		}
		_, err := ws[2].reg.gate.NewCharge(netip.MustParseAddr("192.0.2.1"), [32]byte{}, wire.Now()).Take(t.Context())
		if refused, ok := errors.AsType[*wire.Error](err); !ok || refused.Status != 429 {
			t.Errorf("another registration of the address: %v, want 429", err)
		}
	})
}
