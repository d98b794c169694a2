package node_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// shortHold is how long a question waits in tests in which a node runs until the question expires. Within a week, a
// node does its housekeeping ten thousand times.
const shortHold = 7 * time.Hour

// holdShortly changes how long a question waits to shortHold, besides what configure does.
func holdShortly(configure func(*node.Config)) func(*node.Config) {
	return func(cfg *node.Config) {
		configure(cfg)
		cfg.HoldFor = shortHold
	}
}

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

// TestExpiringIsTold: the owner gets one notice in the last seventh of the time of a question, also over a restart, and
// none about a decided question.
func TestExpiringIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris, ann := mesh.Stranger("chris"), mesh.Stranger("ann")
		sarah := mesh.Node("sarah", holdShortly(mode(acl.Approval)))
		sarah.Start()
		must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusAccepted)
		decide(t, sarah, theAsk(t, sarah), acl.Approve)
		must(t, sarah.Post(ann.Sign(ann.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusAccepted)
		time.Sleep(5 * time.Hour)
		if got := noticesOf(t, sarah, "expiring"); len(got) != 0 {
			t.Errorf("two hours before: %q", got)
		}
		time.Sleep(75 * time.Minute)
		got := noticesOf(t, sarah, "expiring")
		if len(got) != 1 || !strings.Contains(got[0], `a message from "ann", until`) || strings.Contains(got[0], "hello") {
			t.Errorf("an hour before: %q, want one about ann", got)
		}
		again := mesh.Restart(sarah, holdShortly(mode(acl.Approval)))
		again.Start()
		time.Sleep(2 * time.Hour)
		if got := noticesOf(t, again, "expiring"); len(got) != 1 {
			t.Errorf("after the end: %q", got)
		}
		list, _, err := again.Audit().List(t.Context(), acl.AuditFilter{Kind: acl.AuditExpired}, 0, 10, time.Now())
		if err != nil || len(list) != 1 || list[0].Subject != string(ann.ID) {
			t.Errorf("audit = %+v, %v", list, err)
		}
	})
}

// TestExpiringKeyChange: the notice names the peer whose key changed, instead of its whole id.
func TestExpiringKeyChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		sarah := mesh.Node("sarah", holdShortly(open))
		sarah.Start()
		must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusOK)
		swapped := chris.Forger("chris's new key")
		card := meshtest.Card(t, "chris", "http://127.0.0.1:9/agentmesh").Tree.With("public_key", wire.Text(swapped.Key.PublicText()))
		if _, err := mesh.Directory().Renew(t.Context(), card, client.Credential("credential-of-chris"), swapped.Key); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		must(t, sarah.Post(swapped.Sign(swapped.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusUnauthorized)
		time.Sleep(6*time.Hour + 10*time.Minute)
		got := noticesOf(t, sarah, "expiring")
		if len(got) != 1 || !strings.Contains(got[0], `the key of "chris" changed, until`) {
			t.Errorf("notices = %q", got)
		}
	})
}

// TestHoldsEndInTime: a held message is settled within a minute after its question expires, whenever the question was
// opened, and also if it expired while no process ran.
func TestHoldsEndInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		sarah := mesh.Node("sarah", mode(acl.Approval))
		sarah.Start()
		states := func(m *meshtest.Member) (all []string) {
			t.Helper()
			items, _, err := m.Inbox(t.Context(), "", "", 10)
			if err != nil {
				t.Fatal(err)
			}
			list, _, err := m.Audit().List(t.Context(), acl.AuditFilter{Kind: acl.AuditExpired}, 0, 10, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			for _, item := range items {
				all = append(all, string(item.State))
			}
			slices.Sort(all)
			return append(all, fmt.Sprint(len(list), " in the audit log"))
		}
		hold := func(m *meshtest.Member, peer string, lasts time.Duration) {
			t.Helper()
			in := bridgedFrom(t, "toy:link/"+peer)("msg_one", hello)
			in.Deadline = time.Now().Add(lasts)
			if out, err := m.Accept(t.Context(), in); err != nil || !out.Held {
				t.Fatalf("%s: %+v, %v", peer, out, err)
			}
		}
		hold(sarah, "long", 48*time.Hour)
		time.Sleep(17 * time.Minute)
		hold(sarah, "short", 4*time.Minute)
		hold(sarah, "shorter", 3*time.Minute)
		time.Sleep(3*time.Minute - time.Second)
		equal(t, "before", states(sarah), []string{"held", "held", "held", "0 in the audit log"})
		time.Sleep(time.Minute)
		equal(t, "after the first end", states(sarah), []string{"expired", "held", "held", "1 in the audit log"})
		time.Sleep(time.Minute)
		equal(t, "after the second end", states(sarah), []string{"expired", "expired", "held", "2 in the audit log"})
		again := mesh.Restart(sarah, mode(acl.Approval))
		time.Sleep(72 * time.Hour)
		again.Start()
		time.Sleep(time.Second)
		equal(t, "after a rest", states(again), []string{"expired", "expired", "expired", "3 in the audit log"})
	})
}

// TestInterruptedItemExpires: if nobody decides in time whether a hook may run again, the message stays with the
// owner, who can answer it. Earlier the item kept its state forever.
func TestInterruptedItemExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		d := in("conv_one", chris.Draft("", wire.Deliver, hello))
		killed := killWhileRunning(t, mesh, nil, oneBody(func(to wire.AgentID) []byte { d.To = to; return chris.Sign(d) }))
		answers := func(context.Context, hook.Call) (hook.Answer, error) { return hook.Answer{}, nil }
		again := mesh.Restart(killed, holdShortly(configureHook(answers)))
		again.Start()
		synctest.Wait()
		theAsk(t, again)
		time.Sleep(shortHold + 15*time.Minute)
		if item := theItem(t, again); item.State != owner.ItemFailed || item.Note == "" {
			t.Errorf("item = %s %q, want %s and a note", item.State, item.Note, owner.ItemFailed)
		}
	})
}

// TestHandoffIsItsOwnKind: a known peer that asks for a person causes a notice of its own kind, so that it can wake the
// owner.
func TestHandoffIsItsOwnKind(t *testing.T) {
	mesh := meshtest.InMemory(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", open)
	must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Handoff, `{"action":"request_human","reason":"fire"}`))), http.StatusAccepted)
	if got := noticesOf(t, sarah, "handoff"); len(got) != 1 || strings.Contains(got[0], "fire") {
		t.Errorf("notices = %q", got)
	}
}
