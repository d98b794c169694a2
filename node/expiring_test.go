package node_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

func noticesOf(t *testing.T, m *meshtest.Member, kind string) (texts []string) {
	t.Helper()
	list, _, err := m.Notices.List(t.Context(), "", 1000, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range list {
		if n.Kind == kind {
			texts = append(texts, n.Title+": "+n.Text)
		}
	}
	return texts
}

// TestExpiringIsTold: a day before nobody can decide any more the owner is told, once, also over a restart; what was
// decided is not worth a word.
func TestExpiringIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris, ann := mesh.Stranger("chris"), mesh.Stranger("ann")
		sarah := mesh.Node("sarah", mode(acl.Approval))
		sarah.Start()
		must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusAccepted)
		decide(t, sarah, theAsk(t, sarah), acl.Approve)
		must(t, sarah.Post(ann.Sign(ann.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusAccepted)
		time.Sleep(5 * 24 * time.Hour)
		if got := noticesOf(t, sarah, "expiring"); len(got) != 0 {
			t.Errorf("two days before: %q", got)
		}
		time.Sleep(25 * time.Hour)
		got := noticesOf(t, sarah, "expiring")
		if len(got) != 1 || !strings.Contains(got[0], string(ann.ID)) || strings.Contains(got[0], "hello") {
			t.Errorf("a day before: %q, want one about ann", got)
		}
		again := mesh.Restart(sarah, mode(acl.Approval))
		again.Start()
		time.Sleep(30 * time.Hour)
		if got := noticesOf(t, again, "expiring"); len(got) != 1 {
			t.Errorf("after the end: %q", got)
		}
		list, _, err := again.Audit().List(t.Context(), acl.AuditFilter{Kind: acl.AuditExpired}, 0, 10, time.Now())
		if err != nil || len(list) != 1 || list[0].Subject != string(ann.ID) {
			t.Errorf("audit = %+v, %v", list, err)
		}
	})
}

// TestInterruptedItemExpires: when nobody decides whether a hook runs again, the message stays with the owner, who can
// answer it. The item kept its state for ever.
func TestInterruptedItemExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		d := in("conv_one", chris.Draft("", wire.Deliver, hello))
		killed := killedAtWork(t, mesh, nil, one(func(to wire.AgentID) []byte { d.To = to; return chris.Sign(d) }))
		again := mesh.Restart(killed, hooked(func(context.Context, node.Call) (node.HookAnswer, error) { return node.HookAnswer{}, nil }))
		again.Start()
		synctest.Wait()
		theAsk(t, again)
		time.Sleep(7*24*time.Hour + 15*time.Minute)
		if item := theItem(t, again); item.State != node.ItemFailed || item.Note == "" {
			t.Errorf("item = %s %q, want %s and a note", item.State, item.Note, node.ItemFailed)
		}
	})
}

// TestHandoffIsItsOwnKind: who may write and asks for a person is told apart, so that the owner can be woken for it.
func TestHandoffIsItsOwnKind(t *testing.T) {
	mesh := meshtest.InMemory(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", open)
	must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Handoff, `{"action":"request_human","reason":"fire"}`))), http.StatusAccepted)
	if got := noticesOf(t, sarah, "handoff"); len(got) != 1 || strings.Contains(got[0], "fire") {
		t.Errorf("notices = %q", got)
	}
}
