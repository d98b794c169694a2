package node_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// TestKeptConversationsAreBounded: beyond MaxKept the oldest ended conversations are removed, and never an open one.
func TestKeptConversationsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		sarah := mesh.Node("sarah", func(cfg *node.Config) { unlimited(cfg); cfg.MaxKept = 3 })
		sarah.Start()
		for i, ends := range []bool{false, true, true, true, true, false} {
			payloads := []string{hello}
			if ends {
				payloads = append(payloads, closing)
			}
			for _, payload := range payloads {
				conv := wire.ConversationID(fmt.Sprintf("conv_%d", i))
				must(t, sarah.Post(chris.Sign(in(conv, chris.Draft(sarah.ID(), wire.Deliver, payload)))), http.StatusOK)
			}
		}
		time.Sleep(11 * time.Minute)
		var page struct {
			Items []struct {
				ID string `json:"conversation_id"`
			}
		}
		sarah.Call("GET", "/conversations", nil, &page)
		var ids []string
		for _, item := range page.Items {
			ids = append(ids, item.ID)
		}
		equal(t, "conversations", ids, []string{"conv_5", "conv_4", "conv_3", "conv_0"})
	})
}

// TestRetention (AM-23, AM-40): a conversation is kept for thirty days after its end, and a replay record as long as
// its conversation is open.
func TestRetention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		sarah := mesh.Node("sarah", unlimited)
		for _, payload := range []string{hello, closing} {
			must(t, sarah.Post(chris.Sign(in("conv_ended", chris.Draft(sarah.ID(), wire.Deliver, payload)))), http.StatusOK)
		}
		first := chris.Sign(in("conv_long", chris.Draft(sarah.ID(), wire.Deliver, hello)))
		answer := sarah.Post(first)
		for range 31 { // a message each day keeps it open
			time.Sleep(24*time.Hour - time.Second)
			mesh.Register("chris", meshtest.Card(t, "chris", "http://127.0.0.1:9/agentmesh"))
			must(t, sarah.Post(chris.Sign(in("conv_long", chris.Draft(sarah.ID(), wire.Deliver, hello)))), http.StatusOK)
		}
		if a := sarah.Ask("GET", "/conversations/conv_ended", nil); a.Status != http.StatusNotFound {
			t.Errorf("ended a month ago: %d %s", a.Status, a.Body)
		}
		if again := sarah.Post(first); string(again.Body) != string(answer.Body) {
			t.Errorf("repeat in an open conversation: %d %s", again.Status, again.Body)
		}
	})
}

// TestSenderHoldsAreBounded (AM-33): two hundred strangers may wait for the owner; the next one must come back later.
func TestSenderHoldsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		sarah := mesh.Node("sarah", func(cfg *node.Config) { cfg.Policy.Mode, cfg.Rates = acl.Approval, acl.Rates{} })
		post := func(i int) (bridge.Outcome, error) {
			return sarah.Accept(t.Context(), bridgedFrom(t, fmt.Sprintf("toy:link/stranger-%d", i))("msg_one", hello))
		}
		for i := range 200 {
			if out, err := post(i); err != nil || !out.Held {
				t.Fatalf("stranger %d: %+v, %v", i, out, err)
			}
		}
		before := state(t, sarah)
		if _, err := post(200); !errors.Is(err, wire.ErrHoldsFull) {
			t.Errorf("201st stranger: %v, want %v", err, wire.ErrHoldsFull)
		}
		if after := state(t, sarah); after != before {
			t.Errorf("state = %s, want %s", after, before)
		}
		decide(t, sarah, pendingAsks(t, sarah)[0], acl.Reject)
		if out, err := post(200); err != nil || !out.Held {
			t.Errorf("after a decision: %+v, %v", out, err)
		}
	})
}

// TestHookClosesWithoutStatus: a close without a status is not a valid answer, so the message stays with the owner.
func TestHookClosesWithoutStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		sarah := mesh.Node("sarah", configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
			return says(t, `{"action":"close"}`), nil
		}))
		must(t, sarah.Post(chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Deliver, hello)))), http.StatusAccepted)
		var got struct{ State string }
		if sarah.Call("GET", "/conversations/conv_one", nil, &got); got.State != "open" || theItem(t, sarah).State != owner.ItemFailed {
			t.Errorf("the conversation is %s, the item %+v", got.State, theItem(t, sarah))
		}
	})
}

// TestInboundRecords (AM-26): the records of a bridge change in the step that accepts a message. If no step accepts it,
// they do not change.
func TestInboundRecords(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name      string
		configure func(*node.Config)
		payload   string
		repeats   int
		want      string // value of the record afterwards
	}{
		{name: "inbox", payload: hello, want: "1"},
		{name: "repeats", payload: hello, repeats: 3, want: "1"},
		{name: "held", configure: mode(acl.Approval), payload: hello, want: "1"},
		{name: "hook", payload: hello, want: "1",
			configure: configureHook(func(context.Context, hook.Call) (hook.Answer, error) { return hook.Answer{}, nil })},
		{name: "hook that fails", payload: hello, want: "1",
			configure: configureHook(func(context.Context, hook.Call) (hook.Answer, error) { panic("oops") })},
		{name: "not on the allowlist", configure: mode(acl.Allowlist), payload: hello},
		{name: "over the limit", configure: func(cfg *node.Config) { cfg.Policy.Mode, cfg.Rates = acl.Open, acl.Rates{Total: 1} }, payload: hello},
		{name: "bad payload", payload: `{"action":"deliver"}`},
		{name: "close of nothing", payload: closing},
	}
	for _, c := range cases {
		synctest.Test(t, func(t *testing.T) {
			mesh := meshtest.InMemory(t)
			sarah := mesh.Node("sarah", func(cfg *node.Config) {
				open(cfg)
				if c.configure != nil {
					c.configure(cfg)
				}
			})
			if c.name == "over the limit" {
				other := mesh.Stranger("other")
				must(t, sarah.Post(other.Sign(other.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusOK)
			}
			from := bridgedFrom(t, "toy:link/someone")
			for i := range 1 + c.repeats {
				message := from("msg_one", c.payload)
				message.Records = []store.Change{{Record: store.Record{NS: "toy/seen", Key: "last", Body: fmt.Append(nil, i+1)}, IfRev: store.Any}}
				out, err := sarah.Accept(t.Context(), message)
				if (err == nil) != (c.want != "") || out.Duplicate != (i > 0) {
					t.Errorf("%s: %+v, %v", c.name, out, err)
				}
			}
			synctest.Wait()
			got, _ := sarah.Store.Records().Get(t.Context(), "toy/seen", "last", time.Now())
			if string(got.Body) != c.want {
				t.Errorf("%s: the record is %q, want %q", c.name, got.Body, c.want)
			}
		})
	}
}

// bridgedFrom returns a function that makes messages of a foreign peer.
func bridgedFrom(t *testing.T, address string) func(id wire.MessageID, payload string) bridge.Inbound {
	t.Helper()
	a, err := bridge.ParseAddress(address)
	if err != nil {
		t.Fatal(err)
	}
	return func(id wire.MessageID, payload string) bridge.Inbound {
		v, err := wire.Parse([]byte(payload))
		if err != nil {
			t.Fatal(err)
		}
		return bridge.Inbound{
			Principal: address, Peer: a.Pseudonym(), Address: address, Verified: bridge.VerifiedNone, MessageID: id,
			ConvID: "conv_one", Intent: wire.Deliver, Payload: v, Time: time.Now(), Received: time.Now(),
			Raw: []byte(payload), Digest: signing.Digest(v),
		}
	}
}
