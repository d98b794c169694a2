package node_test

import (
	"bytes"
	"context"
	"errors"
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
	"github.com/agentmesh/agentmesh/store"
)

const booking = wire.Intent("com.example.booking")

// sendAsOwner sends a message for the member's owner.
func sendAsOwner(t *testing.T, m *meshtest.Member, to wire.AgentID, conv wire.ConversationID, intent wire.Intent, payload string) {
	t.Helper()
	v, err := wire.Parse([]byte(payload))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Send(t.Context(), node.Outgoing{To: to, Conv: conv, Intent: intent, Payload: v, Via: "owner"}, 0); err != nil {
		t.Fatal(err)
	}
}

// TestAnswerToOurMessage (AM-30): a peer to which our owner wrote may answer in that conversation, in every access
// mode, with the intent that we used. It may not write elsewhere, and not at all if it is blocked.
func TestAnswerToOurMessage(t *testing.T) {
	t.Parallel()
	elsewhere := map[acl.Mode]wire.Code{acl.Open: "", acl.Allowlist: wire.Unauthorized, acl.Approval: ""} // AM-97: it is known now
	for m, refused := range elsewhere {
		synctest.Test(t, func(t *testing.T) {
			mesh := meshtest.InMemory(t)
			chris := mesh.Stranger("chris")
			sarah := mesh.Node("sarah", func(cfg *node.Config) {
				cfg.Policy = acl.Policy{Mode: m, Hold: []acl.HoldRule{{Intent: "com.example.*", Hold: acl.Never}}}
			})
			sendAsOwner(t, sarah, chris.ID, "conv_one", booking, `{"table":"for two"}`)
			post := func(conv wire.ConversationID, intent wire.Intent, payload string) meshtest.Answer {
				return sarah.Post(chris.Sign(in(conv, chris.Draft(sarah.ID(), intent, payload))))
			}
			must(t, post("conv_one", booking, `{"table":"is yours"}`), http.StatusOK)
			must(t, post("conv_one", wire.Deliver, hello), http.StatusOK)
			if a := post("conv_two", booking, `{}`); a.Code() != wire.IntentNotSupported && refused == "" {
				t.Errorf("%s: the intent elsewhere: %d %s", m, a.Status, a.Body)
			}
			if a := post("conv_two", wire.Deliver, hello); a.Code() != refused {
				t.Errorf("%s: elsewhere: %d %s, want %q", m, a.Status, a.Body, refused)
			}
			sarah.Call("POST", "/peers/"+string(chris.ID), map[string]string{"action": "block"}, nil)
			if a := post("conv_one", wire.Deliver, hello); a.Code() != wire.Unauthorized {
				t.Errorf("%s: blocked: %d %s", m, a.Status, a.Body)
			}
		})
	}
}

// TestTakingBackIsTheSendersOwn (AM-36): only the sender can cancel a held message, and only in its conversation. A
// hold because of the intent can be cancelled too.
func TestTakingBackIsTheSendersOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris, mallory := mesh.Stranger("chris"), mesh.Stranger("mallory")
		sarah := mesh.Node("sarah", unlimited)
		deal := `{"action":"propose","terms":{"description":"a deal"}}`
		must(t, sarah.Post(chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Negotiate, deal)))), http.StatusAccepted)
		back := `{"action":"withdraw"}`
		for who, d := range map[*meshtest.Stranger]wire.ConversationID{mallory: "conv_one", chris: "conv_two"} {
			sarah.Post(who.Sign(in(d, who.Draft(sarah.ID(), wire.Negotiate, back))))
			theAsk(t, sarah)
		}
		must(t, sarah.Post(chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Negotiate, back)))), http.StatusOK)
		if n := len(pendingAsks(t, sarah)); n != 0 {
			t.Errorf("%d asks are pending, want 0", n)
		}
		var got struct{ Holds int }
		if sarah.Call("GET", "/conversations/conv_one?peer="+string(chris.ID), nil, &got); got.Holds != 0 {
			t.Errorf("the conversation has %d holds, want 0", got.Holds)
		}
	})
}

// TestNoticesTellNoText (AM-36): a notice names the peer and the kind. Only the notice of an agreed event also has
// title, time and place.
func TestNoticesTellNoText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		sarah := mesh.Node("sarah", mode(acl.Approval))
		notices := func() string { return string(sarah.Ask("GET", "/notices", nil).Body) }
		secret := `{"action":"deliver","message":{"body":"the password is tulip"}}`
		must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, secret))), http.StatusAccepted)
		if got := notices(); !strings.Contains(got, `"approval"`) || strings.Contains(got, "tulip") {
			t.Errorf("notices = %s", got)
		}
		sendAsOwner(t, sarah, chris.ID, "conv_two", wire.Schedule, propose)
		offered := transcriptOf(t, sarah, chris.ID, "conv_two")[0].MessageID
		accept := `{"action":"accept","selected_time":"2026-02-21T10:00:00-08:00","location":"Blue \u001b[31mBottle","note":"tulip",` +
			`"metadata":{"in_reply_to":"` + offered + `"}}`
		must(t, sarah.Post(chris.Sign(in("conv_two", chris.Draft(sarah.ID(), wire.Schedule, accept)))), http.StatusOK)
		got := notices()
		if !strings.Contains(got, "Coffee") || !strings.Contains(got, "21 Feb 2026 10:00") || strings.Contains(got, "tulip") || strings.Contains(got, `\u001b`) {
			t.Errorf("notices = %s", got)
		}
	})
}

// tableSchema requires a table in the payload of the booking intent.
type tableSchema struct{}

func (tableSchema) Check(intent wire.Intent, payload wire.Value) error {
	if intent == booking && payload.GetStr("table") == "" {
		return errors.New("table is missing: secret detail")
	}
	return nil
}

// TestIntents checks AM-69 and AM-70 for received messages.
func TestIntents(t *testing.T) {
	t.Parallel()
	var seen []hook.Call
	recordCall := handler(func(_ context.Context, c hook.Call) (hook.Answer, error) {
		seen = append(seen, c)
		return hook.Answer{}, nil
	})
	cases := []struct {
		name      string
		configure func(*node.Config)
		intent    wire.Intent
		payload   string
		status    int
		hooked    bool
		known     bool
	}{
		{name: "unknown action of a known intent", intent: wire.Schedule, payload: `{"action":"confirmed"}`, status: 200},
		{name: "known action", intent: wire.Schedule, payload: `{"action":"accept"}`, status: 200, known: true},
		{name: "unknown mesh intent", intent: "mesh.poll", payload: `{"action":"ask"}`, status: 422},
		{name: "custom intent that the card lacks", intent: booking, payload: `{}`, status: 422},
		{name: "neither a standard nor a custom intent", intent: "booking", payload: `{}`, status: 422},
		{name: "custom intent with a hook", intent: booking, payload: `{"any":1}`, status: 200, hooked: true,
			configure: func(cfg *node.Config) {
				cfg.Routes = []node.Route{{Pattern: "com.example.*", Name: "test", Handler: recordCall}}
			}},
		{name: "custom intent on the card, without a rule", intent: booking, payload: `{}`, status: 202, known: true, configure: withBooking},
		{name: "custom intent that fits its schema", intent: booking, payload: `{"table":"two"}`, status: 202, known: true,
			configure: func(cfg *node.Config) { withBooking(cfg); cfg.Schemas = tableSchema{} }},
		{name: "custom intent that does not", intent: booking, payload: `{"table":1}`, status: 400,
			configure: func(cfg *node.Config) { withBooking(cfg); cfg.Schemas = tableSchema{} }},
	}
	for _, c := range cases {
		synctest.Test(t, func(t *testing.T) {
			seen = nil
			mesh := meshtest.InMemory(t)
			chris := mesh.Stranger("chris")
			sarah := mesh.Node("sarah", func(cfg *node.Config) {
				open(cfg)
				if c.configure != nil {
					c.configure(cfg)
				}
			})
			a := sarah.Post(chris.Sign(chris.Draft(sarah.ID(), c.intent, c.payload)))
			if a.Status != c.status || bytes.Contains(a.Body, []byte("secret")) {
				t.Errorf("%s: %d %s, want %d", c.name, a.Status, a.Body, c.status)
			}
			if c.hooked != (len(seen) == 1) {
				t.Errorf("%s: the hook got %d calls", c.name, len(seen))
			}
			if c.status < 300 {
				if item := theItem(t, sarah); item.ActionKnown != c.known && !c.hooked {
					t.Errorf("%s: action_known = %v", c.name, item.ActionKnown)
				}
			}
		})
	}
}

// withBooking adds the custom intent to the card.
func withBooking(cfg *node.Config) {
	tree := cfg.Identity.Card.Tree.With("intents", wire.Texts(append(wire.StandardIntents(), booking)))
	card, err := wire.ParseCard(tree, wire.CardRules{AllowHTTP: func(string) bool { return true }})
	if err != nil {
		panic(err)
	}
	cfg.Identity.Card = card
}

// TestPauseIsDurable (AM-86): a pause holds over a restart until the owner ends it, and the card can still be read.
func TestPauseIsDurable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		sarah := mesh.Node("sarah", open)
		raw := chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))
		var status struct{ Paused bool }
		if sarah.Call("POST", "/pause", nil, &status); !status.Paused {
			t.Error("the status does not report the pause")
		}
		again := mesh.Restart(sarah, open)
		a := again.Post(raw)
		if a.Status != http.StatusServiceUnavailable || a.Code() != wire.AgentUnavailable || a.Header.Get("Retry-After") == "" {
			t.Errorf("paused: %d %s", a.Status, a.Body)
		}
		if again.Call("POST", "/resume", nil, &status); status.Paused {
			t.Error("the status still reports a pause")
		}
		must(t, mesh.Restart(again, open).Post(raw), http.StatusOK)
	})
}

// TestKeyChange (AM-11): a key that the directory swapped is refused, the owner is asked once, and only the owner's
// approval pins the new key.
func TestKeyChange(t *testing.T) {
	t.Parallel()
	for _, choice := range []acl.Choice{acl.Approve, acl.Reject, acl.Block} {
		synctest.Test(t, func(t *testing.T) {
			mesh := meshtest.InMemory(t)
			chris := mesh.Stranger("chris")
			sarah := mesh.Node("sarah", open)
			must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusOK)

			swapped := chris.Forger("chris's new key")
			card := meshtest.Card(t, "chris", "http://127.0.0.1:9/agentmesh").Tree.With("public_key", wire.Text(swapped.Key.PublicText()))
			if _, err := mesh.Directory().Renew(t.Context(), card, client.Credential("credential-of-chris"), swapped.Key); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				time.Sleep(2 * time.Minute)
				a := sarah.Post(swapped.Sign(swapped.Draft(sarah.ID(), wire.Deliver, hello)))
				if a.Status != http.StatusUnauthorized || a.Code() != wire.InvalidSignature {
					t.Errorf("swapped key: %d %s", a.Status, a.Body)
				}
			}
			ask := theAsk(t, sarah)
			if ask.Kind != "key-change" || ask.Subject != string(chris.ID) {
				t.Errorf("ask = %+v", ask)
			}
			decide(t, sarah, ask, choice)
			time.Sleep(2 * time.Minute)
			a := sarah.Post(swapped.Sign(swapped.Draft(sarah.ID(), wire.Deliver, hello)))
			want := map[acl.Choice]int{acl.Approve: 200, acl.Reject: 401, acl.Block: 403}[choice]
			if a.Status != want {
				t.Errorf("after %s: %d %s, want %d", choice, a.Status, a.Body, want)
			}
			if choice != acl.Approve {
				return
			}
			if a := sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))); a.Code() != wire.InvalidSignature {
				t.Errorf("old key after the change: %d %s", a.Status, a.Body)
			}
		})
	}
}

// TestOneQuestionAboutAKey: while the owner is asked about the key of a stranger, and lets the stranger in, the owner is
// not asked again about the same agent.
func TestOneQuestionAboutAKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		sarah := mesh.Node("sarah", open)
		must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusOK)
		for _, name := range []string{"second key", "third key"} {
			swapped := chris.Forger(name)
			card := meshtest.Card(t, "chris", "http://127.0.0.1:9/agentmesh").Tree.With("public_key", wire.Text(swapped.Key.PublicText()))
			if _, err := mesh.Directory().Renew(t.Context(), card, client.Credential("credential-of-chris"), swapped.Key); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Hour)
			must(t, sarah.Post(swapped.Sign(swapped.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusUnauthorized)
			theAsk(t, sarah)
			sarah.Call("POST", "/peers/"+string(chris.ID), owner.PeerChange{Action: "allow"}, nil)
		}
	})
}

// TestKeyChangesOfStrangers (THREATS 31): however many keys strangers change, the owner is asked about the key of an
// agent that it knows: one that it let in, or to which it wrote.
func TestKeyChangesOfStrangers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		sarah := mesh.Node("sarah", open)
		var full []store.Change
		for i := range 200 {
			_, changes := sarah.Asks().Open(acl.Ask{Kind: owner.AskKeyChange, Created: time.Now()}, acl.KeyChangeSlot(fmt.Sprint("am_stranger", i), false))
			full = append(full, changes...)
		}
		if err := sarah.Store.Records().Apply(t.Context(), full, time.Now()); err != nil {
			t.Fatal(err)
		}
		var known []string
		for _, name := range []string{"stranger", "allowed", "written"} {
			peer := mesh.Stranger(name)
			must(t, sarah.Post(peer.Sign(peer.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusOK)
			switch name {
			case "allowed":
				sarah.Call("POST", "/peers/"+string(peer.ID), owner.PeerChange{Action: "allow"}, nil)
			case "written":
				mustSend(t, sarah.Node, outgoing(t, peer.ID, wire.Deliver, hello), 0)
			}
			if name != "stranger" {
				known = append(known, string(peer.ID))
			}
			swapped := peer.Forger(name + "'s new key")
			card := meshtest.Card(t, name, "http://127.0.0.1:9/agentmesh").Tree.With("public_key", wire.Text(swapped.Key.PublicText()))
			if _, err := mesh.Directory().Renew(t.Context(), card, client.Credential("credential-of-"+name), swapped.Key); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Minute)
			must(t, sarah.Post(swapped.Sign(swapped.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusUnauthorized)
		}
		var asked []string
		for _, ask := range pendingAsks(t, sarah) {
			if ask.Subject != "" {
				asked = append(asked, ask.Subject)
			}
		}
		if !slices.Equal(asked, known) {
			t.Errorf("asked about %v, want %v", asked, known)
		}
	})
}
