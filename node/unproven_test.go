package node_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/registration"
	"github.com/agentmesh/agentmesh/node/wire"
)

// newSquatter returns a peer with its own key that a directory lists under the id of victim. The directory of the test
// allows that; ours refuses it (see TestDerivedIDIsReserved).
func newSquatter(t *testing.T, mesh *meshtest.Mesh, name, victim string) *peer {
	t.Helper()
	p := newPeer(t, mesh, name)
	own, err := mesh.Directory().Card(t.Context(), p.ID)
	if err != nil {
		t.Fatal(err)
	}
	p.ID = meshtest.Key(victim).Public().AgentID()
	tree := own.With("agent_id", wire.Text(string(p.ID)))
	card, err := wire.ParseCard(tree, wire.CardRules{AllowHTTP: func(string) bool { return true }})
	if err != nil {
		t.Fatal(err)
	}
	mesh.Import(name, card)
	p.answers(p.says(`{"action":"received"}`))
	return p
}

// useDirectories configures a node that uses the directories of meshes in their order.
func useDirectories(meshes ...*meshtest.Mesh) func(*node.Config) {
	return func(cfg *node.Config) {
		open(cfg)
		cfg.Directories = nil
		for _, m := range meshes {
			cfg.Directories = append(cfg.Directories, m.Directory())
		}
	}
}

// shownUnproven returns the unproven key that a question shows.
func shownUnproven(t *testing.T, ask acl.Ask) bridge.UnprovenKey {
	t.Helper()
	var body struct {
		Unproven  bridge.UnprovenKey `json:"unproven"`
		Recipient struct {
			Unproven bridge.UnprovenKey `json:"unproven"`
		} `json:"recipient"`
	}
	if err := json.Unmarshal(ask.Body, &body); err != nil {
		t.Fatal(err)
	}
	if body.Unproven.Fingerprint != "" {
		return body.Unproven
	}
	return body.Recipient.Unproven
}

// TestSendToSquattedID: before the first message to a derived id that does not lead to the card's key, the owner is
// asked, even if every rule permits the message (AM-2, THREATS 34). The owner accepts exactly the key that was shown.
func TestSendToSquattedID(t *testing.T) {
	t.Parallel()
	for _, choice := range []acl.Choice{acl.Approve, acl.Reject} {
		mesh := meshtest.New(t)
		mallory := newSquatter(t, mesh, "mallory", "ann")
		chris := mesh.Node("chris", func(cfg *node.Config) {
			open(cfg)
			cfg.Outbound = node.OutboundPolicy{Mode: acl.Allowlist, Allow: []string{string(mallory.ID)}}
		})
		out := mallory.message(t, "for ann")
		sent := mustSend(t, chris.Node, out, 10*time.Second)
		if sent.State != owner.SendHeld || sent.Err == nil || !strings.Contains(sent.Err.Message, "somebody else may have registered") ||
			!strings.Contains(sent.Hint, "agentmesh approvals approve "+sent.Ask) {
			t.Fatalf("sent = %+v, %+v", sent, sent.Err)
		}
		if n := len(mallory.got()); n != 0 {
			t.Errorf("%d messages left before the owner decided", n)
		}
		ask := theAsk(t, chris)
		shown := shownUnproven(t, ask)
		if ask.Kind != "outgoing" || ask.Rule != owner.RuleUnproven || shown.Fingerprint != mallory.Key.Public().Fingerprint() || shown.Directory != mesh.URL {
			t.Errorf("ask %s by %s, unproven %+v", ask.Kind, ask.Rule, shown)
		}
		decide(t, chris, ask, choice)
		if choice == acl.Reject {
			if again := mustSend(t, chris.Node, out, 10*time.Second); again.State != owner.SendHeld || len(mallory.got()) != 0 {
				t.Errorf("after a refusal: %+v, %d messages left", again, len(mallory.got()))
			}
			continue
		}
		waitFor(t, "the message leaves", func() bool { return len(mallory.got()) == 1 })
		if again := mustSend(t, chris.Node, out, 10*time.Second); again.State != owner.SendDelivered {
			t.Errorf("after the approval: %+v", again)
		}
		var peers struct {
			Items []struct {
				ID       string
				Unproven bool
			}
		}
		if chris.Call("GET", "/peers", nil, &peers); len(peers.Items) != 1 || !peers.Items[0].Unproven {
			t.Errorf("peers = %+v, want the key shown as unproven", peers)
		}
	}
}

// TestUnprovenKeyChangesBeforeApproval: an approval of one key does not accept another key that replaced it meanwhile.
func TestUnprovenKeyChangesBeforeApproval(t *testing.T) {
	t.Parallel()
	mesh := meshtest.New(t)
	mallory := newSquatter(t, mesh, "mallory", "ann")
	chris := mesh.Node("chris", open)
	mustSend(t, chris.Node, mallory.message(t, "for ann"), 10*time.Second)
	ask := theAsk(t, chris)
	card := meshtest.Card(t, "ann", "http://127.0.0.1:9/agentmesh").Tree.With("public_key", wire.Text(meshtest.Key("eve").PublicText()))
	owner := registration.Credential(client.Credential("credential-of-mallory"), mesh.Directory())
	if _, err := mesh.Directory().Renew(t.Context(), card, owner, meshtest.Key("eve")); err != nil {
		t.Fatal(err)
	}
	chris = mesh.Restart(chris, open) // a restart empties the card cache, like the end of its ten minutes
	_, err := chris.Asks().Decide(t.Context(), ask.ID, ask.Hash, acl.Approve, "test", time.Now())
	if !errors.Is(err, node.ErrRecipientChanged) || len(mallory.got()) != 0 {
		t.Errorf("approve = %v, %d messages left", err, len(mallory.got()))
	}
}

// TestSquattedSenderIsHeld: a message of a squatter waits for the owner in every mode, even under an allowed id. The
// squatter's key is not pinned before, and a rejection does not affect the agent whose id it is.
func TestSquattedSenderIsHeld(t *testing.T) {
	t.Parallel()
	for name, configure := range map[string]func(*node.Config, wire.AgentID){
		"open": func(cfg *node.Config, _ wire.AgentID) { cfg.Policy.Mode = acl.Open },
		"allowlist": func(cfg *node.Config, id wire.AgentID) {
			cfg.Policy = acl.Policy{Mode: acl.Allowlist, Allow: []string{string(id)}}
		},
		"approval": func(cfg *node.Config, _ wire.AgentID) { cfg.Policy.Mode = acl.Approval },
	} {
		for _, choice := range []acl.Choice{acl.Approve, acl.Reject} {
			foreign, honest := meshtest.New(t), meshtest.New(t)
			mallory := newSquatter(t, foreign, "mallory", "ann")
			chris := foreign.Node("chris", func(cfg *node.Config) { useDirectories(foreign, honest)(cfg); configure(cfg, mallory.ID) })
			write := func(s *meshtest.Stranger) meshtest.Answer {
				return meshtest.Post(t, chris.URL, s.Sign(s.Draft(chris.ID(), wire.Deliver, hello)))
			}
			must(t, write(mallory.Stranger), http.StatusAccepted)
			ask := theAsk(t, chris)
			if shown := shownUnproven(t, ask); ask.Kind != "message" || ask.Rule != owner.RuleUnproven || shown.Fingerprint != mallory.Key.Public().Fingerprint() {
				t.Errorf("%s: ask %s by %s, unproven %+v", name, ask.Kind, ask.Rule, shown)
			}
			decide(t, chris, ask, choice)
			if choice == acl.Approve {
				if name != "approval" { // in approval mode the next message waits like everybody's
					must(t, write(mallory.Stranger), http.StatusOK)
				}
				continue
			}
			ann := honest.Stranger("ann")
			chris = foreign.Restart(chris, func(cfg *node.Config) { useDirectories(foreign, honest)(cfg); configure(cfg, ann.ID) })
			want := http.StatusOK
			if name == "approval" {
				want = http.StatusAccepted
			}
			must(t, write(ann), want)
		}
	}
}

// TestProvenCardWins: of several directories, the one whose card proves the id counts, whatever their order. A
// squatter in the first directory does not hide the agent in the second (AM-86).
func TestProvenCardWins(t *testing.T) {
	t.Parallel()
	foreign, honest := meshtest.New(t), meshtest.New(t)
	mallory := newSquatter(t, foreign, "mallory", "ann")
	ann := newPeer(t, honest, "ann")
	ann.answers(ann.says(`{"action":"received"}`))
	for i, order := range [][]*meshtest.Mesh{{foreign, honest}, {honest, foreign}} {
		chris := foreign.Node([]string{"chris", "carl"}[i], useDirectories(order...))
		if sent := mustSend(t, chris.Node, ann.message(t, "hello"), 10*time.Second); sent.State != owner.SendDelivered {
			t.Errorf("order %d: sent = %+v %+v", i, sent, sent.Err)
		}
		if len(ann.got()) != i+1 || len(mallory.got()) != 0 {
			t.Errorf("order %d: ann got %d, mallory %d", i, len(ann.got()), len(mallory.got()))
		}
		sarah := foreign.Node([]string{"sarah", "sam"}[i], useDirectories(order...)) // has not met ann
		must(t, meshtest.Post(t, sarah.URL, ann.Sign(ann.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusOK)
		must(t, meshtest.Post(t, sarah.URL, mallory.Sign(mallory.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusUnauthorized)
	}
}

// TestPinsOfBeforeStay: messages to and from an agent that was pinned before ids had to lead to keys work as before.
func TestPinsOfBeforeStay(t *testing.T) {
	t.Parallel()
	mesh := meshtest.New(t)
	mallory := newSquatter(t, mesh, "mallory", "ann")
	chris := mesh.Node("chris", open)
	if status := chris.Call("POST", "/peers/"+string(mallory.ID), map[string]string{"action": "repin", "fingerprint": "ed25519:00"}, nil); status != http.StatusConflict {
		t.Errorf("repin of an unknown key = %d", status)
	}
	repin := map[string]string{"action": "repin", "fingerprint": mallory.Key.Public().Fingerprint()}
	if status := chris.Call("POST", "/peers/"+string(mallory.ID), repin, nil); status != http.StatusOK {
		t.Fatalf("repin = %d", status)
	}
	chris = mesh.Restart(chris, open)
	if sent := mustSend(t, chris.Node, mallory.message(t, "hello"), 10*time.Second); sent.State != owner.SendDelivered {
		t.Errorf("sent = %+v %+v", sent, sent.Err)
	}
	must(t, meshtest.Post(t, chris.URL, mallory.Sign(mallory.Draft(chris.ID(), wire.Deliver, hello))), http.StatusOK)
}

// TestOutboxEntryToSquattedID: a message that was queued while no directory answered does not go to a squatter either.
// It fails with a hint.
func TestOutboxEntryToSquattedID(t *testing.T) {
	t.Parallel()
	mesh := meshtest.New(t)
	mallory := newSquatter(t, mesh, "mallory", "ann")
	line := &cutLine{}
	line.off.Store(true)
	chris := mesh.Node("chris", func(cfg *node.Config) {
		open(cfg)
		cfg.Directories = []*client.Directory{client.NewDirectory(mesh.URL, cfg.HTTP, line)}
	})
	if sent := mustSend(t, chris.Node, mallory.message(t, "for ann"), 0); sent.State != owner.SendQueued {
		t.Fatalf("sent = %+v", sent)
	}
	line.off.Store(false)
	waitFor(t, "the entry fails", func() bool { return theEntry(t, chris.Node).State == owner.SendFailed })
	if e := theEntry(t, chris.Node); e.Err == nil || !strings.Contains(e.Hint, "peers repin") || len(mallory.got()) != 0 {
		t.Errorf("entry = %+v %+v, %d messages left", e, e.Err, len(mallory.got()))
	}
}

// TestSquatterAndOwnerWaitApart: messages of an agent are not decided together with those of a squatter under its id.
func TestSquatterAndOwnerWaitApart(t *testing.T) {
	t.Parallel()
	foreign, honest := meshtest.New(t), meshtest.New(t)
	mallory := newSquatter(t, foreign, "mallory", "ann")
	configure := func(cfg *node.Config) { useDirectories(foreign, honest)(cfg); cfg.Policy.Mode = acl.Approval }
	chris := foreign.Node("chris", configure)
	must(t, meshtest.Post(t, chris.URL, mallory.Sign(mallory.Draft(chris.ID(), wire.Deliver, hello))), http.StatusAccepted)
	ann := honest.Stranger("ann")
	chris = foreign.Restart(chris, configure) // a restart empties the card cache, like the end of its ten minutes
	must(t, meshtest.Post(t, chris.URL, ann.Sign(ann.Draft(chris.ID(), wire.Deliver, hello))), http.StatusAccepted)
	asks := pendingAsks(t, chris)
	if len(asks) != 2 || asks[0].Rule != owner.RuleUnproven || asks[1].Rule != "access.mode=approval" {
		t.Fatalf("asks: %+v", asks)
	}
	// The agent's key is pinned now, so the squatter's key cannot be accepted any more.
	if _, err := chris.Asks().Decide(t.Context(), asks[0].ID, asks[0].Hash, acl.Approve, "test", time.Now()); !errors.Is(err, node.ErrOtherKey) {
		t.Errorf("approve the squatter = %v", err)
	}
	decide(t, chris, asks[1], acl.Approve)
}
