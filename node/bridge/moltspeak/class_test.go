package moltspeak

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/personal"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

func newPIIDraft(r *rig, peer, p string, types ...string) message.Draft {
	d := r.draft(peer, message.OpQuery, p)
	d.Class = message.PII
	d.PII = &message.PIIMeta{Types: types, GrantedBy: "user:jane", Purpose: "sync", Proof: "consent-token:x", Expires: time.Now().Add(time.Hour)}
	return d
}

// TestPersonalData: personal data is accepted only encrypted, with a consent that covers it, and from a peer that the
// owner granted it. It is masked wherever it is stored (MS-37, MS-39).
func TestPersonalData(t *testing.T) {
	var log bytes.Buffer
	r, n := newTestRig(t, func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	const p = `{"domain":"agentmesh","intent":"ask","params":{"question":"who is jane.doe@example.com?","nested":[{"email":"kim.lee@example.org"}]}}`
	if m, _ := r.sayBoxed(cat, newPIIDraft(r, cat, p, personal.TypeEmail)); m.P.GetStr("code") != string(message.CodeCapability) {
		t.Errorf("before the owner granted it: %s", m.P.JSON())
	}
	if err := r.b.pins.setGranted(t.Context(), cat, true); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*message.Draft){
		"no meta":      func(d *message.Draft) { d.PII = nil },
		"expired":      func(d *message.Draft) { d.PII.Expires = time.Now().Add(-time.Second) },
		"another type": func(d *message.Draft) { d.PII.Types = []string{personal.TypePhone} },
		"no proof":     func(d *message.Draft) { d.PII.Proof = "" },
		"no purpose":   func(d *message.Draft) { d.PII.Purpose = "" },
	} {
		d := newPIIDraft(r, cat, p, personal.TypeEmail)
		change(&d)
		if m, _ := r.sayBoxed(cat, d); m.Op != message.OpError || name != "no proof" && name != "no purpose" && m.P.GetStr("code") != string(message.CodeConsent) {
			t.Errorf("%s: %s", name, m.P.JSON())
		}
	}
	if len(n.got) != 0 {
		t.Fatalf("the node got %d messages", len(n.got))
	}
	if m, status := r.sayBoxed(cat, newPIIDraft(r, cat, p, personal.TypeEmail)); m.Op != message.OpRespond || status >= 300 {
		t.Fatalf("covered: %d %s", status, m.P.JSON())
	}
	consent := func(i int) string {
		meta, _ := n.got[i].Payload.Get("metadata")
		mark, _ := meta.Get("bridge")
		shown, _ := mark.Get("consent")
		return mark.GetStr("cls") + string(shown.JSON())
	}
	if got := consent(0); got != `pii{"granted_by":"user:jane","purpose":"sync","verified":false}` {
		t.Errorf("the owner is shown %s", got)
	}
	named := newPIIDraft(r, cat, p, personal.TypeEmail)
	named.PII.MaskFields = []string{"question"}
	r.sayBoxed(cat, named)
	if len(n.got) != 2 {
		t.Fatalf("the node got %d messages, want 2", len(n.got))
	}
	for i, kept := range []string{string(n.got[0].Payload.JSON()) + string(n.got[0].Raw), string(n.got[1].Payload.JSON())} {
		if strings.Contains(kept, "jane.doe@") || !strings.Contains(kept, message.Masked) || (i == 0) == strings.Contains(kept, "kim.lee@") {
			t.Errorf("kept %d: %s", i, kept)
		}
	}
	for _, g := range []Grant{{ID: "ours", Peer: cat, Expires: time.Now().Add(time.Hour).Unix()}, {ID: "dogs", Peer: dog, Expires: time.Now().Add(time.Hour).Unix()}} {
		if err := r.b.records.Apply(t.Context(), []store.Change{g.change(store.Absent)}, time.Now()); err != nil {
			t.Fatal(err)
		}
		proven := newPIIDraft(r, cat, p, personal.TypeEmail)
		proven.PII.Proof = "consent-token:" + g.ID
		r.sayBoxed(cat, proven)
		if got := consent(len(n.got) - 1); strings.Contains(got, `"verified":true`) != (g.Peer == cat) {
			t.Errorf("a consent that we gave to %s: %s", g.Peer, got)
		}
	}
	if strings.Contains(log.String(), "jane.doe@") || strings.Contains(log.String(), "kim.lee@") {
		t.Errorf("the log holds personal data: %s", &log)
	}
}

// TestPersonalDataBesideThePayload: personal data in ext, or in a member that the protocol does not know, needs the
// same consent as in the payload, and is masked in the transcript. The URL of an endpoint is not personal data.
func TestPersonalDataBesideThePayload(t *testing.T) {
	r, n := newTestRig(t, nil)
	r.sayBoxed(cat, r.draft(cat, message.OpPing, `{"nonce":1}`)) // pins the key
	if err := r.b.pins.setGranted(t.Context(), cat, true); err != nil {
		t.Fatal(err)
	}
	const endpoint = `"agentmesh.endpoint":{"url":"http://192.0.2.1:8080/moltspeak/v0.1"}`
	for _, beside := range []string{`{"ext":{` + endpoint + `,"acme.about":{"note":"ask jane.doe@example.com"}}}`, `{"note":"ask jane.doe@example.com"}`} {
		for _, declared := range []string{personal.TypePhone, personal.TypeEmail} {
			d := newPIIDraft(r, cat, plainQuery, declared)
			tree := d.Tree()
			for _, m := range mustTree(t, beside).Members() {
				tree = tree.With(m.Key, m.Value)
			}
			before := len(n.got)
			signed := message.Sign(tree, keyOf(cat))
			m, _ := r.sendRaw(cat, message.Seal(signed, boxOf(cat), boxOf("me@home").Public()))
			switch covered := declared == personal.TypeEmail; {
			case !covered && (m.P.GetStr("code") != string(message.CodeConsent) || len(n.got) > before):
				t.Errorf("%s with a consent for another type: %s", beside, m.P.JSON())
			case covered && (m.Op != message.OpRespond || len(n.got) == before):
				t.Errorf("%s with consent: %s", beside, m.P.JSON())
			case covered && strings.Contains(string(n.got[before].Raw), "jane.doe"):
				t.Errorf("the transcript has %s", n.got[before].Raw)
			}
		}
	}
	d := newPIIDraft(r, cat, plainQuery, personal.TypeEmail)
	d.Ext = mustTree(t, "{"+endpoint+"}")
	if m, _ := r.sayBoxed(cat, d); m.Op != message.OpRespond {
		t.Errorf("an endpoint with an IP address: %s", m.P.JSON())
	}
}

// TestUnknownNestedMembersStayOutOfTheTranscript: an unknown member of from, to or pii_meta may hold personal data, so
// the transcript does not get it. It gets the known members as they came.
func TestUnknownNestedMembersStayOutOfTheTranscript(t *testing.T) {
	r, n := newTestRig(t, nil)
	r.sayBoxed(cat, r.draft(cat, message.OpPing, `{"nonce":1}`)) // pins the key
	if err := r.b.pins.setGranted(t.Context(), cat, true); err != nil {
		t.Fatal(err)
	}
	const note = `{"note":"ask jane.doe@example.com"}`
	d := newPIIDraft(r, cat, plainQuery, personal.TypeEmail)
	d.PII.Scope, d.PII.MaskFields = []string{personal.TypeEmail}, []string{"secret"}
	tree := d.Tree()
	for _, key := range []string{"from", "to", "pii_meta"} {
		member, _ := tree.Get(key)
		if consent, ok := member.Get("consent"); ok {
			member = member.With("consent", consent.With("about", mustTree(t, note)))
		}
		tree = tree.With(key, member.With("about", mustTree(t, note)))
	}
	signed := message.Sign(tree, keyOf(cat))
	m, _ := r.sendRaw(cat, message.Seal(signed, boxOf(cat), boxOf("me@home").Public()))
	if m.Op != message.OpRespond || len(n.got) != 1 {
		t.Fatalf("answered %s", m.P.JSON())
	}
	raw := mustTree(t, string(n.got[0].Raw)).Without("sig")
	if want := d.Tree(); string(raw.JSON()) != string(want.JSON()) {
		t.Errorf("the transcript has\n%s, want\n%s", raw.JSON(), want.JSON())
	}
}

// TestPersonalDataIsReadLast: the slow scan for personal data comes last. Size, named consent and the peer's
// permission are checked first (MS-50).
func TestPersonalDataIsReadLast(t *testing.T) {
	r, n := newTestRig(t, nil)
	large := newPIIDraft(r, cat, `{"domain":"agentmesh","intent":"ask","params":{"question":"jane.doe@example.com `+strings.Repeat(" .", wire.MaxMessage/2)+`"}}`, personal.TypePhone)
	bare := newPIIDraft(r, cat, `{"domain":"agentmesh","intent":"ask","params":{"question":"jane.doe@example.com"}}`, personal.TypePhone)
	stray := bare
	stray.Op, stray.P = message.OpStream, mustTree(t, `{"action":"chunk","stream_id":"none","seq":0,"data":"jane.doe@example.com"}`)
	for _, step := range []struct {
		name  string
		draft message.Draft
		want  message.Code
		field string
	}{
		{"of a peer that may not send it", bare, message.CodeCapability, "cls"},
		{"too large", large, message.CodeInvalidParam, "p"},
		{"of no open stream", stray, message.CodeInvalidParam, "p.stream_id"},
		{"not covered", bare, message.CodeConsent, "pii_meta"},
	} {
		step.draft.ID = "fresh " + step.name
		if m, _ := r.sayBoxed(cat, step.draft); message.Code(m.P.GetStr("code")) != step.want || m.P.GetStr("field") != step.field {
			t.Errorf("%s: %s, want %s %s", step.name, m.P.JSON(), step.want, step.field)
		}
		if err := r.b.pins.setGranted(t.Context(), cat, true); err != nil {
			t.Fatal(err)
		}
	}
	if len(n.got) != 0 {
		t.Errorf("the node got %d messages", len(n.got))
	}
}

// TestClassOfAnswers: the answer that a peer gives on the connection of our message is accepted only as its class
// demands, like any other message: encrypted, with a consent, and a secret never reaches the node (MS-37, MS-39). The
// error for a refused answer tells the node that the peer accepted our message.
func TestClassOfAnswers(t *testing.T) {
	var log bytes.Buffer
	r, n := newTestRig(t, func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	const data = `{"status":"success","data":"jane.doe@example.com"}`
	covered := newPIIDraft(r, cat, data, personal.TypeEmail).PII
	for _, tt := range []struct {
		name  string
		class message.Class
		pii   *message.PIIMeta
		boxed bool
		want  message.Code
	}{
		{"plain conf", message.Confidential, nil, false, message.CodeClassification},
		{"boxed conf", message.Confidential, nil, true, ""},
		{"plain pii", message.PII, covered, false, message.CodeClassification},
		{"pii of a peer that may not send it", message.PII, covered, true, message.CodeCapability},
		{"secret", message.Secret, nil, true, message.CodeClassification},
		{"pii without a consent", message.PII, nil, true, message.CodeConsent},
		{"pii", message.PII, covered, true, ""},
	} {
		if tt.want == message.CodeConsent {
			if err := r.b.pins.setGranted(t.Context(), cat, true); err != nil {
				t.Fatal(err)
			}
		}
		r.reply = func(peer string, got wire.Value) []byte {
			d := r.draft(peer, message.OpRespond, data)
			d.Re, d.Class, d.PII = got.GetStr("id"), tt.class, tt.pii
			raw := r.sign(peer, d)
			if tt.boxed {
				raw = message.Seal(mustTree(t, string(raw)), boxOf(peer), boxOf("me@home").Public())
			}
			return raw
		}
		before := len(n.got)
		_, err := r.b.Deliver(t.Context(), newDelivery(t, cat, IntentQuery, `{"action":"query","domain":"weather"}`))
		refused, ok := errors.AsType[*message.Error](err)
		if ok != (tt.want != "") || ok != errors.Is(err, client.ErrReplyUnverified) || ok && refused.Code != tt.want || (len(n.got) == before) != (tt.want != "") {
			t.Errorf("%s: %v, the node got %d messages", tt.name, err, len(n.got)-before)
		}
	}
	if kept := string(n.got[len(n.got)-2].Raw); strings.Contains(kept, "jane.doe@") || strings.Contains(log.String(), "jane.doe@") {
		t.Errorf("the answer is kept unmasked: %s\n%s", kept, &log)
	}
}

// TestSecretsAreNotKept: a secret is passed on in memory and is stored nowhere (MS-37).
func TestSecretsAreNotKept(t *testing.T) {
	const marker = "correct-horse-battery-staple"
	path := filepath.Join(t.TempDir(), "secrets.db")
	s, err := bolt.Open(t.Context(), path, bolt.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var log bytes.Buffer
	got := ""
	n := &fakeNode{s: s}
	r := newRig(t, bridgetest.NewMesh(n, s), s, func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		c.Secret = func(_ context.Context, from string, p wire.Value) (wire.Value, error) {
			if p.GetStr("domain") == "fine" {
				return wire.Obj(wire.TextField("token", marker)), nil
			}
			got = from + " " + p.GetStr("domain")
			return wire.Obj(), errors.New("no: " + marker)
		}
	})
	secret := func(peer string) message.Draft {
		d := r.draft(peer, message.OpQuery, `{"domain":"`+marker+`"}`)
		d.Class = message.Secret
		return d
	}
	if m, _ := r.sayBoxed(cat, secret(cat)); m.P.GetStr("code") != string(message.CodeClassification) || got != "" {
		t.Errorf("a secret of another organization: %s", m.P.JSON())
	}
	const friend = "friend@home"
	if m, _ := r.sayBoxed(friend, secret(friend)); m.P.GetStr("code") != string(message.CodeCapability) || got != "" {
		t.Errorf("a secret of an agent that the owner has not allowed: %s", m.P.JSON())
	}
	if err := acl.NewRules(r.store.Records(), acl.Policy{}).Set(t.Context(), "moltspeak:inbound/"+friend, acl.Allowed, time.Now()); err != nil {
		t.Fatal(err)
	}
	d := secret(friend)
	m, _ := r.sayBoxed(friend, d)
	if got != friend+" "+marker || m.P.GetStr("code") != string(message.CodeTaskFailed) {
		t.Errorf("the handler got %q, the peer %s", got, m.P.JSON())
	}
	taken := secret(friend)
	taken.P = mustTree(t, `{"domain":"fine"}`)
	if m, _ := r.sayBoxed(friend, taken); m.Op != message.OpRespond || m.Class != message.Secret || m.P.GetStr("status") != "success" {
		t.Errorf("the answer to a secret is %s: %s", m.Class, m.Tree.JSON())
	}
	if again, status := r.sayBoxed(friend, d); status != http.StatusConflict {
		t.Errorf("a repeat: %d %s", status, again.P.JSON())
	}
	data, err := os.ReadFile(path)
	if err != nil || bytes.Contains(data, []byte(marker)) || strings.Contains(log.String(), marker) || len(n.got) != 0 {
		t.Errorf("the secret was kept: file %v, log %v, node %d, %v", bytes.Contains(data, []byte(marker)), strings.Contains(log.String(), marker), len(n.got), err)
	}
}

// TestConfidential: confidential messages must be encrypted and are deleted after seven days, and so are the answers
// to them (MS-37).
func TestConfidential(t *testing.T) {
	r, n := newTestRig(t, func(c *Config) { c.PlainConf = []string{dog, "plain@x"} })
	conf := func(peer string) message.Draft {
		d := r.draft(peer, message.OpQuery, plainQuery)
		d.Class = message.Confidential
		return d
	}
	answered := func(peer string, raw []byte) (message.Class, bool) {
		t.Helper()
		reply := r.b.Receive(t.Context(), raw, nil, nil)
		p, e := message.ReadPacket(reply.Body, boxOf(peer))
		if e != nil || p.Tree.GetStr("op") != "respond" {
			t.Fatalf("%v: %s", e, reply.Body)
		}
		return message.Class(p.Tree.GetStr("cls")), p.Boxed
	}
	inBox := func(peer string, d message.Draft) []byte {
		return message.Seal(mustTree(t, string(r.sign(peer, d))), boxOf(peer), boxOf("me@home").Public())
	}
	if class, boxed := answered(cat, inBox(cat, conf(cat))); class != message.Confidential || !boxed {
		t.Errorf("the answer is %s, boxed %v", class, boxed)
	}
	if life := time.Until(n.got[0].Purge); life > keepConfidential || life < keepConfidential-time.Hour {
		t.Errorf("it is kept for %s", life)
	}
	if class, boxed := answered(dog, r.sign(dog, conf(dog))); class != message.Confidential || !boxed {
		t.Errorf("from a peer that may send it in the open and has a key, the answer is %s, boxed %v", class, boxed)
	}
	keyless := conf("plain@x")
	keyless.From = message.Agent{Agent: "plain", Org: "x", Key: self("plain@x").Key}
	if class, boxed := answered("plain@x", r.sign("plain@x", keyless)); class != message.Confidential || boxed {
		t.Errorf("from one that has none, the answer is %s, boxed %v", class, boxed)
	}
	if _, boxed := answered(cat, r.sign(cat, r.draft(cat, message.OpQuery, plainQuery))); boxed || !n.got[3].Purge.IsZero() {
		t.Errorf("an internal message: boxed %v, gone at %s", boxed, n.got[3].Purge)
	}
	personal := newPIIDraft(r, cat, plainQuery, personal.TypeEmail)
	for class, d := range map[message.Class]message.Draft{message.Confidential: conf(cat), message.PII: personal} {
		if m, _ := r.sendRaw(cat, r.sign(cat, d)); message.Code(m.P.GetStr("code")) != message.CodeClassification {
			t.Errorf("%s in the open: %s", class, m.P.JSON())
		}
	}
	if len(n.got) != 4 {
		t.Errorf("the node got %d messages, want 4", len(n.got))
	}
}

// TestLaterAnswersAreBoxed: a late answer is encrypted and confidential exactly like an answer at once. A peer that
// has shown no key gets the answer by repeating its message.
func TestLaterAnswersAreBoxed(t *testing.T) {
	r, n := newTestRig(t, nil)
	n.take = func(bridge.Inbound) (bridge.Outcome, error) {
		return bridge.Outcome{Status: http.StatusAccepted, Held: true, Raw: []byte(`{"payload":{"action":"pending_approval"}}`)}, nil
	}
	final := func() bridge.Delivery {
		in := n.got[len(n.got)-1]
		d := newDelivery(t, cat, in.Intent, `{"action":"answer","answer":"sunny"}`)
		d.Address, d.To, d.Message.Conversation = in.Address, in.Peer, in.ConvID
		return d
	}
	for _, class := range []message.Class{message.Internal, message.Confidential} {
		q := r.draft(cat, message.OpQuery, plainQuery)
		q.Class = class
		r.sayBoxed(cat, q)
		if _, err := r.b.Deliver(t.Context(), final()); err != nil {
			t.Fatal(err)
		}
		p, e := message.ReadPacket(<-r.queue(cat), boxOf(cat))
		if e != nil || !p.Boxed || message.Class(p.Tree.GetStr("cls")) != class {
			t.Errorf("%s: answered %s, boxed %v, %v", class, p.Tree.GetStr("cls"), p.Boxed, e)
		}
	}
	const bird = "bird@air"
	q := r.draft(bird, message.OpQuery, plainQuery)
	q.From.EncKey = ""
	raw := message.Seal(mustTree(t, string(r.sign(bird, q))), boxOf(bird), boxOf("me@home").Public())
	r.sendRaw(bird, raw)
	if _, err := r.b.Deliver(t.Context(), final()); err != nil {
		t.Fatal(err)
	}
	again := r.b.Receive(t.Context(), raw, nil, nil)
	if p, e := message.ReadPacket(again.Body, boxOf(bird)); e != nil || !p.Boxed || !strings.Contains(string(p.Tree.JSON()), "sunny") {
		t.Errorf("the repeat is answered %s, %v", again.Body, e)
	}
}

// TestUnlistedClasses: a peer gets no message of a class that it did not list in its hello (MS-38).
func TestUnlistedClasses(t *testing.T) {
	r, _ := newTestRig(t, nil)
	ack, _ := r.say(cat, r.draft(cat, message.OpHello, `{"protocol_versions":["0.1"],"supported_cls":["public"]}`))
	pong, _ := r.say(cat, r.draft(cat, message.OpPing, `{"nonce":1}`))
	if ack.Op != message.OpRespond || pong.Op != message.OpPong || pong.Class != message.Public {
		t.Errorf("what the bridge says is %s %s", pong.Class, pong.Tree.JSON())
	}
	d := r.draft(cat, message.OpQuery, plainQuery)
	d.Class = message.Public
	if m, status := r.say(cat, d); status != http.StatusForbidden || m.P.GetStr("code") != string(message.CodeClassification) || m.Class != message.Public {
		t.Errorf("an internal answer: %d %s", status, m.Tree.JSON())
	}
	if _, err := r.b.Deliver(t.Context(), newDelivery(t, cat, IntentQuery, `{"action":"query","domain":"x"}`)); err == nil || len(r.queue(cat)) != 0 {
		t.Errorf("an internal message left: %v", err)
	}
}

// TestAnswersOfEncryptedLink: behind a link that encrypts always, an answer at once leaves encrypted too. If the peer
// has shown no encryption key, the owner's text does not leave at all.
func TestAnswersOfEncryptedLink(t *testing.T) {
	r, _ := newTestRig(t, func(c *Config) { c.Links[0].Policy.Encrypt = encryptAlways })
	for _, hasKey := range []bool{false, true} {
		d := r.draft(cat, message.OpQuery, plainQuery)
		if !hasKey {
			d.From.EncKey = ""
		}
		reply := r.b.Receive(t.Context(), r.sign(cat, d), nil, nil)
		p, e := message.ReadPacket(reply.Body, boxOf(cat))
		if e != nil {
			t.Fatal(e)
		}
		refused := p.Tree.GetStr("op") == string(message.OpError)
		if p.Boxed != hasKey || refused == hasKey {
			t.Errorf("with a key %v: encrypted %v, %s", hasKey, p.Boxed, p.Tree.JSON())
		}
	}
}

// TestAnswersToAPeerWithoutAKey: behind a link that encrypts always, a peer without an encryption key gets only errors
// and the answers of a handshake. When it has shown its key, a repeat of its request gets the answer, encrypted.
func TestAnswersToAPeerWithoutAKey(t *testing.T) {
	r, _ := newTestRig(t, func(c *Config) {
		c.Links[0].Policy.Encrypt = encryptAlways
		c.Directories = []Directory{cards{listedCard}}
		c.Tools = []ToolInfo{{Name: "search"}}
	})
	keyless := func(op message.Op, p string) message.Draft {
		d := r.draft(cat, op, p)
		d.From.EncKey = ""
		return d
	}
	for _, op := range []struct {
		op message.Op
		p  string
	}{{message.OpHello, `{"protocol_versions":["0.1"]}`}, {message.OpPing, `{"nonce":1}`}} {
		if code := r.code(cat, keyless(op.op, op.p)); code != "" {
			t.Errorf("%s: %s", op.op, code)
		}
	}
	list := keyless(message.OpTool, `{"action":"list"}`)
	consent := keyless(message.OpConsent, `{"action":"request","data_types":["email"],"purpose":"sync","duration":"24h"}`)
	for _, d := range []message.Draft{list, consent, keyless(message.OpDiscover, `{"capability":"talk"}`)} {
		if code := r.code(cat, d); code != message.CodeClassification {
			t.Errorf("%s: %q", d.Op, code)
		}
	}
	if err := r.approve(r.questions()[0]); err != nil {
		t.Fatal(err)
	}
	r.answerConsent()
	if code := r.code(cat, consent); code != message.CodeClassification {
		t.Errorf("the consent token: %q", code)
	}
	r.say(cat, r.draft(cat, message.OpPing, `{"nonce":1}`)) // shows the key
	for _, d := range []message.Draft{list, consent} {
		reply := r.b.Receive(t.Context(), r.sign(cat, d), nil, nil)
		if p, e := message.ReadPacket(reply.Body, boxOf(cat)); e != nil || !p.Boxed || p.Tree.GetStr("op") == string(message.OpError) {
			t.Errorf("%s again: %s, %v", d.Op, reply.Body, e)
		}
	}
}
