package node_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestBlockedSenderRunsNothingAgain: a hook that a restart interrupted does not run again for a sender blocked since
// (AM-25).
func TestBlockedSenderRunsNothingAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		d := in("conv_one", chris.Draft("", wire.Deliver, hello))
		killed := killWhileRunning(t, mesh, nil, oneBody(func(to wire.AgentID) []byte { d.To = to; return chris.Sign(d) }))
		again := mesh.Restart(killed, configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
			t.Error("the hook ran for a blocked sender")
			return hook.Answer{}, nil
		}))
		again.Start()
		synctest.Wait()
		ask := theAsk(t, again)
		again.Call("POST", "/peers/"+string(chris.ID), map[string]string{"action": "block"}, nil)
		_, err := again.Asks().Decide(t.Context(), ask.ID, ask.Hash, acl.Approve, "test", time.Now())
		if !errors.Is(err, wire.ErrNotAllowed) {
			t.Errorf("run again for a blocked sender: %v, want %v", err, wire.ErrNotAllowed)
		}
		synctest.Wait()
	})
}

// TestConversationPages: the pages of a filtered list are full, and no conversation appears twice.
func TestConversationPages(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", open)
	for i := range 7 {
		d := chris.Draft(sarah.ID(), wire.Deliver, hello)
		must(t, meshtest.Post(t, sarah.URL, chris.Sign(d)), http.StatusOK)
		if i%2 == 1 {
			c := chris.Draft(sarah.ID(), wire.Deliver, closing)
			c.Conversation = d.Conversation
			must(t, meshtest.Post(t, sarah.URL, chris.Sign(c)), http.StatusOK)
		}
	}
	type page struct {
		Items []struct {
			ID string `json:"conversation_id"`
		} `json:"items"`
		Next uint64 `json:"next"`
	}
	var first, second page
	sarah.Call("GET", "/conversations?state=open&limit=3", nil, &first)
	if len(first.Items) != 3 || first.Next == 0 {
		t.Fatalf("first page = %+v, want 3 and a next", first)
	}
	sarah.Call("GET", "/conversations?state=open&limit=3&before="+strconv.FormatUint(first.Next, 10), nil, &second)
	if len(second.Items) != 1 || second.Next != 0 || second.Items[0] == first.Items[2] {
		t.Errorf("second page = %+v, want the last one", second)
	}
}

// TestBlockedAndAllowed: a block of the owner is stronger than the configured list, also in the list of peers.
func TestBlockedAndAllowed(t *testing.T) {
	mesh := meshtest.InMemory(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", func(cfg *node.Config) { cfg.Policy.Allow = []string{string(chris.ID)} })
	sarah.Call("POST", "/peers/"+string(chris.ID), map[string]string{"action": "block"}, nil)
	peers, err := sarah.OwnerAPI().ListPeers(t.Context(), "")
	if err != nil || len(peers) != 1 || peers[0].Standing != acl.Blocked {
		t.Errorf("peers = %+v, %v, want one that is blocked", peers, err)
	}
}

// TestBlockEndsTheOutbox (AM-50): what is queued for a peer does not leave after the owner blocked it, except the close
// with which a block refuses a held message (AM-35).
func TestBlockEndsTheOutbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		isDown, arrived := true, []string(nil)
		mesh := meshtest.Wired(t, func(_ string, w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			mu.Lock()
			defer mu.Unlock()
			if tree, err := wire.ParseObject(body); err == nil && !isDown {
				payload, _ := tree.Get("payload")
				arrived = append(arrived, payload.GetStr("action"))
			}
			panic(http.ErrAbortHandler)
		})
		ann, bob := mesh.Stranger("ann"), mesh.Stranger("bob")
		sarah := mesh.Node("sarah", mode(acl.Approval))
		sarah.Start()
		for _, to := range []*meshtest.Stranger{ann, bob} {
			mustSend(t, sarah.Node, outgoing(t, to.ID, wire.Deliver, hello), 0)
		}
		must(t, sarah.Post(ann.Sign(ann.Draft(sarah.ID(), wire.Handoff, `{"action":"request_human","reason":"talk"}`))), http.StatusAccepted)
		synctest.Wait()
		decide(t, sarah, theAsk(t, sarah), acl.Block)
		synctest.Wait()
		mu.Lock()
		isDown = false
		mu.Unlock()
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if closes := slices.Index(arrived, "close"); closes < 0 || !slices.Contains(arrived, "deliver") {
			t.Errorf("arrived: %v, want the close and the message to the other peer", arrived)
		}
		entries, _, err := sarah.Outbox(t.Context(), owner.SendFailed, "", 10)
		if err != nil || len(entries) != 1 || entries[0].To != ann.ID || entries[0].Action != "deliver" {
			t.Errorf("failed: %+v, %v, want the message to the blocked peer", entries, err)
		}
	})
}
