package node_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/wire"
)

const accepts = `{"action":"accept","selected_time":"2026-02-21T10:00:00-08:00"}`

// agreements counts the notices of agreed events.
func agreements(t *testing.T, m *meshtest.Member) (n int) {
	t.Helper()
	list, _, err := m.Notices.List(t.Context(), "", 100, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, notice := range list {
		if notice.Kind == notify.Agreed {
			n++
		}
	}
	return n
}

// TestNobodyAgreesWithItself: a peer that accepts its own proposal has no agreement of ours. The owner is not told of
// one, and the conversation that we opened is not closed as completed (AM-36, AM-39).
func TestNobodyAgreesWithItself(t *testing.T) {
	mesh := meshtest.New(t)
	ann := newPeer(t, mesh, "ann")
	ann.answers(ann.says(`{"action":"received"}`))
	sarah := mesh.Node("sarah", open)
	for name, ours := range map[string]bool{"a stranger's conversation": false, "ours": true} {
		out := node.Outgoing{To: ann.ID, Intent: wire.Schedule, Conv: "conv_stranger", Via: "owner"}
		if ours {
			out.Conv = "conv_ours"
			out.Payload, _ = wire.Parse([]byte(propose))
			mustSend(t, sarah.Node, out, 10*time.Second)
		}
		for _, payload := range []string{propose, accepts} {
			d := ann.Draft(sarah.ID(), wire.Schedule, payload)
			d.Conversation = out.Conv
			must(t, meshtest.Post(t, sarah.URL, ann.Sign(d)), http.StatusOK)
		}
		if n := agreements(t, sarah); n != 0 {
			t.Errorf("%s: the owner was told of %d agreements", name, n)
		}
		if got := convState(t, sarah.Store, out); got != conversations.Open {
			t.Errorf("%s: it is %s, want open", name, got)
		}
	}
}

// TestHookAgrees: an accept that the agent gives on the connection is an agreement as well (AM-36).
func TestHookAgrees(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", hooked(func(context.Context, hook.Call) (hook.Answer, error) {
		return says(t, accepts), nil
	}))
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Schedule, propose))), http.StatusOK)
	if n := agreements(t, sarah); n != 1 {
		t.Errorf("the owner was told of %d agreements, want 1", n)
	}
}

// TestHookCloses: a close that the agent gives on the connection closes the conversation here too (AM-38).
func TestHookCloses(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", hooked(func(context.Context, hook.Call) (hook.Answer, error) {
		return says(t, closing), nil
	}))
	d := chris.Draft(sarah.ID(), wire.Deliver, hello)
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(d)), http.StatusOK)
	if got := convState(t, sarah.Store, node.Outgoing{To: chris.ID, Conv: d.Conversation}); got != conversations.Completed {
		t.Errorf("conversation is %s, want completed", got)
	}
}
