package moltspeak

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

const cat, dog = "cat@acme", "dog@acme"

const plainQuery = `{"domain":"weather","intent":"forecast","params":{"city":"Tokyo"}}`

func (r *rig) sayBoxed(peer string, d message.Draft) (message.Message, int) {
	r.t.Helper()
	return r.sendRaw(peer, message.Seal(mustTree(r.t, string(r.sign(peer, d))), boxOf(peer), boxOf("me@home").Public()))
}

// TestPins: the first use of a key pins it. Nobody else can use a pinned name (MS-23), and only the owner removes a
// pin.
func TestPins(t *testing.T) {
	r, n := newTestRig(t, nil)
	if code := r.code(cat, r.draft(cat, message.OpQuery, plainQuery)); code != "" {
		t.Fatalf("first message: %s", code)
	}
	forged := r.draft(cat, message.OpQuery, plainQuery)
	forged.From = message.Agent{Agent: "cat", Org: "acme", Key: self(dog).Key}
	if m, status := r.sendRaw(dog, r.sign(dog, forged)); status != http.StatusUnauthorized || m.P.GetStr("code") != string(message.CodeAuthFailed) {
		t.Errorf("another key: %d %s", status, m.P.JSON())
	}
	keyless := r.draft(cat, message.OpQuery, plainQuery)
	keyless.From.Key = ""
	if m, status := r.sendRaw(dog, r.sign(dog, keyless)); status != http.StatusUnauthorized || m.P.GetStr("code") != string(message.CodeSignature) {
		t.Errorf("signed by another, no key claimed: %d %s", status, m.P.JSON())
	}
	moved := r.draft(cat, message.OpQuery, plainQuery)
	moved.From.EncKey = self(dog).EncKey
	if code := r.code(cat, moved); code != message.CodeAuthFailed {
		t.Errorf("another encryption key: %q", code)
	}
	if len(n.got) != 1 {
		t.Errorf("the node got %d messages, want 1", len(n.got))
	}
	list, err := r.b.pins.list(t.Context())
	if err != nil || len(list) != 1 || list[0].Refused != forged.From.Key {
		t.Errorf("the owner is shown %+v, %v", list, err)
	}
	if err := r.b.unpin(t.Context(), cat); err != nil {
		t.Fatal(err)
	}
	if m, status := r.sendRaw(dog, r.sign(dog, forged)); status >= 300 {
		t.Errorf("after the owner lifted the pin: %d %s", status, m.P.JSON())
	}
}

// TestRefusedEncryptionKey: the owner sees the refused encryption key, whether or not the message also names the pinned
// signing key.
func TestRefusedEncryptionKey(t *testing.T) {
	for _, key := range []string{self(cat).Key, ""} {
		r, _ := newTestRig(t, nil)
		if code := r.code(cat, r.draft(cat, message.OpQuery, plainQuery)); code != "" {
			t.Fatalf("first message: %s", code)
		}
		moved := r.draft(cat, message.OpQuery, plainQuery)
		moved.From.Key, moved.From.EncKey = key, self(dog).EncKey
		if code := r.code(cat, moved); code != message.CodeAuthFailed {
			t.Errorf("another encryption key: %q", code)
		}
		list, err := r.b.pins.list(t.Context())
		if err != nil || len(list) != 1 || list[0].Refused != self(dog).EncKey {
			t.Errorf("signing key %q: the owner is shown %+v, %v", key, list, err)
		}
	}
}

func TestTimesAndRepeats(t *testing.T) {
	r, _ := newTestRig(t, nil)
	for off, want := range map[time.Duration]message.Code{
		-window + 30*time.Second: "", window - 30*time.Second: "", -window - 30*time.Second: message.CodeInvalidParam, window + 30*time.Second: message.CodeInvalidParam,
	} {
		d := r.draft(cat, message.OpQuery, plainQuery)
		d.Time = time.Now().Add(off)
		if code := r.code(cat, d); code != want {
			t.Errorf("ts %s off: %q, want %q", off, code, want)
		}
	}
	late := r.draft(cat, message.OpQuery, plainQuery)
	late.Expires = time.Now().Add(-time.Second)
	if code := r.code(cat, late); code != message.CodeInvalidParam {
		t.Errorf("exp has passed: %q", code)
	}
	for _, p := range []struct {
		op message.Op
		p  string
	}{{message.OpQuery, plainQuery}, {message.OpPing, `{"nonce":"n"}`}, {message.OpHello, `{"protocol_versions":["0.1"]}`}} {
		raw := r.sign(cat, r.draft(cat, p.op, p.p))
		first := r.b.Receive(t.Context(), raw, nil, nil)
		again := r.b.Receive(t.Context(), raw, nil, nil)
		restarted := newRig(t, r.b.cfg.Mesh, r.store, nil).b.Receive(t.Context(), raw, nil, nil)
		if !bytes.Equal(first.Body, again.Body) || !bytes.Equal(first.Body, restarted.Body) || first.Status != again.Status {
			t.Errorf("%s: a repeat got another answer:\n%s\n%s\n%s", p.op, first.Body, again.Body, restarted.Body)
		}
	}
	d := r.draft(cat, message.OpQuery, plainQuery)
	r.say(cat, d)
	d.P = mustTree(t, `{"domain":"other"}`)
	if m, status := r.say(cat, d); status != http.StatusConflict || m.P.GetStr("field") != "id" {
		t.Errorf("other content under the same id: %d %s", status, m.P.JSON())
	}
}

// TestRefusals: unclear messages are refused: each of these gets a signed error and reaches no handler (MS-8, MS-50).
func TestRefusals(t *testing.T) {
	r, n := newTestRig(t, func(c *Config) { c.Tools = []ToolInfo{{Name: "search"}} })
	edit := func(op message.Op, p string, change func(*message.Draft)) message.Draft {
		d := r.draft(cat, op, p)
		if change != nil {
			change(&d)
		}
		return d
	}
	for _, tt := range []struct {
		name string
		d    message.Draft
		want message.Code
	}{
		{"another recipient", edit(message.OpQuery, plainQuery, func(d *message.Draft) { d.To = message.Agent{Agent: "x", Org: "y"} }), message.CodeInvalidParam},
		{"hello of the future", edit(message.OpHello, `{"protocol_versions":["9.0"]}`, nil), message.CodeVersion},
		{"capability that is not ours", edit(message.OpQuery, plainQuery, func(d *message.Draft) { d.Cap = []string{"code.execute"} }), message.CodeCapability},
		{"register", edit(message.OpRegister, `{"action":"create"}`, nil), message.CodeCapability},
		{"code", edit(message.OpTool, `{"action":"invoke","tool":"code.execute","input":{}}`, nil), message.CodeCapability},
		{"unknown tool", edit(message.OpTool, `{"action":"invoke","tool":"rm","input":{}}`, nil), message.CodeCapability},
		{"respond to nothing", edit(message.OpRespond, `{"status":"success","data":1}`, func(d *message.Draft) { d.Re = "nothing" }), message.CodeInvalidParam},
		{"status of a stranger's task", edit(message.OpTask, `{"action":"status","task_id":"t"}`, nil), message.CodeInvalidParam},
		{"deadline over", edit(message.OpTask, `{"action":"create","task_id":"t","deadline":5}`, nil), message.CodeInvalidParam},
		{"unknown challenge", edit(message.OpVerifyResponse, `{"challenge":"`+strings.Repeat("0", 64)+`"}`, func(d *message.Draft) { d.Re = "x" }), message.CodeAuthFailed},
		{"old challenge", edit(message.OpVerify, `{"challenge":"`+strings.Repeat("0", 64)+`","timestamp":1}`, nil), message.CodeInvalidParam},
		{"beyond 2^53", edit(message.OpTask, `{"action":"create","task_id":"t","params":{"n":100000000000000000000}}`, nil), message.CodeInvalidParam},
		{"conf in the open", edit(message.OpQuery, plainQuery, func(d *message.Draft) { d.Class = message.Confidential }), message.CodeClassification},
		{"pii in the open", edit(message.OpQuery, plainQuery, func(d *message.Draft) { d.Class = message.PII }), message.CodeClassification},
		{"sec in the open", edit(message.OpQuery, plainQuery, func(d *message.Draft) { d.Class = message.Secret }), message.CodeClassification},
	} {
		m, status := r.say(cat, tt.d)
		if m.Op != message.OpError || message.Code(m.P.GetStr("code")) != tt.want || m.Re != tt.d.ID {
			t.Errorf("%s: %d %s, want %s", tt.name, status, m.Tree.JSON(), tt.want)
		}
		row, _ := message.RowOf(tt.want)
		if m.P.GetStr("category") != row.Category || status != row.Status {
			t.Errorf("%s: category %s, status %d", tt.name, m.P.GetStr("category"), status)
		}
	}
	if len(n.got) != 0 {
		t.Errorf("the node got %d messages", len(n.got))
	}
	for _, raw := range []string{"null", "", "[]", `"x"`, `{}`, `{"id":"readable","v":"0.1"}`, strings.Repeat("[", 100000)} {
		m, status := r.sendRaw(cat, []byte(raw))
		if m.Op != message.OpError || status != http.StatusBadRequest || m.To.Name() != "unknown@unknown" {
			t.Errorf("%.20q: %d %s", raw, status, m.Tree.JSON())
		}
		if strings.Contains(raw, "readable") && m.Re != "readable" {
			t.Errorf("the readable id is not named: %s", m.Tree.JSON())
		}
	}
}

// TestUnknownMembers: unknown members are ignored at any place, but the signature covers them (MS-6, MS-7).
func TestUnknownMembers(t *testing.T) {
	r, _ := newTestRig(t, nil)
	ping := r.draft(cat, message.OpPing, `{"nonce":1,"load":{"x":[1e5]}}`).Tree()
	from, _ := ping.Get("from")
	tree := message.Sign(ping.With("zz", wire.Arr(wire.Bool(true))).With("from", from.With("model", wire.Text("m"))).With("ext", mustTree(t, `{"acme.trace":{"a":null}}`)), keyOf(cat))
	if m, status := r.sendRaw(cat, tree.JSON()); m.Op != message.OpPong || status != http.StatusOK {
		t.Errorf("%d %s", status, m.Tree.JSON())
	}
	if m, _ := r.sendRaw(cat, tree.Without("zz").JSON()); m.P.GetStr("code") != string(message.CodeSignature) {
		t.Errorf("without one of them: %s", m.P.JSON())
	}
}

// TestCoreOperationsAlone: a peer gets only the nine core operations until it uses another one, and always behind a
// link with reply_ops core. The bridge understands its answers (MS-25).
func TestCoreOperationsAlone(t *testing.T) {
	r, _ := newTestRig(t, func(c *Config) {
		c.Links = append(c.Links, bridge.Link{Name: "near", Kind: Kind, URL: "https://near.example", Options: map[string]string{"peer": "near@home", "reply_ops": "core"}})
		c.Links[0].Options = map[string]string{"peer": cat, "reply_ops": "core"}
	})
	for op, p := range map[message.Op]string{
		message.OpHello: `{"protocol_versions":["0.1"]}`, message.OpPing: `{"nonce":1}`, message.OpVerify: fmt.Sprintf(`{"challenge":"%s","timestamp":%d}`, random32(), time.Now().UnixMilli()),
		message.OpConsent: `{"action":"request","data_types":["email"],"purpose":"x","duration":"session"}`, message.OpDiscover: `{"capability":"x"}`, message.OpQuery: plainQuery, message.OpTask: `{"action":"create","task_id":"t"}`,
	} {
		m, status := r.say(cat, r.draft(cat, op, p))
		if _, bad := m.Payload(); m.Op != message.OpRespond || bad != nil || status >= 300 {
			t.Errorf("%s: %d %s, %v", op, status, m.Tree.JSON(), bad)
		}
	}
	consent := `{"action":"verify","consent_token":"x"}`
	if m, _ := r.say(dog, r.draft(dog, message.OpConsent, consent)); m.Op != message.OpRespond {
		t.Errorf("a peer that showed nothing is answered with %s", m.Op)
	}
	r.say(dog, r.draft(dog, message.OpPing, `{"nonce":1}`))
	if m, _ := r.say(dog, r.draft(dog, message.OpConsent, consent)); m.Op != message.OpConsentResponse {
		t.Errorf("a peer that used ping is answered with %s", m.Op)
	}
	ack, _ := r.say(cat, r.draft(cat, message.OpHello, helloBody))
	proof := r.draft(cat, message.OpRespond, `{"status":"success","data":{"challenge":"`+challengeOf(ack)+`"}}`)
	proof.Re = ack.ID
	if m, status := r.say(cat, proof); status != http.StatusOK || m.Op != message.OpRespond || len(r.b.handshake.challenges) != 0 {
		t.Errorf("a respond with our challenge: %d %s", status, m.Tree.JSON())
	}
	r.b.handshake = newHandshakes()
	srv := r.serve()
	near, _ := newTestRig(t, func(c *Config) {
		c.Agent, c.Key, c.Box = message.Agent{Agent: "near", Org: "home"}, keyOf("near@home"), boxOf("near@home")
		c.Links = []bridge.Link{{Name: "far", Kind: Kind, URL: srv.URL, Options: map[string]string{"peer": "me@home"}}}
	})
	if err := near.b.Test(t.Context(), "far"); err != nil || len(r.b.handshake.challenges) != 0 {
		t.Errorf("shaking hands: %v, %d challenges are not answered", err, len(r.b.handshake.challenges))
	}
}

func TestHandshakes(t *testing.T) {
	r, _ := newTestRig(t, nil)
	r.shake(cat)
	ack, _ := r.say(cat, r.draft(cat, message.OpHello, `{"protocol_versions":["0.1"]}`))
	proof := r.draft(dog, message.OpVerifyResponse, `{"challenge":"`+challengeOf(ack)+`"}`)
	proof.Re = ack.ID
	if code := r.code(dog, proof); code != message.CodeAuthFailed {
		t.Errorf("another agent answers the challenge: %q", code)
	}
	challenge := random32()
	m, _ := r.say(cat, r.draft(cat, message.OpVerify, fmt.Sprintf(`{"challenge":"%s","timestamp":%d}`, challenge, time.Now().UnixMilli())))
	if m.Op != message.OpVerifyResponse || m.P.GetStr("challenge") != challenge || m.Re == "" {
		t.Errorf("our proof: %s", m.Tree.JSON())
	}
	h, now := newHandshakes(), time.Now()
	text, _ := h.challenge("a", "k", true, true, nil, now)
	if h.redeem("a", "k", text, now.Add(challengeLife)) {
		t.Error("a late answer counts")
	}
	text, _ = h.challenge("a", "k", true, true, nil, now)
	if h.redeem("a", "other", text, now) {
		t.Error("an answer under another key counts")
	}
	text, _ = h.challenge("a", "k", true, true, nil, now)
	if ok, again := h.redeem("a", "k", text, now), h.redeem("a", "k", text, now); !ok || again {
		t.Errorf("answered %v, twice %v", ok, again)
	}
	for i := range 2 * maxChallenges {
		h.challenge(fmt.Sprint("c", i), "k", true, i%2 == 0, nil, now)
	}
	if len(h.challenges) > maxChallenges {
		t.Errorf("%d challenges wait", len(h.challenges))
	}
}

// TestHoldForOwner: of an unknown peer everything but a public query waits for the owner, with or without a session
// (MS-28), and so does a tool call that is not allowed by name (MS-34).
func TestHoldForOwner(t *testing.T) {
	const bird = "bird@air" // behind no link
	r, n := newTestRig(t, func(c *Config) { c.Tools = []ToolInfo{{Name: "search", Peers: []string{dog}}, {Name: "other"}} })
	held := func(peer string, d message.Draft) bool {
		t.Helper()
		before := len(n.got)
		if m, _ := r.say(peer, d); m.Op == message.OpError || len(n.got) != before+1 {
			t.Fatalf("%s: %s", d.Op, m.Tree.JSON())
		}
		return n.got[before].Hold
	}
	public := func() message.Draft {
		d := r.draft(bird, message.OpQuery, plainQuery)
		d.Class = message.Public
		return d
	}
	task := `{"action":"create","task_id":"t%d","type":"x"}`
	if held(bird, public()) || !held(bird, r.draft(bird, message.OpQuery, plainQuery)) || !held(bird, r.draft(bird, message.OpTask, fmt.Sprintf(task, 1))) {
		t.Error("of an unknown peer, not only public queries need no approval")
	}
	r.shake(bird)
	if held(bird, public()) || !held(bird, r.draft(bird, message.OpQuery, plainQuery)) || !held(bird, r.draft(bird, message.OpTask, fmt.Sprintf(task, 2))) {
		t.Error("a handshake replaces an approval")
	}
	call := func(peer, tool string) message.Draft {
		return r.draft(peer, message.OpTool, `{"action":"invoke","tool":"`+tool+`","input":{}}`)
	}
	if !held(cat, call(cat, "search")) || held(dog, call(dog, "search")) || !held(dog, call(dog, "other")) {
		t.Error("a tool runs without the owner only for peers that it names")
	}
	if m, _ := r.say(cat, r.draft(cat, message.OpTool, `{"action":"list"}`)); !strings.Contains(string(m.P.JSON()), `"search"`) {
		t.Errorf("tools: %s", m.P.JSON())
	}
	if err := r.b.pins.setGranted(t.Context(), bird, true); err != nil || held(bird, r.draft(bird, message.OpTask, fmt.Sprintf(task, 3))) {
		t.Errorf("the task of a known peer: %v, still held", err)
	}
}

// TestEphemeralBox: for a box under a key other than the pinned one, the inner signature decides and nothing is pinned
// (MS-20).
func TestEphemeralBox(t *testing.T) {
	r, _ := newTestRig(t, nil)
	r.say(cat, r.draft(cat, message.OpQuery, plainQuery))
	ephemeral := signing.NewBoxKey(seedOf("ephemeral"))
	d := r.draft(cat, message.OpQuery, plainQuery)
	reply := r.b.Receive(t.Context(), message.Seal(mustTree(t, string(r.sign(cat, d))), ephemeral, boxOf("me@home").Public()), nil, nil)
	if p, e := message.ReadPacket(reply.Body, boxOf(cat)); e != nil || !p.Boxed || p.Tree.GetStr("op") != "respond" {
		t.Errorf("the answer to the pinned key: %v", e)
	}
	if reply := r.b.Receive(t.Context(), message.Seal(mustTree(t, string(r.sign(dog, d))), ephemeral, boxOf("me@home").Public()), nil, nil); reply.Status != http.StatusUnauthorized {
		t.Errorf("a wrong signature inside: %d", reply.Status)
	}
	p, _, err := r.b.pins.get(t.Context(), cat, time.Now())
	if err != nil || p.EncKey != self(cat).EncKey {
		t.Errorf("pinned %s, %v", p.EncKey, err)
	}
}

// TestCodeIsNeverOffered: tools that run code are never offered, whatever the configuration lists and the owner
// granted (MS-34).
func TestCodeIsNeverOffered(t *testing.T) {
	r, n := newTestRig(t, func(c *Config) {
		c.Tools = []ToolInfo{{Name: "search", Peers: []string{cat}}, {Name: "code.execute", Peers: []string{cat}}}
	})
	r.shake(cat)
	if err := r.b.pins.setGranted(t.Context(), cat, true); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{
		`{"action":"invoke","tool":"code.execute","input":{}}`, `{"action":"invoke","tool":"code.sandbox","input":{}}`, `{"action":"describe","tool":"code.execute"}`,
	} {
		if code := r.code(cat, r.draft(cat, message.OpTool, p)); code != message.CodeCapability {
			t.Errorf("%s: %q", p, code)
		}
	}
	needs := r.draft(cat, message.OpTool, `{"action":"invoke","tool":"search","input":{}}`)
	needs.Cap = []string{"code.execute"}
	if code := r.code(cat, needs); code != message.CodeCapability {
		t.Errorf("a message that asks for code.execute: %q", code)
	}
	if m, _ := r.say(cat, r.draft(cat, message.OpTool, `{"action":"list"}`)); strings.Contains(string(m.P.JSON()), "code.") || !strings.Contains(string(m.P.JSON()), "search") {
		t.Errorf("the list: %s", m.P.JSON())
	}
	if len(n.got) != 0 {
		t.Errorf("the node got %+v", n.got)
	}
}

// TestTextStaysText: a peer that asks in MoltSpeak terms gets text as text, at once and later; a peer that asks with
// an AgentMesh payload gets a payload.
func TestTextStaysText(t *testing.T) {
	const plain, answered, more = `{"action":"deliver","message":{"body":"sunny"}}`, `{"action":"answer","answer":"sunny"}`, `{"action":"deliver","message":{"body":"sunny","subject":"s"}}`
	for _, tt := range []struct {
		name, payload, want string
		op                  message.Op
		p                   string
	}{
		{"a message", plain, `"sunny"`, message.OpQuery, `{"domain":"weather"}`},
		{"an answer", answered, `"sunny"`, message.OpQuery, `{"domain":"weather"}`},
		{"a message with a subject", more, more, message.OpQuery, `{"domain":"weather"}`},
		{"no text", `{"action":"answer","answer":{"high":12}}`, `{"action":"answer","answer":{"high":12}}`, message.OpQuery, `{"domain":"weather"}`},
		{"to a domain with a handler", plain, `"sunny"`, message.OpQuery, `{"domain":"served"}`},
		{"to a native question", plain, plain, message.OpQuery, `{"domain":"agentmesh","intent":"ask","params":{"question":"how?"}}`},
		{"to a task", plain, `"sunny"`, message.OpTask, `{"action":"create","task_id":"t","type":"research"}`},
		{"to a native task", plain, plain, message.OpTask, `{"action":"create","task_id":"t","type":"mesh.message","params":{"action":"deliver","message":{"body":"hi"}}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, n := newTestRig(t, func(c *Config) { c.Domains = []string{"served"} })
			said := mustTree(t, tt.payload)
			n.take = func(bridge.Inbound) (bridge.Outcome, error) {
				return bridge.Outcome{Status: http.StatusOK, Raw: wire.Obj(wire.Field("payload", said)).JSON()}, nil
			}
			m, _ := r.say(cat, r.draft(cat, tt.op, tt.p))
			if data, _ := m.P.Get("data"); string(data.JSON()) != tt.want {
				t.Errorf("at once: %s", m.P.JSON())
			}
			n.take = func(bridge.Inbound) (bridge.Outcome, error) {
				return bridge.Outcome{Status: http.StatusAccepted, Raw: []byte(`{"payload":{"action":"received"}}`)}, nil
			}
			if m, status := r.say(dog, r.draft(dog, tt.op, tt.p)); status != http.StatusAccepted || m.P.GetStr("status") != "partial" {
				t.Fatalf("a question that waits: %d %s", status, m.P.JSON())
			}
			d := newDelivery(t, dog, wire.Deliver, tt.payload)
			d.Message.Conversation = n.got[len(n.got)-1].ConvID
			if _, err := r.b.Deliver(t.Context(), d); err != nil {
				t.Fatal(err)
			}
			later := r.receive(dog)
			if data, _ := later.P.Get("data"); later.Op != message.OpRespond || string(data.JSON()) != tt.want {
				t.Errorf("later: %s %s", later.Op, later.P.JSON())
			}
		})
	}
}

// TestHeldMessagesAreToldOnce: the peer gets one notice that the owner decides. Its later messages, also repeated
// ones, get a receipt.
func TestHeldMessagesAreToldOnce(t *testing.T) {
	r, n := newTestRig(t, nil)
	pending := []byte(`{"payload":{"action":"pending_approval","reason":"The owner of this agent approves new contacts."}}`)
	first := true
	n.take = func(bridge.Inbound) (bridge.Outcome, error) {
		out := bridge.Outcome{Status: http.StatusAccepted, Held: true, Raw: pending}
		if first {
			out.Reply, first = &wire.Message{Payload: mustTree(t, `{"action":"pending_approval"}`)}, false
		}
		return out, nil
	}
	for i, want := range []string{wire.ActionPending, wire.ActionReceived, wire.ActionReceived} {
		raw := r.sign("new@x", r.draft("new@x", message.OpQuery, `{"domain":"weather"}`))
		for range 2 {
			m, status := r.sendRaw("new@x", raw)
			if data, _ := m.P.Get("data"); status != http.StatusAccepted || m.Op != message.OpRespond || m.P.GetStr("status") != "partial" || data.GetStr("action") != want {
				t.Errorf("message %d: %d %s, want %s", i+1, status, m.P.JSON(), want)
			}
		}
	}
}
