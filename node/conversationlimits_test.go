package node_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestFullConversation: a conversation at its maximum size takes no more messages from either side, except a close.
func TestFullConversation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		sarah := mesh.Node("sarah", func(cfg *node.Config) { unlimited(cfg); cfg.MaxConvBytes = 8 << 10 })
		post := func(payload string) meshtest.Answer {
			return sarah.Post(chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Deliver, payload))))
		}
		must(t, post(hello), http.StatusOK)
		must(t, post(longPayload(8<<10)), http.StatusOK)
		before := state(t, sarah)
		if a := post(hello); a.Status != http.StatusTooManyRequests || a.Code() != wire.RateLimited || a.Header.Get("Retry-After") != "86400" {
			t.Errorf("to a full conversation: %d %s, Retry-After %q", a.Status, a.Body, a.Header.Get("Retry-After"))
		}
		out := node.Outgoing{To: chris.ID, Conv: "conv_one", Intent: wire.Deliver, Payload: parsePayload(t, hello), Via: "owner"}
		if _, err := sarah.Send(t.Context(), out, 0); !errors.Is(err, node.ErrConversationFull) {
			t.Errorf("sending in a full conversation: %v", err)
		}
		a := sarah.Ask("POST", "/reply", []byte(`{"conversation":"conv_one","payload":`+hello+`}`))
		if a.Status != http.StatusTooManyRequests || !goldentest.Says(t, "reply", string(a.Body)) {
			t.Errorf("the owner's reply: %d %s", a.Status, a.Body)
		}
		if after := state(t, sarah); after != before {
			t.Errorf("state = %s, want %s", after, before)
		}
		must(t, sarah.Post(chris.Sign(in("conv_two", chris.Draft(sarah.ID(), wire.Deliver, hello)))), http.StatusOK)
		must(t, post(closing), http.StatusOK)
	})
}

// TestKeptBytesAreBounded: beyond MaxBytes the oldest ended conversations are removed with everything that belongs to
// them. While open conversations alone exceed MaxBytes, strangers are refused, until silence has ended those
// conversations.
func TestKeptBytesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		sarah := mesh.Node("sarah", func(cfg *node.Config) { unlimited(cfg); cfg.MaxBytes = 50 << 10 })
		sarah.Start()
		post := func(conv wire.ConversationID, payload string) meshtest.Answer {
			mesh.Register("chris", meshtest.Card(t, "chris", "http://127.0.0.1:9/agentmesh"))
			return sarah.Post(chris.Sign(in(conv, chris.Draft(sarah.ID(), wire.Deliver, payload))))
		}
		for i, ends := range []bool{true, false, true, true} {
			conv := wire.ConversationID(fmt.Sprintf("conv_%d", i))
			must(t, post(conv, longPayload(16<<10)), http.StatusOK)
			if ends {
				must(t, post(conv, closing), http.StatusOK)
			}
		}
		time.Sleep(11 * time.Minute)
		equal(t, "conversations", listConversationIDs(t, sarah), []string{"conv_3", "conv_1"})
		items, _, err := sarah.Inbox(t.Context(), "", "", 10)
		if err != nil || len(items) != 2 {
			t.Errorf("inbox = %d items, %v, want 2", len(items), err)
		}

		for i := range 4 {
			must(t, post(wire.ConversationID(fmt.Sprintf("conv_open%d", i)), longPayload(16<<10)), http.StatusOK)
		}
		time.Sleep(10 * time.Minute)
		if a := post("conv_more", hello); a.Code() != wire.RateLimited || a.Header.Get("Retry-After") != "600" {
			t.Errorf("a stranger: %d %s, Retry-After %q", a.Status, a.Body, a.Header.Get("Retry-After"))
		}
		must(t, post("conv_open0", closing), http.StatusOK)
		time.Sleep(25 * time.Hour)
		must(t, post("conv_more", hello), http.StatusOK)
	})
}

// TestDeleteTakesOutboxEntries: an ended outbox entry is deleted with its conversation, and one that waits is still
// delivered.
func TestDeleteTakesOutboxEntries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var away atomic.Bool
		w := &wireTransport{deliver: func(context.Context, bridge.Delivery) (bridge.Delivered, error) {
			if away.Load() {
				return bridge.Delivered{}, &client.SendError{Retry: true}
			}
			return bridge.Delivered{}, nil
		}}
		sarah := meshtest.InMemory(t).Node("sarah", unlimited)
		sarah.Connect(bridge.Kind{Name: "wire"}, w)
		sarah.Start()
		entries := func() (list []string) {
			got, _, err := sarah.Outbox(t.Context(), "", "", 10)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range got {
				list = append(list, fmt.Sprint(l.Conversation, " ", l.State))
			}
			return list
		}
		mustSend(t, sarah.Node, to("chris", "conv_ended", "one"), time.Second)
		away.Store(true)
		mustSend(t, sarah.Node, to("chris", "conv_waits", "two"), time.Second)
		equal(t, "entries", entries(), []string{"conv_ended delivered", "conv_waits queued"})
		for _, conv := range []string{"conv_ended", "conv_waits"} {
			if got := sarah.Call("DELETE", "/conversations/"+conv, nil, nil); got != http.StatusNoContent {
				t.Fatalf("delete %s = %d", conv, got)
			}
		}
		equal(t, "entries", entries(), []string{"conv_waits queued"})
		away.Store(false)
		time.Sleep(10 * time.Second)
		equal(t, "deliveries", w.deliveries(), []string{"one", "two", "two"})
	})
}

// TestTranscriptPages: the pages of a transcript are bounded in entries and in bytes, and together they are complete.
func TestTranscriptPages(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		entries, size int
		pages         []int
	}{
		"short":         {entries: 20, size: 10, pages: []int{20}},
		"many":          {entries: 1100, size: 10, pages: []int{500, 500, 100}},
		"exactly":       {entries: 500, size: 10, pages: []int{500}},
		"large":         {entries: 40, size: 200 << 10, pages: []int{21, 19}},
		"one too large": {entries: 1, size: 5 << 20, pages: []int{1}},
	} {
		mesh := meshtest.InMemory(t)
		sarah := mesh.Node("sarah", open)
		key := store.ConvKey{Peer: "am_chris", ID: "conv_one"}
		fillTranscript(t, sarah.Store, key, c.entries, c.size)
		var pages []int
		for after, n := uint64(0), uint64(0); ; {
			var page struct {
				Entries    int    `json:"entries"`
				Next       uint64 `json:"next"`
				Transcript []struct {
					N uint64 `json:"n"`
				}
			}
			sarah.Call("GET", fmt.Sprintf("/conversations/conv_one?after=%d", after), nil, &page)
			pages = append(pages, len(page.Transcript))
			for _, e := range page.Transcript {
				if n++; e.N != n {
					t.Fatalf("%s: entry %d instead of %d", name, e.N, n)
				}
			}
			if after = page.Next; after == 0 {
				break
			}
		}
		equal(t, name, []string{fmt.Sprint(pages)}, []string{fmt.Sprint(c.pages)})
	}
}

// fillTranscript stores a conversation with a transcript.
func fillTranscript(t *testing.T, s store.Store, key store.ConvKey, entries, size int) {
	t.Helper()
	now := time.Now()
	book := conversations.Book{Steps: s.Steps()}
	err := book.Try(t.Context(), key, now, func(u *conversations.Unit) error {
		for i := range entries {
			u.Append(store.Entry{MessageID: fmt.Sprint("msg_", i), At: now, Raw: []byte(`"` + strings.Repeat("x", size) + `"`)})
		}
		return u.Record(conversations.Event{Kind: conversations.Received, At: now, Principal: key.Peer, Intent: wire.Deliver})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestHeldItemExpires: when the owner can no longer decide, the inbox item is expired.
func TestHeldItemExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		sarah := mesh.Node("sarah", holdShortly(mode(acl.Approval)))
		sarah.Start()
		must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusAccepted)
		time.Sleep(shortHold - time.Minute)
		if got := theItem(t, sarah).State; got != owner.ItemHeld {
			t.Errorf("the item is %s while its ask waits, want %s", got, owner.ItemHeld)
		}
		time.Sleep(12 * time.Minute)
		if got := theItem(t, sarah).State; got != owner.ItemExpired {
			t.Errorf("the item is %s, want %s", got, owner.ItemExpired)
		}
		if items, _, err := sarah.Inbox(t.Context(), owner.ItemExpired, "", 10); err != nil || len(items) != 1 {
			t.Errorf("expired items = %v, %v, want one", items, err)
		}
	})
}

func parsePayload(t testing.TB, payload string) wire.Value {
	t.Helper()
	v, err := wire.Parse([]byte(payload))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// longPayload returns a deliver payload with a body of size bytes.
func longPayload(size int) string {
	return `{"action":"deliver","message":{"body":"` + strings.Repeat("x", size) + `"}}`
}

// listConversationIDs lists the ids of the conversations, newest first.
func listConversationIDs(t *testing.T, m *meshtest.Member) (ids []string) {
	t.Helper()
	var page struct {
		Items []struct {
			ID string `json:"conversation_id"`
		}
	}
	m.Call("GET", "/conversations", nil, &page)
	for _, item := range page.Items {
		ids = append(ids, item.ID)
	}
	return ids
}
