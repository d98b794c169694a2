package node_test

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

const acceptPayload = `{"action":"accept","selected_time":"2026-02-21T10:00:00-08:00"}`

// countAgreed counts the notices of agreed events.
func countAgreed(t *testing.T, m *meshtest.Member) (n int) {
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

// TestCloseOvertakesAccept: the peer accepts on the connection of our proposal, and its close of the conversation comes
// before this reply, or later. Both sides agree, our hook learns of it, and its accept, which would only confirm what is
// agreed, does not leave.
func TestCloseOvertakesAccept(t *testing.T) {
	for name, overtakes := range map[string]bool{"before": true, "later": false} {
		t.Run(name, func(t *testing.T) { closeAndAccept(t, overtakes) })
	}
}

func closeAndAccept(t *testing.T, overtakes bool) {
	mesh := meshtest.New(t)
	chris := newPeer(t, mesh, "chris")
	var ran atomic.Int32
	sarah := mesh.Node("sarah", func(cfg *node.Config) {
		open(cfg)
		cfg.Routes = []node.Route{{Pattern: "mesh.schedule", Name: "counters", Replies: true, Handler: handler(func(_ context.Context, c hook.Call) (hook.Answer, error) {
			ran.Add(1)
			if c.Message.Payload.GetStr("action") == "accept" {
				return hook.Answer{Payload: new(parsePayload(t, `{"action":"accept"}`))}, nil
			}
			return hook.Answer{Async: true}, nil
		})}}
	})
	must(t, sarah.Post(chris.Sign(in("conv_1", chris.Draft(sarah.ID(), wire.Schedule, proposeSeveral)))), http.StatusAccepted)
	chris.answers(func(w http.ResponseWriter, m wire.Message) {
		if overtakes {
			must(t, sarah.Post(chris.Sign(chris.reply(m, closing))), http.StatusOK)
		}
		chris.says(`{"action":"accept"}`)(w, m)
	})
	out := outgoing(t, chris.ID, wire.Schedule, `{"action":"counter","event":{"selected_time":"2036-02-21T10:00:00-08:00","duration":"45m"}}`)
	out.Conv = "conv_1"
	mustSend(t, sarah.Node, out, 10*time.Second)
	v := showConversation(t, sarah, "conv_1")
	if (v.State == conversations.Completed) != overtakes || v.Agreement == nil || len(agreedEvents(t, sarah)) != 1 || countAgreed(t, sarah) != 1 {
		t.Errorf("%s, agreed on %+v, events %v, %d notices", v.State, v.Agreement, agreedEvents(t, sarah), countAgreed(t, sarah))
	}
	waitFor(t, "the hook has run", func() bool { return ran.Load() == 2 && len(runningItems(t, sarah)) == 0 })
	if items, _, err := sarah.Inbox(t.Context(), owner.ItemFailed, "", 10); len(items) != 0 || err != nil {
		t.Errorf("failed: %+v, %v", items, err)
	}
	if entries, _, err := sarah.Outbox(t.Context(), "", "", 10); len(entries) != 1 || err != nil {
		t.Errorf("sent: %+v, %v", entries, err)
	}
}

// TestNobodyAgreesWithItself: a peer that accepts its own proposal has no agreement with us. The owner gets no notice
// of an agreement, and a conversation that we opened is not closed as completed (AM-36, AM-39).
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
		for _, payload := range []string{propose, acceptPayload} {
			d := ann.Draft(sarah.ID(), wire.Schedule, payload)
			d.Conversation = out.Conv
			must(t, meshtest.Post(t, sarah.URL, ann.Sign(d)), http.StatusOK)
		}
		if n := countAgreed(t, sarah); n != 0 {
			t.Errorf("%s: the owner got %d notices of agreements", name, n)
		}
		if got := convState(t, sarah.Store, out); got != conversations.Open {
			t.Errorf("%s: the conversation is %s, want open", name, got)
		}
	}
}

// TestHookAgrees: an accept by a hook on the connection is an agreement as well (AM-36).
func TestHookAgrees(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
		return says(t, acceptPayload), nil
	}))
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Schedule, propose))), http.StatusOK)
	if n := countAgreed(t, sarah); n != 1 {
		t.Errorf("the owner got %d notices of agreements, want 1", n)
	}
}

// TestAgreedTimeWithoutZone: the notice of an agreed event shows a time without a zone as the peers wrote it, because
// nobody knows its instant.
func TestAgreedTimeWithoutZone(t *testing.T) {
	const proposal = `{"action":"propose","event":{"title":"Coffee","proposed_times":["2026-02-21T10:00"],"duration":"30m"}}`
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
		return says(t, `{"action":"accept","selected_time":"2026-02-21T10:00"}`), nil
	}))
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Schedule, proposal))), http.StatusOK)
	list, _, err := sarah.Notices.List(t.Context(), "", 10, time.Now())
	if err != nil || len(list) != 1 || list[0].Kind != notify.Agreed || !strings.HasPrefix(list[0].Text, "agreed by your agent, 1 turn, 0s: 2026-02-21T10:00 (30m)") {
		t.Errorf("notices = %+v, %v, want the time as it was written", list, err)
	}
}

// TestHookCloses: a close by a hook on the connection closes the conversation on our side too (AM-38).
func TestHookCloses(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", configureHook(func(context.Context, hook.Call) (hook.Answer, error) {
		return says(t, closing), nil
	}))
	d := chris.Draft(sarah.ID(), wire.Deliver, hello)
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(d)), http.StatusOK)
	if got := convState(t, sarah.Store, node.Outgoing{To: chris.ID, Conv: d.Conversation}); got != conversations.Completed {
		t.Errorf("conversation is %s, want completed", got)
	}
}

// TestNoticeNamesThePeer: a notice has the name that a stranger gives itself in quotes, and the beginning of its id.
// The whole id is in a member of its own.
func TestNoticeNamesThePeer(t *testing.T) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", func(cfg *node.Config) { cfg.Policy.Mode = acl.Approval })
	chris := mesh.Stranger("chris")
	meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, `{"action":"deliver","message":{"body":"hello"}}`)))
	list, _, err := sarah.Notices.List(t.Context(), "", 10, time.Now())
	if want := `"chris" (` + string(chris.ID[:11]) + `…)`; err != nil || len(list) != 1 || list[0].Text != want || list[0].Peer != chris.ID || list[0].Ask == "" {
		t.Errorf("notices = %+v, %v, want the text %s", list, err, want)
	}
	shown := owner.Notice{Notice: list[0]}
	if shown.Detail() != "" {
		t.Errorf("the page repeats the peer: %q", shown.Detail())
	}
}
