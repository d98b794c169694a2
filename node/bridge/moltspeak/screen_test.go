package moltspeak

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/personal"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// agent is a hook.
type agent func(context.Context, hook.Call) (hook.Answer, error)

func (a agent) Handle(ctx context.Context, c hook.Call) (hook.Answer, error) { return a(ctx, c) }

// newAnsweringNode returns a node whose hook answers every message with personal data, and its mesh.
func newAnsweringNode(t *testing.T) (*meshtest.Member, bridge.Mesh) {
	t.Helper()
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
	return home, mesh
}

func newGrant() Grant {
	return Grant{
		ID: newID(), Peer: cat, Subject: "owner@home", Purpose: "sync", Scope: []string{personal.TypeEmail},
		Issued: time.Now().Unix(), Expires: time.Now().Add(time.Hour).Unix(),
	}
}

// TestBlockedAnswerIsNotSent: an answer of a hook that the bridge must not send does not stand in the transcript, and
// the owner gets the message with the reason. A repeat of the message gets the same refusal. After a consent, the
// hook's answer leaves (MS-40).
func TestBlockedAnswerIsNotSent(t *testing.T) {
	home, mesh := newAnsweringNode(t)
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
	ask := func(d message.Draft) (message.Message, node.Item) {
		m, _ := r.sayBoxed(cat, d)
		items, _, err := home.Inbox(t.Context(), "", "", 10)
		if err != nil || len(items) == 0 {
			t.Fatalf("the inbox has %d messages, %v", len(items), err)
		}
		return m, items[len(items)-1]
	}
	blocked := r.draft(cat, message.OpQuery, plainQuery)
	m, item := ask(blocked)
	if m.P.GetStr("code") != string(message.CodeConsent) {
		t.Errorf("the peer got %s", m.P.JSON())
	}
	if item.State != owner.ItemFailed || !strings.Contains(item.Note, personal.TypeEmail) || strings.Contains(item.Note, "jane") {
		t.Errorf("the owner has it as %s: %s", item.State, item.Note)
	}
	if sent := transcript(item); len(sent) != 0 {
		t.Errorf("the transcript has %s", sent)
	}
	if repeat, _ := r.sayBoxed(cat, blocked); repeat.P.GetStr("code") != string(message.CodeConsent) {
		t.Errorf("a repeat of the message got %s", repeat.P.JSON())
	}
	g := newGrant()
	if err := r.b.records.Apply(t.Context(), []store.Change{g.change(store.Absent)}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if m, item = ask(r.draft(cat, message.OpQuery, plainQuery)); m.Class != message.PII || item.State != owner.ItemAnswered || len(transcript(item)) != 1 {
		t.Errorf("with a consent: %s, the owner has it as %s, the transcript has %v", m.P.JSON(), item.State, transcript(item))
	}
}

// meetingMesh is a node whose answers wait until two have come.
type meetingMesh struct {
	bridge.Mesh
	meet sync.WaitGroup
}

func (m *meetingMesh) Accept(ctx context.Context, in bridge.Inbound) (bridge.Outcome, error) {
	out, err := m.Mesh.Accept(ctx, in)
	m.meet.Done()
	m.meet.Wait()
	return out, err
}

// TestConsentForOneOfTwoAnswers: if two hooks answer at once with personal data and the peer has a consent for one
// message, the owner has one message as answered, and that answer leaves (MS-42).
func TestConsentForOneOfTwoAnswers(t *testing.T) {
	home, mesh := newAnsweringNode(t)
	meeting := &meetingMesh{Mesh: mesh}
	r := newRig(t, meeting, home.Store, nil)
	r.shake(cat)
	g := newGrant()
	g.Constraints.OneTime = true
	if err := r.b.records.Apply(t.Context(), []store.Change{g.change(store.Absent)}, time.Now()); err != nil {
		t.Fatal(err)
	}
	meeting.meet.Add(2)
	var left atomic.Int64
	var asks sync.WaitGroup
	for range 2 {
		d := r.draft(cat, message.OpQuery, plainQuery)
		asks.Go(func() {
			if m, _ := r.sayBoxed(cat, d); m.Class == message.PII {
				left.Add(1)
			}
		})
	}
	asks.Wait()
	items, _, err := home.Inbox(t.Context(), "", "", 10)
	if err != nil || len(items) != 2 {
		t.Fatalf("the inbox has %d messages, %v", len(items), err)
	}
	if first, second := items[0].State, items[1].State; left.Load() != 1 || first == second || first != owner.ItemAnswered && second != owner.ItemAnswered {
		t.Errorf("%d answers left, the owner has %s and %s", left.Load(), first, second)
	}
}

// TestRetryUsesOneConsent: another attempt at a message uses the consent of the first attempt, even if the owner has
// given another one meanwhile.
func TestRetryUsesOneConsent(t *testing.T) {
	r, _ := newTestRig(t, nil)
	now := time.Now()
	give := func(id string, oneTime bool) {
		g := newGrant()
		g.ID, g.Constraints.OneTime = id, oneTime
		if err := r.b.records.Apply(t.Context(), []store.Change{g.change(store.Absent)}, now); err != nil {
			t.Fatal(err)
		}
	}
	attempt := func() string {
		g, uses, err := r.b.grants.findCovering(t.Context(), cat, []string{personal.TypeEmail}, "m", now)
		if err != nil || g == nil {
			t.Fatalf("no consent covers the message: %v", err)
		}
		if err := r.b.records.Apply(t.Context(), uses, now); err != nil {
			t.Fatal(err)
		}
		return g.ID
	}
	give("2", true)
	for _, oneTime := range []bool{true, false} {
		if used := attempt(); used != "2" {
			t.Errorf("the message uses consent %s, want 2", used)
		}
		give(map[bool]string{true: "1", false: "3"}[oneTime], oneTime)
	}
	if used := attempt(); used != "2" {
		t.Errorf("the message uses consent %s, want 2", used)
	}
}
