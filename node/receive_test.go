package node_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	hello   = `{"action":"deliver","message":{"body":"hello"}}`
	propose = `{"action":"propose","event":{"title":"Coffee","proposed_times":["2026-02-21T10:00:00-08:00"],"duration":"30m"}}`
	closing = `{"action":"close","status":"completed"}`
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }

// open configures a node that accepts every sender.
func open(cfg *node.Config) { cfg.Policy.Mode = acl.Open }

// state returns the numbers of everything that a message may create, as the owner sees them.
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

// openAndClose makes chris open and close the conversation conv_closed.
func openAndClose(t *testing.T, chris *meshtest.Stranger, sarah *meshtest.Member) {
	t.Helper()
	for _, payload := range []string{hello, closing} {
		d := chris.Draft(sarah.ID(), wire.Deliver, payload)
		d.Conversation = "conv_closed"
		must(t, meshtest.Post(t, sarah.URL, chris.Sign(d)), http.StatusOK)
	}
}

// TestEndpointAnswersHead: a monitor may look at the endpoint with HEAD instead of GET.
func TestEndpointAnswersHead(t *testing.T) {
	sarah := meshtest.New(t).Node("sarah", open)
	resp, err := http.Head(sarah.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.ContentLength != int64(len(sarah.Card().WithoutPrivateLists().JSON())) {
		t.Errorf("HEAD: %d, %d bytes", resp.StatusCode, resp.ContentLength)
	}
}

// TestReceiveAnswers: an accepted message gets a signed answer, a transcript and an inbox item.
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
	items, _, err := sarah.Inbox(t.Context(), owner.ItemNew, "", 10)
	if err != nil || len(items) != 1 || items[0].MessageID != d.ID || items[0].PeerName != "chris" || items[0].Verified != "signature" {
		t.Errorf("inbox = %+v, %v", items, err)
	}
}

// TestEveryFieldIsSigned (THREATS 3): no field of a message can be changed, added or removed.
func TestEveryFieldIsSigned(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", open)
	tree := chris.Draft(sarah.ID(), wire.Deliver, hello).Tree().With("x-extra", wire.Text("kept"))
	signed, err := chris.Key.SignValue(tree)
	if err != nil {
		t.Fatal(err)
	}
	must(t, meshtest.Post(t, sarah.URL, signed.JSON()), http.StatusOK) // an unknown field is signed too, and not refused
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
		t.Errorf("field removed: %d %s, want %s", a.Status, a.Body, wire.InvalidSignature)
	}
}

// TestStrangersConversationsAreApart (AM-37): a sender cannot close another sender's conversation with the same id.
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

// TestClose (AM-38, AM-39): a close gets its echo, and afterwards the conversation takes no more messages.
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
	for _, payload := range []string{closing, `{"action":"accept"}`} {
		if a := post(payload); a.Code() != wire.ConversationClosed {
			t.Errorf("after the close, %s: %d %s", payload, a.Status, a.Body)
		}
	}
}

// TestCardAtTheEndpoint (AM-6): the card at the endpoint does not show the lists of allowed and blocked agents.
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

// TestNumbersByValue is THREATS 44: a double cannot tell these amounts from others, so one signature would cover two.
func TestNumbersByValue(t *testing.T) {
	mesh := meshtest.New(t)
	sarah, chris := mesh.Node("sarah", open), mesh.Stranger("chris")
	for _, amount := range []string{"9007199254740993", "9007199254740993.0", "9007199254740992.0", "9.007199254740993e15", "-90071992547409930E-1", "1e21"} {
		payload, err := wire.ParseForeign([]byte(`{"action":"deliver","message":{"body":"hello"},"amount":`+amount+`}`), wire.MaxDepth, wire.MaxValues)
		if err != nil {
			t.Fatal(err)
		}
		tree := chris.Draft(sarah.ID(), wire.Deliver, hello).Tree().With("payload", payload)
		if a := meshtest.Post(t, sarah.URL, chris.SignTree(tree)); a.Status != http.StatusBadRequest || !bytes.Contains(a.Body, []byte("INVALID_MESSAGE")) {
			t.Errorf("%s: %d %s", amount, a.Status, a.Body)
		}
	}
	largest := `{"action":"deliver","message":{"body":"hello"},"amount":9007199254740991.0}`
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, largest))), http.StatusOK)
}
