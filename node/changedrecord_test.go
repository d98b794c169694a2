package node_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// edit replaces text in a stored record and keeps its checksum valid, like an attacker with write access to the
// database.
func edit(t *testing.T, m *meshtest.Member, ns, key, old, text string) {
	t.Helper()
	rec, err := m.Store.Records().Get(t.Context(), ns, key, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(rec.Body, []byte(old)) {
		t.Fatalf("%s %s has no %q: %s", ns, key, old, rec.Body)
	}
	rec.Body = bytes.ReplaceAll(rec.Body, []byte(old), []byte(text))
	if err := m.Store.Records().Apply(t.Context(), []store.Change{{Record: rec, IfRev: rec.Rev}}, time.Now()); err != nil {
		t.Fatal(err)
	}
}

// expectRefused approves the question, and expects a clear error, no effect, and a line in the log.
func expectRefused(t *testing.T, m *meshtest.Member, ask acl.Ask, log *bytes.Buffer) {
	t.Helper()
	_, err := m.Asks().Decide(t.Context(), ask.ID, ask.Hash, acl.Approve, "test", time.Now())
	if !goldentest.Refuses(t, "approve", err) {
		t.Errorf("approve = %v", err)
	}
	if now := theAsk(t, m); now.ID != ask.ID {
		t.Errorf("the open question is %s, want %s", now.ID, ask.ID)
	}
	if !strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), ask.ID) {
		t.Errorf("log = %q", log.String())
	}
}

// TestReleaseOfAnotherMessage changes the stored data between a question and its approval. Nothing is released, the
// question stays open, and it can still be rejected.
func TestReleaseOfAnotherMessage(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, m *meshtest.Member, ask acl.Ask, item string){
		"item": func(t *testing.T, m *meshtest.Member, _ acl.Ask, item string) {
			edit(t, m, "inbox", item, "ten cups", "all cups")
		},
		"question": func(t *testing.T, m *meshtest.Member, ask acl.Ask, _ string) {
			edit(t, m, "asks", ask.ID, "ten cups", "two cups")
		},
		"both": func(t *testing.T, m *meshtest.Member, ask acl.Ask, item string) {
			edit(t, m, "asks", ask.ID, "ten cups", "two cups")
			edit(t, m, "inbox", item, "ten cups", "two cups")
		},
		"digest": func(t *testing.T, m *meshtest.Member, ask acl.Ask, item string) {
			edit(t, m, "inbox", item, ask.Hash, strings.Repeat("0", len(ask.Hash)))
		},
		"digests": func(t *testing.T, m *meshtest.Member, ask acl.Ask, item string) {
			edit(t, m, "inbox", item, ask.Hash, strings.Repeat("0", len(ask.Hash)))
			edit(t, m, "asks", ask.ID, ask.Hash, strings.Repeat("0", len(ask.Hash)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			mesh := meshtest.New(t)
			chris := mesh.Stranger("chris")
			sarah := mesh.Node("sarah", func(c *node.Config) {
				mode(acl.Approval)(c)
				c.Logger = slog.New(slog.NewTextHandler(&log, nil))
			})
			payload := `{"action":"deliver","message":{"body":"ten cups"}}`
			must(t, meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, payload))), http.StatusAccepted)
			ask := theAsk(t, sarah)
			var body struct {
				Item string `json:"item"`
			}
			if err := json.Unmarshal(ask.Body, &body); err != nil {
				t.Fatal(err)
			}
			change(t, sarah, ask, body.Item)
			expectRefused(t, sarah, theAsk(t, sarah), &log)
			if item, err := sarah.Item(t.Context(), body.Item); err != nil || item.State != owner.ItemHeld {
				t.Errorf("the message is %s, %v", item.State, err)
			}
			if !strings.HasPrefix(name, "digest") { // another digest also invalidates the replay record, which holds the answer
				decide(t, sarah, theAsk(t, sarah), acl.Reject)
			}
		})
	}
}

// TestDispatchOfAnotherMessage changes a stored message of ours between the question and its approval: nothing is sent.
func TestDispatchOfAnotherMessage(t *testing.T) {
	var log bytes.Buffer
	mesh := meshtest.New(t)
	chris := mesh.Node("chris", nil)
	sarah := mesh.Node("sarah", func(c *node.Config) {
		c.Outbound.Mode = acl.Approval
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	payload := `{"action":"deliver","message":{"body":"ten cups"}}`
	if _, err := sarah.Send(t.Context(), outgoing(t, chris.ID(), "mesh.message", payload), 0); err != nil {
		t.Fatal(err)
	}
	ask := theAsk(t, sarah)
	edit(t, sarah, "asks", ask.ID, "ten cups", "all cups")
	expectRefused(t, sarah, ask, &log)
	if items, _, err := chris.Inbox(t.Context(), "", "", 10); err != nil || len(items) != 0 {
		t.Errorf("%d messages arrived, %v", len(items), err)
	}
}

// TestInterruptedRunOfAnotherMessage changes the stored data between the question about an interrupted hook and its
// approval. The hook does not run, the question stays open, and the message can still go to the inbox.
func TestInterruptedRunOfAnotherMessage(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, m *meshtest.Member, ask acl.Ask, item string){
		"item": func(t *testing.T, m *meshtest.Member, _ acl.Ask, item string) {
			edit(t, m, "inbox", item, "hello", "hullo")
		},
		"question": func(t *testing.T, m *meshtest.Member, ask acl.Ask, _ string) {
			edit(t, m, "asks", ask.ID, "hello", "hullo")
		},
		"both": func(t *testing.T, m *meshtest.Member, ask acl.Ask, item string) {
			edit(t, m, "asks", ask.ID, "hello", "hullo")
			edit(t, m, "inbox", item, "hello", "hullo")
		},
		"digest": func(t *testing.T, m *meshtest.Member, ask acl.Ask, item string) {
			edit(t, m, "inbox", item, ask.Hash, strings.Repeat("0", len(ask.Hash)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				mesh := meshtest.InMemory(t)
				chris := mesh.Stranger("chris")
				d := in("conv_one", chris.Draft("", wire.Deliver, hello))
				killed := killWhileRunning(t, mesh, nil, oneBody(func(to wire.AgentID) []byte { d.To = to; return chris.Sign(d) }))
				var seen callLog
				again := mesh.Restart(killed, configureHook(func(_ context.Context, c hook.Call) (hook.Answer, error) {
					seen.add(c)
					return says(t, hello), nil
				}, func(c *node.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) }))
				again.Start()
				synctest.Wait()
				change(t, again, theAsk(t, again), theItem(t, again).ID)
				expectRefused(t, again, theAsk(t, again), &log)
				synctest.Wait()
				if item := theItem(t, again); item.State != owner.ItemInterrupted || len(seen.all()) != 0 {
					t.Errorf("the message is %s, calls are %q", item.State, seen.all())
				}
				decide(t, again, theAsk(t, again), acl.Reject)
				if item := theItem(t, again); item.State != owner.ItemNew {
					t.Errorf("after a rejection the message is %s", item.State)
				}
			})
		})
	}
}

// TestChangeToAnotherKey: the owner's approval pins exactly the key that the question shows.
func TestChangeToAnotherKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		sarah := mesh.Node("sarah", func(c *node.Config) {
			open(c)
			c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		})
		must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusOK)
		swapped := chris.Forger("chris's new key")
		card := meshtest.Card(t, "chris", "http://127.0.0.1:9/agentmesh").Tree.With("public_key", wire.Text(swapped.Key.PublicText()))
		if _, err := mesh.Directory().Renew(t.Context(), card, client.Credential("credential-of-chris"), swapped.Key); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		must(t, sarah.Post(swapped.Sign(swapped.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusUnauthorized)
		ask := theAsk(t, sarah)
		edit(t, sarah, "asks", ask.ID, `"new":"`+ask.Hash, `"new":"`+meshtest.Key("mallory").Public().Fingerprint())
		expectRefused(t, sarah, theAsk(t, sarah), &log)
		decide(t, sarah, theAsk(t, sarah), acl.Reject)
	})
}
