package moltspeak

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/personal"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// agent is a hook.
type agent func(context.Context, hook.Call) (hook.Answer, error)

func (a agent) Handle(ctx context.Context, c hook.Call) (hook.Answer, error) { return a(ctx, c) }

// TestBlockedAnswerIsNotSent: an answer of a hook that the bridge must not send does not stand in the transcript, and the
// owner gets the message with the reason. After a consent, the hook's answer leaves (MS-40).
func TestBlockedAnswerIsNotSent(t *testing.T) {
	home := meshtest.New(t).Node("home", func(c *node.Config) {
		c.Policy = acl.Policy{Mode: acl.Open}
		c.Routes = []node.Route{{Pattern: "*", Name: "agent", Handler: agent(func(context.Context, hook.Call) (hook.Answer, error) {
			answer := wire.Obj(wire.TextField("action", "answer"), wire.TextField("answer", "jane.doe@example.com"))
			return hook.Answer{Payload: &answer}, nil
		})}}
	})
	mesh, err := home.Attach(LinkKind(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, mesh, home.Store, nil)
	r.shake(cat)
	transcript := func(item node.Item) (sent []string) {
		entries, err := home.Store.Steps().Transcript(t.Context(), store.ConvKey{Peer: string(item.Peer), ID: string(item.Conversation)}, 0, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Out {
				sent = append(sent, string(e.Raw))
			}
		}
		return sent
	}
	ask := func() (message.Message, node.Item) {
		m, _ := r.sayBoxed(cat, r.draft(cat, message.OpQuery, plainQuery))
		items, _, err := home.Inbox(t.Context(), "", "", 10)
		if err != nil || len(items) == 0 {
			t.Fatalf("the inbox has %d messages, %v", len(items), err)
		}
		return m, items[len(items)-1]
	}
	m, item := ask()
	if m.P.GetStr("code") != string(message.CodeConsent) {
		t.Errorf("the peer got %s", m.P.JSON())
	}
	if item.State != node.ItemFailed || !strings.Contains(item.Note, personal.TypeEmail) || strings.Contains(item.Note, "jane") {
		t.Errorf("the owner has it as %s: %s", item.State, item.Note)
	}
	if sent := transcript(item); strings.Contains(strings.Join(sent, "\n"), "jane") {
		t.Errorf("the transcript has %s", sent)
	}
	g := Grant{ID: newID(), Peer: cat, Subject: "owner@home", Purpose: "sync", Issued: time.Now().Unix(), Expires: time.Now().Add(time.Hour).Unix(), Scope: []string{personal.TypeEmail}}
	if err := r.b.records.Apply(t.Context(), []store.Change{g.change(store.Absent)}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if m, item = ask(); m.Class != message.PII || item.State != node.ItemAnswered || len(transcript(item)) != 1 {
		t.Errorf("with a consent: %s, the owner has it as %s, the transcript has %v", m.P.JSON(), item.State, transcript(item))
	}
}
