package node_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	hello   = `{"action":"deliver","message":{"body":"hello"}}`
	propose = `{"action":"propose","event":{"title":"Coffee","proposed_times":["2026-02-21T10:00:00-08:00"],"duration":"30m"}}`
	closing = `{"action":"close","status":"completed"}`
)

// open configures a node that takes everything but limits.
func open(cfg *node.Config) { cfg.Policy.Mode = acl.Open }

func mode(m acl.Mode) func(*node.Config) {
	return func(cfg *node.Config) { cfg.Policy.Mode = m }
}

// state is everything a message may change, as far as an owner can see it.
func state(t *testing.T, m *meshtest.Member) string {
	t.Helper()
	ctx := t.Context()
	items, _, err := m.Inbox(ctx, "", "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	convs, err := m.Store.Steps().Conversations(ctx, "", 0, 1000, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	asks, _, err := m.Asks().List(ctx, acl.AskFilter{}, "", 1000, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d items, %d conversations, %d asks", len(items), len(convs.Conversations), len(asks))
}

// TestWhichErrorWins holds the order of the receive table (AM-24): each case is wrong in two neighbouring lines at
// least, and the lower line answers. Nothing is stored for any of them.
func TestWhichErrorWins(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	mallory := mesh.Stranger("mallory")
	blocked := mesh.Stranger("blocked")

	bad := func(raw []byte) []byte { return bytes.Replace(raw, []byte(`"hello"`), []byte(`"hullo"`), 1) }
	old := func(d wire.Draft) wire.Draft { d.Time = time.Now().Add(-15*time.Minute - 2*time.Second); return d }
	foreign := func(d wire.Draft) wire.Draft { d.To = "am_somebody-else"; return d }

	cases := []struct {
		name      string
		configure func(*node.Config)
		prepare   func(t *testing.T, sarah *meshtest.Member)
		body      func(sarah *meshtest.Member) []byte
		want      *wire.Error
	}{
		{
			name: "too large beats bad JSON",
			body: func(*meshtest.Member) []byte { return []byte("{" + strings.Repeat(" ", wire.MaxMessage)) },
			want: wire.ErrTooLarge,
		}, {
			name: "bad JSON beats schema",
			body: func(*meshtest.Member) []byte { return []byte(`{"to":1,"to":2}`) },
			want: wire.ErrSyntax,
		}, {
			name: "schema beats recipient",
			body: func(sarah *meshtest.Member) []byte {
				return chris.SignTree(foreign(chris.Draft(sarah.ID(), wire.Deliver, hello)).Tree().With("timestamp", wire.Text("now")))
			},
			want: wire.ErrSchema,
		}, {
			name:    "recipient beats pause",
			prepare: func(t *testing.T, sarah *meshtest.Member) { pause(t, sarah) },
			body: func(sarah *meshtest.Member) []byte {
				return chris.Sign(foreign(chris.Draft(sarah.ID(), wire.Deliver, hello)))
			},
			want: wire.ErrRecipient,
		}, {
			name:      "pause beats block list",
			configure: func(cfg *node.Config) { cfg.Policy.Block = []string{string(blocked.ID)} },
			prepare:   func(t *testing.T, sarah *meshtest.Member) { pause(t, sarah) },
			body: func(sarah *meshtest.Member) []byte {
				return blocked.Sign(blocked.Draft(sarah.ID(), wire.Deliver, hello))
			},
			want: wire.ErrPaused,
		}, {
			name:      "block list beats an unknown card",
			configure: func(cfg *node.Config) { cfg.Policy.Block = []string{"am_nobody"} },
			body: func(sarah *meshtest.Member) []byte {
				d := chris.Draft(sarah.ID(), wire.Deliver, hello)
				d.From = "am_nobody"
				return chris.Sign(d)
			},
			want: wire.ErrNotAllowed,
		}, {
			name:      "block list beats a forged signature",
			configure: func(cfg *node.Config) { cfg.Policy.Block = []string{string(blocked.ID)} },
			body: func(sarah *meshtest.Member) []byte {
				return bad(blocked.Sign(blocked.Draft(sarah.ID(), wire.Deliver, hello)))
			},
			want: wire.ErrNotAllowed,
		}, {
			name: "unknown card beats the clock",
			body: func(sarah *meshtest.Member) []byte {
				d := old(chris.Draft(sarah.ID(), wire.Deliver, hello))
				d.From = "am_nobody"
				return chris.Sign(d)
			},
			want: wire.ErrUnknownSender,
		}, {
			name: "a forged signature beats the clock",
			body: func(sarah *meshtest.Member) []byte {
				return bad(mallory.Sign(old(mallory.Draft(sarah.ID(), wire.Deliver, hello))))
			},
			want: wire.ErrSignature,
		}, {
			name: "the clock beats a reused id",
			prepare: func(t *testing.T, sarah *meshtest.Member) {
				d := chris.Draft(sarah.ID(), wire.Deliver, hello)
				d.ID = "msg_reused"
				must(t, meshtest.Post(t, sarah.URL, chris.Sign(d)), http.StatusOK)
			},
			body: func(sarah *meshtest.Member) []byte {
				d := old(chris.Draft(sarah.ID(), wire.Deliver, hello))
				d.ID = "msg_reused"
				return chris.Sign(d)
			},
			want: wire.ErrTimeWindow,
		}, {
			name:      "a reused id beats access",
			configure: mode(acl.Allowlist),
			prepare: func(t *testing.T, sarah *meshtest.Member) {
				sarah.Call("POST", "/peers/"+string(chris.ID), map[string]string{"action": "allow"}, nil)
				d := chris.Draft(sarah.ID(), wire.Deliver, hello)
				d.ID = "msg_reused"
				must(t, meshtest.Post(t, sarah.URL, chris.Sign(d)), http.StatusOK)
				sarah.Call("POST", "/peers/"+string(chris.ID), map[string]string{"action": "forget"}, nil)
			},
			body: func(sarah *meshtest.Member) []byte {
				d := chris.Draft(sarah.ID(), wire.Deliver, hello)
				d.ID = "msg_reused"
				return chris.Sign(d)
			},
			want: wire.ErrIDReused,
		}, {
			name: "access beats limits",
			configure: func(cfg *node.Config) {
				cfg.Policy = acl.Policy{Mode: acl.Allowlist, Allow: []string{string(chris.ID)}}
				cfg.Rates = acl.Rates{Total: 1}
			},
			prepare: func(t *testing.T, sarah *meshtest.Member) {
				must(t, meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusOK)
			},
			body: func(sarah *meshtest.Member) []byte {
				return mallory.Sign(mallory.Draft(sarah.ID(), wire.Deliver, hello))
			},
			want: wire.ErrNotAllowed,
		}, {
			name: "limits beat a closed conversation",
			configure: func(cfg *node.Config) {
				cfg.Policy.Allow = []string{string(chris.ID)}
				cfg.Rates = acl.Rates{Conversation: 2}
			},
			prepare: func(t *testing.T, sarah *meshtest.Member) { openAndClose(t, chris, sarah) },
			body: func(sarah *meshtest.Member) []byte {
				d := chris.Draft(sarah.ID(), wire.Deliver, hello)
				d.Conversation = "conv_closed"
				return chris.Sign(d)
			},
			want: wire.ErrRateLimited,
		}, {
			name:    "a closed conversation beats an unsupported intent",
			prepare: func(t *testing.T, sarah *meshtest.Member) { openAndClose(t, chris, sarah) },
			body: func(sarah *meshtest.Member) []byte {
				d := chris.Draft(sarah.ID(), "com.example.unheard", `{}`)
				d.Conversation = "conv_closed"
				return chris.Sign(d)
			},
			want: wire.ErrConversationClosed,
		}, {
			name: "an unsupported intent beats a bad payload",
			body: func(sarah *meshtest.Member) []byte {
				return chris.Sign(chris.Draft(sarah.ID(), "mesh.unheard", `{"action":1}`))
			},
			want: wire.ErrIntent,
		}, {
			name:      "an unsupported intent of an unknown sender is refused, not held",
			configure: mode(acl.Approval),
			body: func(sarah *meshtest.Member) []byte {
				return chris.Sign(chris.Draft(sarah.ID(), "com.example.unheard", `{}`))
			},
			want: wire.ErrIntent,
		}, {
			name:      "a bad payload of an unknown sender is refused, not held",
			configure: mode(acl.Approval),
			body: func(sarah *meshtest.Member) []byte {
				return chris.Sign(chris.Draft(sarah.ID(), wire.Schedule, `{"action":"propose","event":{}}`))
			},
			want: wire.ErrPayload,
		}, {
			name: "a close of an unknown conversation opens none",
			body: func(sarah *meshtest.Member) []byte {
				return chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, closing))
			},
			want: wire.ErrConversationClosed,
		},
	}
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			sarah := mesh.Node(fmt.Sprintf("sarah-%d", i), func(cfg *node.Config) {
				cfg.Policy.Mode = acl.Open
				if c.configure != nil {
					c.configure(cfg)
				}
			})
			if c.prepare != nil {
				c.prepare(t, sarah)
			}
			before := state(t, sarah)
			a := meshtest.Post(t, sarah.URL, c.body(sarah))
			if a.Status != c.want.Status || a.Code() != c.want.Code || !bytes.Contains(a.Body, []byte(c.want.Message)) {
				t.Errorf("answer = %d %s, want %d %s %q", a.Status, a.Body, c.want.Status, c.want.Code, c.want.Message)
			}
			if after := state(t, sarah); after != before {
				t.Errorf("state = %s, want %s", after, before)
			}
		})
	}
}

func pause(t *testing.T, m *meshtest.Member) {
	t.Helper()
	if err := m.SetPaused(t.Context(), true, "test"); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, a meshtest.Answer, status int) {
	t.Helper()
	if a.Status != status {
		t.Fatalf("answer = %d %s, want %d", a.Status, a.Body, status)
	}
}

// openAndClose leaves conv_closed behind.
func openAndClose(t *testing.T, chris *meshtest.Stranger, sarah *meshtest.Member) {
	t.Helper()
	for _, payload := range []string{hello, closing} {
		d := chris.Draft(sarah.ID(), wire.Deliver, payload)
		d.Conversation = "conv_closed"
		must(t, meshtest.Post(t, sarah.URL, chris.Sign(d)), http.StatusOK)
	}
}

// TestReceiveAnswers is the way of a message that nothing stands against: a signed answer, a transcript, an inbox item.
func TestReceiveAnswers(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", open)
	d := chris.Draft(sarah.ID(), wire.Schedule, propose)
	raw := chris.Sign(d)
	a := meshtest.Post(t, sarah.URL, raw)
	must(t, a, http.StatusOK)
	reply := a.Message(t, sarah)
	if reply.From != sarah.ID() || reply.To != chris.ID || reply.Conversation != d.Conversation || reply.Intent != wire.Schedule {
		t.Errorf("reply envelope = %s", a.Body)
	}
	if got := reply.Action(); got != wire.ActionReceived {
		t.Errorf("action = %q, want %q (AM-71)", got, wire.ActionReceived)
	}
	var got struct {
		State      string `json:"state"`
		Transcript []struct {
			Direction string `json:"direction"`
			MessageID string `json:"message_id"`
		} `json:"transcript"`
	}
	sarah.Call("GET", "/conversations/"+string(d.Conversation), nil, &got)
	want := got
	want.State = "open"
	want.Transcript = want.Transcript[:0:0]
	want.Transcript = append(want.Transcript, struct {
		Direction string `json:"direction"`
		MessageID string `json:"message_id"`
	}{"in", string(d.ID)}, struct {
		Direction string `json:"direction"`
		MessageID string `json:"message_id"`
	}{"out", string(reply.ID)})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("conversation (-want +got):\n%s", diff)
	}
	items, _, err := sarah.Inbox(t.Context(), node.ItemNew, "", 10)
	if err != nil || len(items) != 1 || items[0].MessageID != d.ID || items[0].PeerName != "chris" || items[0].Verified != "signature" {
		t.Errorf("inbox = %+v, %v", items, err)
	}
}

// TestExactRepeat is AM-21: the same bytes get the same answer, whatever their age, and do nothing twice.
func TestExactRepeat(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", open)
	raw := chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))
	first := meshtest.Post(t, sarah.URL, raw)
	must(t, first, http.StatusOK)
	before := state(t, sarah)
	second := meshtest.Post(t, sarah.URL, raw)
	if !bytes.Equal(first.Body, second.Body) || second.Status != first.Status {
		t.Errorf("repeat = %d %s, want %d %s", second.Status, second.Body, first.Status, first.Body)
	}
	if after := state(t, sarah); after != before {
		t.Errorf("state = %s, want %s", after, before)
	}
}

// TestManyCopiesAtOnce is AM-21 under a race: one acceptance, one answer for all.
func TestManyCopiesAtOnce(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", open)
	raw := chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))
	const copies = 64
	answers := make([]meshtest.Answer, copies)
	var group sync.WaitGroup
	for i := range copies {
		group.Go(func() { answers[i] = meshtest.Post(t, sarah.URL, raw) })
	}
	group.Wait()
	for i, a := range answers {
		if a.Status != http.StatusOK || !bytes.Equal(a.Body, answers[0].Body) {
			t.Fatalf("copy %d: %d %s, want the answer of the first, %s", i, a.Status, a.Body, answers[0].Body)
		}
	}
	if got, want := state(t, sarah), "1 items, 1 conversations, 0 asks"; got != want {
		t.Errorf("state = %s, want %s", got, want)
	}
}

// TestTwoBodiesUnderOneID is THREATS row 5 under a race: of two contents that arrive together under one id, one is
// accepted, and every copy of the other is refused (AM-21).
func TestTwoBodiesUnderOneID(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", open)
	for round := range 5 {
		d := chris.Draft(sarah.ID(), wire.Deliver, hello)
		first := chris.Sign(d)
		d.Payload = chris.Draft(sarah.ID(), wire.Deliver, `{"action":"deliver","message":{"body":"goodbye"}}`).Payload
		bodies := [2][]byte{first, chris.Sign(d)}
		const copies = 16
		var answers [copies]meshtest.Answer
		var group sync.WaitGroup
		for i := range copies {
			group.Go(func() { answers[i] = meshtest.Post(t, sarah.URL, bodies[i%2]) })
		}
		group.Wait()
		accepted := 0
		if answers[1].Status == http.StatusOK {
			accepted = 1
		}
		for i, a := range answers {
			switch {
			case i%2 == accepted && a.Status != http.StatusOK:
				t.Errorf("round %d: copy %d of the accepted message: %d %s", round, i, a.Status, a.Body)
			case i%2 != accepted && (a.Status != http.StatusConflict || a.Code() != wire.InvalidMessage):
				t.Errorf("round %d: copy %d of the other message: %d %s, want 409 %s", round, i, a.Status, a.Body, wire.InvalidMessage)
			}
		}
		if got, want := state(t, sarah), fmt.Sprintf("%d items, %[1]d conversations, 0 asks", round+1); got != want {
			t.Errorf("state = %s, want %s", got, want)
		}
	}
}

// TestReplayElsewhere is THREATS row 4: a message to one agent is worth nothing at another.
func TestReplayElsewhere(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah, tom := mesh.Node("sarah", open), mesh.Node("tom", open)
	raw := chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))
	a := meshtest.Post(t, tom.URL, raw)
	if a.Code() != wire.InvalidMessage || a.Status != http.StatusBadRequest {
		t.Errorf("answer = %d %s, want 400", a.Status, a.Body)
	}
}

// TestEveryFieldIsSigned is THREATS row 3: no field can be changed, added or taken away.
func TestEveryFieldIsSigned(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", open)
	tree := chris.Draft(sarah.ID(), wire.Deliver, hello).Tree().With("x-extra", wire.Text("kept"))
	signed, err := chris.Key.SignValue(tree)
	if err != nil {
		t.Fatal(err)
	}
	must(t, meshtest.Post(t, sarah.URL, signed.JSON()), http.StatusOK) // an unknown field is covered, not refused
	changed := map[string]wire.Value{
		"agentmesh": wire.Text("0.1.1"), "message_id": wire.Text("msg_other"), "conversation_id": wire.Text("conv_other"),
		"timestamp": wire.Text(wire.FormatTime(time.Now().Add(time.Second))), "intent": wire.Text("mesh.handoff"),
		"payload": wire.Obj(), "x-extra": wire.Text("changed"), "y-extra": wire.Text("added"),
	}
	for field, value := range changed {
		if a := meshtest.Post(t, sarah.URL, signed.With(field, value).JSON()); a.Code() != wire.InvalidSignature {
			t.Errorf("%s changed: %d %s, want %s", field, a.Status, a.Body, wire.InvalidSignature)
		}
	}
	if a := meshtest.Post(t, sarah.URL, signed.Without("x-extra").JSON()); a.Code() != wire.InvalidSignature {
		t.Errorf("field taken away: %d %s, want %s", a.Status, a.Body, wire.InvalidSignature)
	}
}

// TestStrangersConversationsAreApart is AM-37.
func TestStrangersConversationsAreApart(t *testing.T) {
	mesh := meshtest.New(t)
	chris, mallory := mesh.Stranger("chris"), mesh.Stranger("mallory")
	sarah := mesh.Node("sarah", open)
	d := chris.Draft(sarah.ID(), wire.Deliver, hello)
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(d)), http.StatusOK)
	stolen := mallory.Draft(sarah.ID(), wire.Deliver, closing)
	stolen.Conversation = d.Conversation
	if a := meshtest.Post(t, sarah.URL, mallory.Sign(stolen)); a.Code() != wire.ConversationClosed {
		t.Errorf("close of another's conversation: %d %s", a.Status, a.Body)
	}
	again := chris.Draft(sarah.ID(), wire.Deliver, hello)
	again.Conversation = d.Conversation
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(again)), http.StatusOK)
}

// TestClose is AM-38 and AM-39.
func TestClose(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", open)
	post := func(payload string) meshtest.Answer {
		d := chris.Draft(sarah.ID(), wire.Deliver, payload)
		d.Conversation = "conv_one"
		return meshtest.Post(t, sarah.URL, chris.Sign(d))
	}
	must(t, post(hello), http.StatusOK)
	if a := post(`{"action":"close","status":"maybe"}`); a.Status != http.StatusBadRequest {
		t.Errorf("close with a bad status: %d %s, want 400", a.Status, a.Body)
	}
	a := post(closing)
	must(t, a, http.StatusOK)
	echo := a.Message(t, sarah)
	if echo.Action() != wire.ActionClose || echo.Payload.GetStr("status") != "completed" {
		t.Errorf("echo = %s", a.Body)
	}
	for _, payload := range []string{closing, hello} {
		if a := post(payload); a.Code() != wire.ConversationClosed {
			t.Errorf("after the close, %s: %d %s", payload, a.Status, a.Body)
		}
	}
}

// TestResendIsKnown is AM-48 on the receiving side: a message signed anew gets the answer of the first.
func TestResendIsKnown(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", open)
	d := chris.Draft(sarah.ID(), wire.Deliver, hello)
	first := meshtest.Post(t, sarah.URL, chris.Sign(d))
	must(t, first, http.StatusOK)
	resent := d
	resent.ID = wire.NewMessageID()
	resent.Payload = d.Payload.With("metadata", wire.Obj(wire.Member{Key: "resend_of", Value: wire.Text(string(d.ID))}))
	a := meshtest.Post(t, sarah.URL, chris.Sign(resent))
	if !bytes.Equal(a.Body, first.Body) {
		t.Errorf("resend = %d %s, want the stored answer %s", a.Status, a.Body, first.Body)
	}
	if got, want := state(t, sarah), "1 items, 1 conversations, 0 asks"; got != want {
		t.Errorf("state = %s, want %s", got, want)
	}

	// One that names a message of another conversation is a message like any other.
	resent.ID, resent.Conversation = wire.NewMessageID(), "conv_other"
	a = meshtest.Post(t, sarah.URL, chris.Sign(resent))
	if must(t, a, http.StatusOK); bytes.Equal(a.Body, first.Body) {
		t.Errorf("in another conversation it gets the answer of the first: %s", a.Body)
	}
	if got, want := state(t, sarah), "2 items, 2 conversations, 0 asks"; got != want {
		t.Errorf("state = %s, want %s", got, want)
	}
}

// TestCardAtTheEndpoint is AM-6: the lists of who may write are nobody's business, wherever the card is asked for.
func TestCardAtTheEndpoint(t *testing.T) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", func(cfg *node.Config) {
		access, err := wire.Parse([]byte(`{"mode":"allowlist","allowlist":["am_friend"],"block":["am_foe"]}`))
		if err != nil {
			t.Fatal(err)
		}
		cfg.Identity.Card.Tree = cfg.Identity.Card.Tree.With("access_control", access)
	})
	resp, err := http.Get(sarah.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Contains(body, []byte(`"mode":"allowlist"`)) || bytes.Contains(body, []byte("am_f")) {
		t.Errorf("card = %s, %v", body, err)
	}
}
