package node_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	agelib "filippo.io/age"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// agentFunc makes a function the agent behind a node.
type agentFunc func(hook.Call) hook.Answer

func (h agentFunc) Handle(_ context.Context, c hook.Call) (hook.Answer, error) { return h(c), nil }

// answers configures a route that answers every message with payload and records its calls.
func answers(payload string, calls chan<- hook.Call) func(*node.Config) {
	return func(cfg *node.Config) {
		cfg.Routes = []node.Route{{Pattern: "*", Name: "agent", Handler: agentFunc(func(c hook.Call) hook.Answer {
			v, err := wire.ParseObject([]byte(payload))
			if err != nil {
				panic(err)
			}
			calls <- c
			return hook.Answer{Payload: &v}
		})}}
	}
}

func transcriptOf(t *testing.T, m *meshtest.Member, peer wire.AgentID, conv wire.ConversationID) []store.Entry {
	t.Helper()
	entries, err := m.Store.Steps().Transcript(t.Context(), store.ConvKey{Peer: string(peer), ID: string(conv)}, 0, 100)
	if err != nil || len(entries) == 0 {
		t.Fatalf("transcript: %d entries, %v", len(entries), err)
	}
	return entries
}

const (
	secretBody  = `{"action":"deliver","message":{"body":"the secret of the coffee"},"metadata":{"note":"n"}}`
	secretReply = `{"action":"deliver","message":{"body":"the answer to the secret"}}`
)

// TestSealed (AM-85): between two nodes a sealed message is nowhere in the open, and both owners can read it. The agent
// behind the node gets the opened payload and the information that it was sealed, and its answer is sealed too.
func TestSealed(t *testing.T) {
	mesh := meshtest.New(t)
	calls := make(chan hook.Call, 10)
	sarah := mesh.Node("sarah", answers(secretReply, calls))
	chris := mesh.Node("chris", open)
	out := outgoing(t, sarah.ID(), wire.Deliver, secretBody)
	out.Seal, out.Conv = owner.Sealed, "conv_sealed"
	sent := mustSend(t, chris.Node, out, 30*time.Second)
	if sent.State != owner.SendDelivered || !sent.ReplySealed || !bytes.Contains(sent.ReplyTree.JSON(), []byte("the answer to the secret")) {
		t.Fatalf("sent = %+v, want the opened answer", sent)
	}
	call := <-calls
	if !call.Sealed || string(call.Payload) != secretBody {
		t.Errorf("the agent got %s, sealed %v", call.Payload, call.Sealed)
	}
	for who, entries := range map[string][]store.Entry{
		"chris": transcriptOf(t, chris, sarah.ID(), "conv_sealed"), "sarah": transcriptOf(t, sarah, chris.ID(), "conv_sealed"),
	} {
		if _, err := conversations.Verify([32]byte{}, 0, entries); err != nil || len(entries) != 2 {
			t.Errorf("%s has %d entries: %v", who, len(entries), err)
		}
		for i, want := range []string{secretBody, secretReply} {
			said, ok := conversations.ReadContent(entries[i])
			if !ok || !said.Sealed || string(said.Payload.JSON()) != want {
				t.Errorf("%s reads %s, want %s", who, said.Payload.JSON(), want)
			}
			if bytes.Contains(entries[i].Raw, []byte("secret")) || len(entries[i].Key) == 0 {
				t.Errorf("%s: entry %d: %s", who, i, entries[i].Raw)
			}
		}
	}
	// The second message needs no choice: the conversation is sealed, and sarah's next message is sealed to the
	// recipient that chris named.
	again := mustSend(t, chris.Node, node.Outgoing{To: sarah.ID(), Conv: "conv_sealed", Intent: wire.Deliver, Payload: out.Payload, Via: "owner"}, 30*time.Second)
	if again.State != owner.SendDelivered || !(<-calls).Sealed {
		t.Errorf("the second message = %+v", again)
	}
	// A close contains nothing to seal, and a sealed close would be refused, so it leaves unsealed.
	closed := outgoing(t, sarah.ID(), wire.Deliver, closing)
	closed.Conv = "conv_sealed"
	mustSend(t, chris.Node, closed, 30*time.Second)
	last := transcriptOf(t, sarah, chris.ID(), "conv_sealed")
	if said, _ := conversations.ReadContent(last[len(last)-2]); said.Sealed || said.Payload.GetStr("action") != wire.ActionClose {
		t.Errorf("the close = %s", said.Payload.JSON())
	}
}

// TestSealedLengthSaysNothing: a sealed accept is as long as a sealed decline.
func TestSealedLengthSaysNothing(t *testing.T) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", open)
	var lengths []int
	for _, payload := range []string{`{"action":"accept"}`, `{"action":"decline","reason":"no time around the proposed ones"}`} {
		sealed, _, err := conversations.Sealer{Agent: "am_chris", Recipient: mesh.Age("chris").PublicText()}.Seal(
			outgoing(t, sarah.ID(), wire.Schedule, payload).Payload, mesh.Age("sarah").PublicText())
		if err != nil {
			t.Fatal(err)
		}
		lengths = append(lengths, len(sealed.JSON()))
	}
	if lengths[0] != lengths[1] {
		t.Errorf("lengths = %v", lengths)
	}
}

// sealedBy returns a message of a stranger with a sealed payload.
func sealedBy(t *testing.T, s *meshtest.Stranger, to wire.AgentID, intent wire.Intent, file []byte) wire.Draft {
	t.Helper()
	return s.Draft(to, intent, `{"action":"sealed","age":"`+base64.StdEncoding.EncodeToString(file)+`"}`)
}

// ageFile encrypts text to recipients.
func ageFile(t *testing.T, text string, recipients ...string) []byte {
	t.Helper()
	var to []agelib.Recipient
	for _, r := range recipients {
		x, err := agelib.ParseX25519Recipient(r)
		if err != nil {
			t.Fatal(err)
		}
		to = append(to, x)
	}
	var b bytes.Buffer
	w, err := agelib.Encrypt(&b, to...)
	if err == nil {
		_, err = w.Write([]byte(text))
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// withSealer adds the sealer's agent id to a payload, as its sender would. It returns a payload that is not an object
// unchanged.
func withSealer(payload string, by wire.AgentID) string {
	v, err := wire.ParseObject([]byte(payload))
	if err != nil {
		return payload
	}
	sealer := wire.Obj(wire.Member{Key: "agent_id", Value: wire.Text(string(by))})
	return string(v.With("metadata", wire.Obj(wire.Member{Key: "sealed_by", Value: sealer})).JSON())
}

// TestSealedIsJudgedAsOpen: the owner's rules (lines 13 to 15) treat a sealed message like the same message unsealed,
// above all an accept that commits the owner.
func TestSealedIsJudgedAsOpen(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	for i, c := range []struct {
		intent  wire.Intent
		payload string
		mode    acl.Mode
	}{
		{wire.Negotiate, `{"action":"accept"}`, acl.Open},
		{wire.Negotiate, deal, acl.Open},
		{wire.Handoff, `{"action":"request_human","reason":"x"}`, acl.Open},
		{wire.Schedule, `{"action":"accept"}`, acl.Open},
		{wire.Deliver, hello, acl.Open},
		{wire.Deliver, hello, acl.Approval},
		{wire.Deliver, hello, acl.Allowlist},
		{wire.Deliver, `{"action":"deliver"}`, acl.Open},
		{"com.example.unheard", `{}`, acl.Open},
	} {
		sarah := mesh.Node("sarah-"+string(rune('a'+i)), mode(c.mode))
		twin := mesh.Node("twin-"+string(rune('a'+i)), mode(c.mode))
		open := meshtest.Post(t, twin.URL, chris.Sign(chris.Draft(twin.ID(), c.intent, c.payload)))
		sealed := meshtest.Post(t, sarah.URL, chris.Sign(sealedBy(t, chris, sarah.ID(), c.intent, ageFile(t, withSealer(c.payload, chris.ID), mesh.Age(sarah.Name).PublicText()))))
		if open.Status != sealed.Status || open.Code() != sealed.Code() || state(t, sarah) != state(t, twin) {
			t.Errorf("%s %s: open %d %s %s, sealed %d %s %s", c.intent, c.payload,
				open.Status, open.Code(), state(t, twin), sealed.Status, sealed.Code(), state(t, sarah))
		}
		if sealed.Status != http.StatusAccepted {
			continue
		}
		ask := theAsk(t, sarah)
		if !bytes.Contains(ask.Body, []byte(`"sealed":true`)) || ask.Hash == "" || !bytes.Contains(ask.Body, []byte(c.payload[:18])) {
			t.Errorf("the question shows %s", ask.Body)
		}
	}
}

// TestSealedRefused: a message that cannot be opened changes nothing, gets the same answer whatever the reason, and
// causes a notice.
func TestSealedRefused(t *testing.T) {
	mesh := meshtest.New(t)
	chris, mallory := mesh.Stranger("chris"), mesh.Stranger("mallory")
	sarah := mesh.Node("sarah", func(cfg *node.Config) { cfg.Policy.Mode, cfg.Rates = acl.Open, acl.Rates{} })
	mine, other := mesh.Age("sarah").PublicText(), mesh.Age("other").PublicText()
	inner := func(payload string) []byte { return ageFile(t, withSealer(payload, chris.ID), mine) }
	many := slices.Repeat([]string{other}, 60)
	stolen, _, err := conversations.Sealer{Agent: chris.ID, Recipient: other}.Seal(outgoing(t, sarah.ID(), wire.Deliver, secretBody).Payload, mine)
	if err != nil {
		t.Fatal(err)
	}
	raw := func(payload string) wire.Draft { return chris.Draft(sarah.ID(), wire.Deliver, payload) }
	cases := []struct {
		name string
		body []byte
	}{
		{"to another key", chris.Sign(sealedBy(t, chris, sarah.ID(), wire.Deliver, ageFile(t, withSealer(hello, chris.ID), other)))},
		{"sealed twice", chris.Sign(sealedBy(t, chris, sarah.ID(), wire.Deliver, inner(`{"action":"sealed","age":"`+base64.StdEncoding.EncodeToString(inner(hello))+`"}`)))},
		{"a close inside", chris.Sign(sealedBy(t, chris, sarah.ID(), wire.Deliver, inner(closing)))},
		{"no JSON inside", chris.Sign(sealedBy(t, chris, sarah.ID(), wire.Deliver, inner("hello")))},
		{"two members of one name inside", chris.Sign(sealedBy(t, chris, sarah.ID(), wire.Deliver, inner(`{"action":"deliver","action":"close"}`)))},
		{"deeper than a message may be", chris.Sign(sealedBy(t, chris, sarah.ID(), wire.Deliver, inner(`{"a":`+strings.Repeat("[", 40)+strings.Repeat("]", 40)+`}`)))},
		{"cut off", chris.Sign(sealedBy(t, chris, sarah.ID(), wire.Deliver, inner(hello)[:200]))},
		{"no age file", chris.Sign(sealedBy(t, chris, sarah.ID(), wire.Deliver, []byte("hello")))},
		{"armor", chris.Sign(raw(`{"action":"sealed","age":"-----BEGIN AGE ENCRYPTED FILE-----"}`))},
		{"base64 without padding", chris.Sign(raw(`{"action":"sealed","age":"` + strings.TrimRight(base64.StdEncoding.EncodeToString(inner(hello+" ")), "=") + `x"}`))},
		{"nothing", chris.Sign(raw(`{"action":"sealed"}`))},
		{"a number", chris.Sign(raw(`{"action":"sealed","age":7}`))},
		{"sixty recipients", chris.Sign(sealedBy(t, chris, sarah.ID(), wire.Deliver, ageFile(t, withSealer(hello, chris.ID), append(many, mine)...)))},
		{"nobody's name inside", chris.Sign(sealedBy(t, chris, sarah.ID(), wire.Deliver, ageFile(t, hello, mine)))},
		{"an empty name inside", chris.Sign(sealedBy(t, chris, sarah.ID(), wire.Deliver, ageFile(t, withSealer(hello, ""), mine)))},
		{"taken over from another agent", mallory.Sign(mallory.Draft(sarah.ID(), wire.Deliver, string(stolen.JSON())))},
	}
	before := state(t, sarah)
	for _, c := range cases {
		a := meshtest.Post(t, sarah.URL, c.body)
		if a.Status != http.StatusBadRequest || a.Code() != wire.InvalidMessage || !bytes.Contains(a.Body, []byte(wire.ErrSealed.Message)) {
			t.Errorf("%s: %d %s", c.name, a.Status, a.Body)
		}
		if a.Status == http.StatusBadRequest && len(a.Body) != len(wire.ErrSealed.AppendJSON(nil)) {
			t.Errorf("%s: the answer reveals more: %s", c.name, a.Body)
		}
	}
	if after := state(t, sarah); after != before {
		t.Errorf("state = %s, want %s", after, before)
	}
	notices, _, err := sarah.Notices.List(t.Context(), "", 100, time.Now())
	if err != nil || len(notices) != len(cases) || notices[0].Kind != "unreadable" {
		t.Errorf("%d notices, %v, want one for each", len(notices), err)
	}
	// A message with a forged signature gets the same answer, sealed or not, and is not opened.
	forger := mesh.Stranger("chris").Forger("mallory")
	for _, body := range [][]byte{
		forger.Sign(sealedBy(t, forger, sarah.ID(), wire.Deliver, inner(hello))), forger.Sign(forger.Draft(sarah.ID(), wire.Deliver, hello)),
	} {
		if a := meshtest.Post(t, sarah.URL, body); a.Code() != wire.InvalidSignature {
			t.Errorf("forged: %d %s", a.Status, a.Body)
		}
	}
	if stored, _, err := sarah.Notices.List(t.Context(), "", 100, time.Now()); err != nil || len(stored) != len(cases) {
		t.Errorf("%d notices after a forgery, %v", len(stored), err)
	}
	// A payload that is too large is refused before it is opened, and one that fits is opened completely.
	big := `{"action":"deliver","message":{"body":"` + strings.Repeat("x", 256<<10) + `"}}`
	if a := meshtest.Post(t, sarah.URL, chris.Sign(sealedBy(t, chris, sarah.ID(), wire.Deliver, inner(big)))); a.Status != http.StatusRequestEntityTooLarge {
		t.Errorf("256 KiB inside: %d %s", a.Status, a.Body)
	}
	most := strings.Replace(big, strings.Repeat("x", 256<<10), strings.Repeat("x", 180<<10), 1)
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(sealedBy(t, chris, sarah.ID(), wire.Deliver, inner(most)))), http.StatusOK)
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusOK)
}

// TestSealedExport: an export marks sealed messages and hides their text. If the owner asks for it, the export
// contains the text with a proof.
func TestSealedExport(t *testing.T) {
	mesh := meshtest.New(t)
	calls := make(chan hook.Call, 1)
	sarah := mesh.Node("sarah", answers(secretReply, calls))
	chris := mesh.Node("chris", open)
	out := outgoing(t, sarah.ID(), wire.Deliver, secretBody)
	out.Seal, out.Conv = owner.Sealed, "conv_proof"
	mustSend(t, chris.Node, out, 30*time.Second)
	export := func(query string) string {
		a := chris.Ask(http.MethodGet, "/conversations/conv_proof/export"+query, nil)
		must(t, a, http.StatusOK)
		return string(a.Body)
	}
	shut := export("")
	report, err := conversations.VerifyExport(strings.NewReader(shut))
	if err != nil || report.Sealed != 2 || report.Opened != 0 || strings.Contains(shut, "secret") || strings.Contains(shut, `"key"`) {
		t.Errorf("report = %+v, %v: %s", report, err, shut)
	}
	opened := export("?opened=true")
	report, err = conversations.VerifyExport(strings.NewReader(opened))
	if err != nil || report.Sealed != 2 || report.Opened != 2 || !strings.Contains(opened, "the answer to the secret") {
		t.Errorf("report = %+v, %v", report, err)
	}
	// The shown text cannot differ from the sealed text, even if the forger can write the closing line of the export.
	lines := strings.SplitAfter(opened, "\n")
	for _, change := range [][2]string{{"the secret of", "the prize of_"}, {`"opened":`, `"Opened":`}} {
		changed := strings.Replace(lines[1], change[0], change[1], 1)
		if _, err := conversations.VerifyExport(strings.NewReader(lines[0] + changed + strings.Join(lines[2:], ""))); !errors.Is(err, conversations.ErrExport) {
			t.Errorf("%q: %v, want ErrExport", change[1], err)
		}
	}
	var view struct {
		Sealed     bool `json:"sealed"`
		Transcript []struct {
			Sealed bool            `json:"sealed"`
			Opened json.RawMessage `json:"opened"`
		} `json:"transcript"`
	}
	if status := chris.Call(http.MethodGet, "/conversations/conv_proof", nil, &view); status != http.StatusOK || !view.Sealed ||
		len(view.Transcript) != 2 || !view.Transcript[0].Sealed || string(view.Transcript[0].Opened) != secretBody {
		t.Errorf("the owner reads %d %+v", status, view)
	}
}

// TestSealedExportOfExtremes: an opened payload that is as deep as a payload may be, or full of characters that some
// encoders escape, is in an export that verifies.
func TestSealedExportOfExtremes(t *testing.T) {
	mesh := meshtest.New(t)
	sarah, chris := mesh.Node("sarah", open), mesh.Node("chris", open)
	for conv, body := range map[wire.ConversationID]string{
		"conv_wide": `{"action":"deliver","message":{"body":"` + strings.Repeat("<&>", 50<<10) + `"}}`,
		"conv_deep": `{"action":"deliver","message":{"body":"x"},"x":` + strings.Repeat("[", wire.MaxDepth-1) + strings.Repeat("]", wire.MaxDepth-1) + `}`,
	} {
		out := outgoing(t, sarah.ID(), wire.Deliver, body)
		out.Seal, out.Conv = owner.Sealed, conv
		mustSend(t, chris.Node, out, 30*time.Second)
		a := chris.Ask(http.MethodGet, "/conversations/"+string(conv)+"/export?opened=true", nil)
		must(t, a, http.StatusOK)
		if report, err := conversations.VerifyExport(bytes.NewReader(a.Body)); err != nil || report.Opened == 0 {
			t.Errorf("%s: %+v, %v", conv, report, err)
		}
	}
}

// TestSealedApproval: the owner sees that a held message will be sealed, and it leaves only sealed.
func TestSealedApproval(t *testing.T) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", open)
	chris := mesh.Node("chris", func(cfg *node.Config) { cfg.Outbound.Approve = []string{"*"} })
	out := outgoing(t, sarah.ID(), wire.Deliver, secretBody)
	out.Seal, out.Conv = owner.Sealed, "conv_wait"
	if sent := mustSend(t, chris.Node, out, 0); sent.State != owner.SendHeld {
		t.Fatalf("sent = %+v", sent)
	}
	ask := theAsk(t, chris)
	if !bytes.Contains(ask.Body, []byte(`"sealed":true`)) {
		t.Errorf("the owner sees %s", ask.Body)
	}
	if _, err := chris.Asks().Decide(t.Context(), ask.ID, ask.Hash, acl.Approve, "test", time.Now()); err != nil {
		t.Fatal(err)
	}
	if said, _ := conversations.ReadContent(transcriptOf(t, chris, sarah.ID(), "conv_wait")[0]); !said.Sealed {
		t.Error("it left unsealed")
	}
	waitFor(t, "the sealed message to arrive", func() bool {
		items, _, err := sarah.Inbox(t.Context(), "", "", 10)
		return err == nil && len(items) == 1 && items[0].Sealed && string(items[0].Payload) == secretBody
	})
}

// TestSealedApprovalStaysSealed: a message that the owner approved as sealed does not leave unsealed after the rule
// changed.
func TestSealedApprovalStaysSealed(t *testing.T) {
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", open)
	rule := func(seal node.Sealing) func(*node.Config) {
		return func(cfg *node.Config) { cfg.Outbound.Approve, cfg.Outbound.Seal = []string{"*"}, seal }
	}
	chris := mesh.Node("chris", rule(node.SealPrefer))
	out := outgoing(t, sarah.ID(), wire.Deliver, secretBody)
	out.Conv = "conv_wait"
	if sent := mustSend(t, chris.Node, out, 0); sent.State != owner.SendHeld {
		t.Fatalf("sent = %+v", sent)
	}
	ask := theAsk(t, chris)
	if !bytes.Contains(ask.Body, []byte(`"sealed":true`)) {
		t.Fatalf("the owner sees %s", ask.Body)
	}
	chris = mesh.Restart(chris, rule(node.SealOff))
	if _, err := chris.Asks().Decide(t.Context(), ask.ID, ask.Hash, acl.Approve, "test", time.Now()); !errors.Is(err, node.ErrCannotSeal) {
		t.Errorf("Decide() = %v, want ErrCannotSeal", err)
	}
	entries, err := chris.Store.Steps().Transcript(t.Context(), store.ConvKey{Peer: string(sarah.ID()), ID: "conv_wait"}, 0, 100)
	if err != nil || len(entries) != 0 {
		t.Errorf("%d messages left, %v", len(entries), err)
	}
}

// TestSealedAnswerToNobody: a hook's answer that must be sealed but cannot be stays with the owner.
func TestSealedAnswerToNobody(t *testing.T) {
	mesh := meshtest.New(t)
	calls := make(chan hook.Call, 1)
	sarah := mesh.Node("sarah", answers(secretReply, calls))
	chris := mesh.Stranger("chris") // without an age recipient
	body := chris.Sign(sealedBy(t, chris, sarah.ID(), wire.Deliver, ageFile(t, withSealer(hello, chris.ID), mesh.Age("sarah").PublicText())))
	must(t, meshtest.Post(t, sarah.URL, body), http.StatusAccepted)
	items, _, err := sarah.Inbox(t.Context(), owner.ItemFailed, "", 10)
	if err != nil || len(items) != 1 || !strings.Contains(items[0].Note, "sealed") {
		t.Errorf("items = %+v, %v, want the failed answer with its reason", items, err)
	}
	for _, e := range transcriptOf(t, sarah, chris.ID, items[0].Conversation) {
		if bytes.Contains(e.Raw, []byte("the answer")) {
			t.Errorf("it left unsealed: %s", e.Raw)
		}
	}
}
