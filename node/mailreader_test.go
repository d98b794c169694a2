package node_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// leaveMail puts a new message of s into the mailbox of to.
func leaveMail(t *testing.T, mesh *meshtest.Mesh, s *meshtest.Stranger, to wire.AgentID) {
	t.Helper()
	leaveSigned(t, mesh, s, s.Sign(s.Draft(to, wire.Deliver, hello)))
}

// leaveSigned puts a signed message of s into the mailbox of its recipient.
func leaveSigned(t *testing.T, mesh *meshtest.Mesh, s *meshtest.Stranger, message []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, mesh.URL+"/relay", bytes.NewReader(message))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer credential-of-"+s.Name)
	resp, err := client.InProcess(mesh.Public).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		t.Fatalf("the relay answers %d", resp.StatusCode)
	}
}

// TestMailOfReachableNode: a node with a public endpoint also reads its mailbox at each directory that it joins: after
// minutes by itself, and at once when the directory in its process wakes it (AM-64).
func TestMailOfReachableNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		sarah := mesh.Node("sarah", open)
		sarah.Start()
		synctest.Wait()
		has := func(want int, when string) {
			t.Helper()
			items, _, err := sarah.Inbox(t.Context(), owner.ItemNew, "", 10)
			if err != nil || len(items) != want {
				t.Errorf("%s the inbox has %d messages, want %d (%v)", when, len(items), want, err)
			}
		}
		leaveMail(t, mesh, chris, sarah.ID())
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		has(1, "after three minutes")
		leaveMail(t, mesh, chris, sarah.ID())
		sarah.CheckMail()
		synctest.Wait()
		has(2, "after it was woken")
		if _, err := sarah.Registrar().Withdraw(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
	})
}

// TestFullOutboxHoldsUpNoMail: while the outbox is full, the answer to a repeated message waits, and the mail behind
// that message does not.
func TestFullOutboxHoldsUpNoMail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		sarah := mesh.Node("sarah", open)
		sarah.Start()
		synctest.Wait()
		message := chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))
		must(t, sarah.Post(message), http.StatusOK)
		var full []store.Change
		for i := range 10_000 {
			r := store.Record{NS: "outbox", Key: fmt.Sprintf("x%05d", i), Terms: []string{"state:queued"}, Body: []byte(`{"state":"failed"}`)}
			full = append(full, store.Change{IfRev: store.Any, Record: r})
		}
		apply := func() {
			for part := range slices.Chunk(full, 500) {
				if err := sarah.Store.Records().Apply(t.Context(), part, time.Now()); err != nil {
					t.Fatal(err)
				}
			}
		}
		apply()
		leaveSigned(t, mesh, chris, message)
		leaveMail(t, mesh, chris, sarah.ID())
		sarah.CheckMail()
		synctest.Wait()
		if items, _, err := sarah.Inbox(t.Context(), owner.ItemNew, "", 10); err != nil || len(items) != 2 {
			t.Errorf("%d messages arrived, want 2 (%v)", len(items), err)
		}
		for i := range full {
			full[i].Delete = true
		}
		apply()
		time.Sleep(time.Hour)
		synctest.Wait()
		if entries, _, err := sarah.Outbox(t.Context(), "", "", 10); err != nil || len(entries) != 1 {
			t.Errorf("%d answers in the outbox, want 1 (%v)", len(entries), err)
		}
	})
}

// blocking is a hook that answers nothing before its context ends.
type blocking struct{}

func (blocking) Handle(ctx context.Context, _ hook.Call) (hook.Answer, error) {
	<-ctx.Done()
	return hook.Answer{}, ctx.Err()
}

// TestFullHookQueueHoldsUpNoMail: mail of a sender with its share of the runs that wait stays in the mailbox, and the
// mail of others behind it arrives at once.
func TestFullHookQueueHoldsUpNoMail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris, ann := mesh.Stranger("chris"), mesh.Stranger("ann")
		sarah := mesh.Node("sarah", func(cfg *node.Config) {
			open(cfg)
			meshtest.Unlimited(cfg)
			cfg.Routes = []node.Route{{Pattern: "*", Name: "slow", Handler: blocking{}}}
		})
		sarah.Start()
		synctest.Wait()
		var posts sync.WaitGroup
		for range 96 { // the share of a stranger
			message := chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))
			posts.Go(func() { sarah.Post(message) })
		}
		posts.Wait()
		leaveMail(t, mesh, chris, sarah.ID())
		leaveMail(t, mesh, ann, sarah.ID())
		sarah.CheckMail()
		synctest.Wait()
		items, _, err := sarah.Inbox(t.Context(), owner.ItemRunning, "", 200)
		if err != nil || len(items) != 97 || items[96].Peer != ann.ID {
			t.Errorf("%d messages wait for the hook, and none of the other sender (%v)", len(items), err)
		}
	})
}

// TestDirectoryWithoutMailboxes: a directory without mailboxes is polled less and less often, and one that does not
// list the node is not polled.
func TestDirectoryWithoutMailboxes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var polls []time.Time
		cards := &memoryDirectory{}
		counted := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/relay") {
				polls = append(polls, time.Now())
			}
			cards.ServeHTTP(w, r)
		})
		l := loneNode(t, t.TempDir(), nil, func(cfg *node.Config) {
			cfg.Directories = []*client.Directory{client.NewDirectory("https://directory.test/v1", cfg.HTTP, client.InProcess(counted))}
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		time.Sleep(12 * time.Hour)
		synctest.Wait()
		if n := len(polls); n < 12 || n > 30 {
			t.Errorf("%d polls in twelve hours", n)
		}
		if _, err := l.Registrar().Withdraw(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour) // a pause may still run
		before := len(polls)
		time.Sleep(12 * time.Hour)
		if after := len(polls); after != before {
			t.Errorf("%d polls after the node was withdrawn", after-before)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		l.stop()
	})
}
