package node_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// leaveMail puts a message of s into the mailbox of to.
func leaveMail(t *testing.T, mesh *meshtest.Mesh, s *meshtest.Stranger, to wire.AgentID) {
	t.Helper()
	body := strings.NewReader(string(s.Sign(s.Draft(to, wire.Deliver, hello))))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, mesh.URL+"/relay", body)
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
			items, _, err := sarah.Inbox(t.Context(), node.ItemNew, "", 10)
			if err != nil || len(items) != want {
				t.Errorf("%s the inbox has %d messages, want %d (%v)", when, len(items), want, err)
			}
		}
		leaveMail(t, mesh, chris, sarah.ID())
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		has(1, "after three minutes")
		leaveMail(t, mesh, chris, sarah.ID())
		sarah.MailWaits()
		synctest.Wait()
		has(2, "after it was woken")
		if _, err := sarah.Withdraw(t.Context(), ""); err != nil {
			t.Fatal(err)
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
		if _, err := l.Withdraw(t.Context(), ""); err != nil {
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
