package moltspeak

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/personal"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestConsentFlow: without a consent, personal data does not leave. With a consent it leaves encrypted. A revoked
// consent stops that at once (MS-40, MS-42).
func TestConsentFlow(t *testing.T) {
	r, _ := newTestRig(t, nil)
	r.say(cat, r.draft(cat, message.OpPing, `{"nonce":1}`)) // shows its keys
	private := func() bridge.Delivery {
		return newDelivery(t, cat, wire.Deliver, `{"action":"deliver","message":{"body":"x","list":[{"deep":"write to jane.doe@example.com"}]}}`)
	}
	if _, err := r.b.Deliver(t.Context(), private()); !goldentest.Refuses(t, "without a consent", err) || strings.Contains(err.Error(), "jane") {
		t.Fatalf("without a consent: %v", err)
	}
	if len(r.queue(cat)) != 0 {
		t.Fatal("something left")
	}
	request := `{"action":"request","data_types":["email"],"purpose":"sync","duration":"24h","human":"user:jane"}`
	m, status := r.say(cat, r.draft(cat, message.OpConsent, request))
	if status != http.StatusAccepted || m.Op != message.OpConsentResponse || m.P.GetStr("status") != "partial" {
		t.Fatalf("request: %d %s", status, m.P.JSON())
	}
	if code := r.code(cat, r.draft(cat, message.OpConsent, request)); code != message.CodeRateLimit {
		t.Errorf("another question while one waits: %q", code)
	}
	asks, _, err := r.b.cfg.Mesh.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
	if err != nil || len(asks) != 1 || asks[0].Kind != askConsent || !asks[0].Lasting {
		t.Fatalf("the owner is asked %+v, %v", asks, err)
	}
	if _, err := r.b.cfg.Mesh.Asks().Decide(t.Context(), asks[0].ID, asks[0].Hash, acl.Approve, "test", time.Now()); err != nil {
		t.Fatal(err)
	}
	r.answerConsent()
	answer := r.receive(cat)
	data, _ := answer.P.Get("data")
	token := data.GetStr("consent_token")
	if answer.Op != message.OpConsentResponse || token == "" || answer.Re != m.Re {
		t.Fatalf("the answer: %s", answer.Tree.JSON())
	}
	valid := func(peer, token string) string {
		t.Helper()
		m, _ := r.say(peer, r.draft(peer, message.OpConsent, `{"action":"verify","consent_token":"`+token+`"}`))
		data, _ := m.P.Get("data")
		v, _ := data.Get("valid")
		return string(v.JSON())
	}
	raw, _ := base64.RawURLEncoding.DecodeString(token)
	forged := base64.RawURLEncoding.EncodeToString([]byte(strings.Replace(string(raw), `"email"`, `"phone"`, 1)))
	if valid(cat, token) != "true" || valid(dog, token) != "false" || valid(cat, forged) != "false" || valid(cat, "x") != "false" {
		t.Errorf("token of its peer %s, of another %s, forged %s", valid(cat, token), valid(dog, token), valid(cat, forged))
	}
	if tree := mustTree(t, string(raw)); len(tree.GetStr("jti")) != 36 {
		t.Errorf("token: %s", raw)
	} else if exp, _ := wholeOf(tree, "exp"); time.Until(time.Unix(exp, 0)) > 25*time.Hour || time.Until(time.Unix(exp, 0)) < 23*time.Hour {
		t.Errorf("the token ends %s", time.Unix(exp, 0))
	}
	if _, err := r.b.Deliver(t.Context(), private()); err != nil {
		t.Fatalf("with the consent: %v", err)
	}
	if sent := r.receive(cat); sent.Class != message.PII || sent.PII == nil || sent.PII.CheckCoverage(personal.Types(sent.P), time.Now()) != nil {
		t.Errorf("sent: %s", sent.Tree.JSON())
	}
	more := newDelivery(t, cat, wire.Deliver, `{"action":"deliver","message":{"body":"jane.doe@example.com, +1 415 555 2671"}}`)
	if _, err := r.b.Deliver(t.Context(), more); err == nil {
		t.Error("a type that the consent does not name left")
	}
	if code := r.code(dog, r.draft(dog, message.OpConsent, `{"action":"revoke","consent_token":"`+token+`"}`)); code != message.CodeConsent {
		t.Errorf("revoked by another: %q", code)
	}
	grants, err := r.b.grants.list(t.Context(), "", time.Now())
	if err != nil || len(grants) != 1 {
		t.Fatalf("consents: %v, %v", grants, err)
	}
	if err := r.b.grants.revoke(t.Context(), grants[0].ID, time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.b.Deliver(t.Context(), private()); err == nil || valid(cat, token) != "false" {
		t.Error("a revoked consent counts")
	}
}

// TestRevokedConsentStopsAttempts: after the owner revoked a consent, another attempt sends nothing, or names another
// consent that covers the message.
func TestRevokedConsentStopsAttempts(t *testing.T) {
	r, _ := newTestRig(t, nil)
	const request = `{"action":"request","data_types":["email"],"purpose":"sync","duration":"24h"}`
	revoke := func() {
		t.Helper()
		grants, err := r.b.grants.list(t.Context(), "", time.Now())
		for _, g := range grants {
			err = errors.Join(err, r.b.grants.revoke(t.Context(), g.ID, time.Now()))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r.getConsent(request)
	private := newDelivery(t, cat, wire.Deliver, `{"action":"deliver","message":{"body":"jane.doe@example.com"}}`)
	if _, err := r.b.Deliver(t.Context(), private); err != nil {
		t.Fatal(err)
	}
	first := r.receive(cat)
	revoke()
	if _, err := r.b.Deliver(t.Context(), private); err == nil || len(r.queue(cat)) != 0 {
		t.Errorf("after the revocation: %v, %d messages left", err, len(r.queue(cat)))
	}
	r.getConsent(request)
	if _, err := r.b.Deliver(t.Context(), private); err != nil {
		t.Fatal(err)
	}
	if again := r.receive(cat); again.PII == nil || again.PII.Proof == first.PII.Proof {
		t.Errorf("the attempt names %+v", again.PII)
	}
}

// TestUnpinRevokesConsents: if the owner forgets the key of a peer, the next key with that name gets no personal data
// with the consents for the old one. Consents for others stay.
func TestUnpinRevokesConsents(t *testing.T) {
	r, _ := newTestRig(t, nil)
	r.getConsent(`{"action":"request","data_types":["email"],"purpose":"sync","duration":"24h"}`)
	other := Grant{ID: "dogs", Peer: dog, Expires: time.Now().Add(time.Hour).Unix()}
	if err := r.b.records.Apply(t.Context(), []store.Change{other.change(store.Absent)}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := r.b.unpin(t.Context(), cat); err != nil {
		t.Fatal(err)
	}
	next := r.draft(cat, message.OpPing, `{"nonce":1}`)
	next.From.Key, next.From.EncKey = self(dog).Key, self(dog).EncKey
	r.sendRaw(dog, r.sign(dog, next))
	private := newDelivery(t, cat, wire.Deliver, `{"action":"deliver","message":{"body":"jane.doe@example.com"}}`)
	if _, err := r.b.Deliver(t.Context(), private); err == nil || len(r.queue(cat)) != 0 {
		t.Errorf("to another key: %v, %d messages left", err, len(r.queue(cat)))
	}
	for _, name := range []string{cat, dog} {
		if list, err := r.b.grants.list(t.Context(), name, time.Now()); err != nil || len(list) != 1 || list[0].isLive(time.Now()) != (name == dog) {
			t.Errorf("consents for %s: %+v, %v", name, list, err)
		}
	}
	if err := r.b.unpin(t.Context(), "nobody@x"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("of an unknown peer: %v", err)
	}
}

const askForEmail = `{"action":"request","data_types":["email"],"purpose":"sync","duration":"24h"}`

// questions returns the pending questions to the owner.
func (r *rig) questions() []acl.Ask {
	r.t.Helper()
	asks, _, err := r.b.cfg.Mesh.Asks().List(r.t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
	if err != nil {
		r.t.Fatal(err)
	}
	return asks
}

func (r *rig) approve(ask acl.Ask) error {
	_, err := r.b.cfg.Mesh.Asks().Decide(r.t.Context(), ask.ID, ask.Hash, acl.Approve, "test", time.Now())
	return err
}

// TestUnpinWithdrawsQuestions: the owner can no longer approve what a peer asked for with a key that was unpinned. The
// agent with the next key can ask at once, and the questions of others stay.
func TestUnpinWithdrawsQuestions(t *testing.T) {
	r, _ := newTestRig(t, nil)
	r.say(cat, r.draft(cat, message.OpConsent, askForEmail))
	old := r.questions()
	r.say(dog, r.draft(dog, message.OpConsent, askForEmail))
	if err := r.b.unpin(t.Context(), cat); err != nil {
		t.Fatal(err)
	}
	if err := r.approve(old[0]); !errors.Is(err, acl.ErrAskGone) {
		t.Errorf("approve = %v, want %v", err, acl.ErrAskGone)
	}
	next := r.draft(cat, message.OpConsent, askForEmail)
	next.From.Key, next.From.EncKey = self(dog).Key, self(dog).EncKey
	if m, status := r.sendRaw(dog, r.sign(dog, next)); status != http.StatusAccepted {
		t.Errorf("the next key asks: %d %s", status, m.P.JSON())
	}
	ofDog := func(a acl.Ask) bool { return strings.HasSuffix(a.Subject, dog) } // the order within a millisecond is random
	if waiting := r.questions(); len(waiting) != 2 || !slices.ContainsFunc(waiting, ofDog) {
		t.Errorf("waiting: %+v", waiting)
	}
}

// recordsMeanwhile runs a function once: after the first list or before the first unit.
type recordsMeanwhile struct {
	store.Records
	run func()
}

func (r *recordsMeanwhile) List(ctx context.Context, ns, term, after string, limit int, now time.Time) (store.RecordPage, error) {
	page, err := r.Records.List(ctx, ns, term, after, limit, now)
	r.runOnce()
	return page, err
}

func (r *recordsMeanwhile) Apply(ctx context.Context, changes []store.Change, now time.Time) error {
	r.runOnce()
	return r.Records.Apply(ctx, changes, now)
}

func (r *recordsMeanwhile) runOnce() {
	run := r.run
	r.run = func() {}
	run()
}

// TestConsentDuringUnpin: neither a consent nor a question for the old key stays, if it comes while the owner unpins
// the peer.
func TestConsentDuringUnpin(t *testing.T) {
	for name, play := range map[string]func(r *rig){
		"an approval": func(r *rig) {
			r.say(cat, r.draft(cat, message.OpConsent, askForEmail))
			r.b.grants.records = &recordsMeanwhile{r.b.records, func() {
				if err := r.approve(r.questions()[0]); err != nil {
					r.t.Error(err)
				}
			}}
		},
		"a question": func(r *rig) {
			r.say(cat, r.draft(cat, message.OpPing, `{"nonce":1}`)) // shows its keys
			r.b.records = &recordsMeanwhile{r.b.records, func() {
				if m, status := r.say(cat, r.draft(cat, message.OpConsent, askForEmail)); status != http.StatusAccepted {
					r.t.Errorf("request: %d %s", status, m.P.JSON())
				}
			}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := newTestRig(t, nil)
			play(r)
			if err := r.b.unpin(t.Context(), cat); !errors.Is(err, store.ErrConflict) {
				t.Errorf("unpin = %v, want %v", err, store.ErrConflict)
			}
			if err := r.b.unpin(t.Context(), cat); err != nil {
				t.Errorf("unpin again = %v", err)
			}
			list, err := r.b.grants.list(t.Context(), cat, time.Now())
			if waiting := r.questions(); err != nil || len(waiting) != 0 || len(list) > 0 && list[0].isLive(time.Now()) {
				t.Errorf("left: %+v, %+v, %v", list, waiting, err)
			}
		})
	}
}

// TestConsentToAnotherRequest changes a stored question: approving it grants nothing, and the question stays open.
func TestConsentToAnotherRequest(t *testing.T) {
	r, _ := newTestRig(t, nil)
	r.say(cat, r.draft(cat, message.OpPing, `{"nonce":1}`)) // shows its keys
	r.say(cat, r.draft(cat, message.OpConsent, `{"action":"request","data_types":["email"],"purpose":"sync","duration":"24h"}`))
	waiting := func() acl.Ask {
		t.Helper()
		asks, _, err := r.b.cfg.Mesh.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
		if err != nil || len(asks) != 1 {
			t.Fatalf("the owner is asked %+v, %v", asks, err)
		}
		return asks[0]
	}
	ask := waiting()
	rec, err := r.b.records.Get(t.Context(), "asks", ask.ID, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	rec.Body = bytes.ReplaceAll(rec.Body, []byte("email"), []byte("phone"))
	if err := r.b.records.Apply(t.Context(), []store.Change{{Record: rec, IfRev: rec.Rev}}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.b.cfg.Mesh.Asks().Decide(t.Context(), ask.ID, ask.Hash, acl.Approve, "test", time.Now()); !errors.Is(err, acl.ErrNotShown) {
		t.Errorf("approve = %v, want %v", err, acl.ErrNotShown)
	}
	if len(r.callbacks()) != 0 {
		t.Error("the peer gets an answer")
	}
	if _, err := r.b.cfg.Mesh.Asks().Decide(t.Context(), ask.ID, waiting().Hash, acl.Reject, "test", time.Now()); err != nil {
		t.Errorf("reject = %v", err)
	}
}

func (r *rig) callbacks() []store.Record {
	r.t.Helper()
	page, err := r.b.records.List(r.t.Context(), nsCallbacks, "", "", 10, time.Now())
	if err != nil {
		r.t.Fatal(err)
	}
	return page.Records
}

func (r *rig) answerConsent() {
	r.t.Helper()
	waiting := r.callbacks()
	if len(waiting) != 1 {
		r.t.Fatalf("%d answers wait, want 1", len(waiting))
	}
	if err := r.b.answerConsent(r.t.Context(), waiting[0]); err != nil {
		r.t.Fatal(err)
	}
}

// getConsent makes cat ask for consent and the owner agree. It returns the token.
func (r *rig) getConsent(request string) string {
	r.t.Helper()
	if m, status := r.say(cat, r.draft(cat, message.OpConsent, request)); status != http.StatusAccepted {
		r.t.Fatalf("request: %d %s", status, m.P.JSON())
	}
	asks, _, err := r.b.cfg.Mesh.Asks().List(r.t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
	if err != nil || len(asks) != 1 {
		r.t.Fatalf("the owner is asked %+v, %v", asks, err)
	}
	if _, err := r.b.cfg.Mesh.Asks().Decide(r.t.Context(), asks[0].ID, asks[0].Hash, acl.Approve, "test", time.Now()); err != nil {
		r.t.Fatal(err)
	}
	r.answerConsent()
	answer := r.receive(cat)
	data, _ := answer.P.Get("data")
	return data.GetStr("consent_token")
}

// TestConsentAnswerIsBoxed: the owner's later answer to a request for consent that was encrypted or confidential leaves
// encrypted, and in the class of the request (MS-17, MS-37).
func TestConsentAnswerIsBoxed(t *testing.T) {
	for _, tt := range []struct {
		class message.Class
		boxed bool
	}{{message.Internal, false}, {message.Internal, true}, {message.Confidential, true}} {
		r, _ := newTestRig(t, nil)
		d := r.draft(cat, message.OpConsent, `{"action":"request","data_types":["email"],"purpose":"sync","duration":"24h"}`)
		d.Class = tt.class
		ask := r.say
		if tt.boxed {
			ask = r.sayBoxed
		}
		if m, status := ask(cat, d); status != http.StatusAccepted {
			t.Fatalf("%+v: %d %s", tt, status, m.P.JSON())
		}
		asks, _, err := r.b.cfg.Mesh.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
		if err != nil || len(asks) != 1 {
			t.Fatalf("the owner is asked %+v, %v", asks, err)
		}
		if purge := asks[0].Purge; purge.IsZero() == (tt.class == message.Confidential) || purge.After(time.Now().Add(keepConfidential)) {
			t.Errorf("%+v: the question is deleted at %s", tt, purge)
		}
		if _, err := r.b.cfg.Mesh.Asks().Decide(t.Context(), asks[0].ID, asks[0].Hash, acl.Approve, "test", time.Now()); err != nil {
			t.Fatal(err)
		}
		r.answerConsent()
		p, e := message.ReadPacket(<-r.queue(cat), boxOf(cat))
		if e != nil || p.Boxed != tt.boxed || p.Tree.GetStr("cls") != string(tt.class) {
			t.Errorf("%+v: answered in a box: %v, %s, %v", tt, p.Boxed, p.Tree.JSON(), e)
		}
	}
}

// TestAllConsentsAreListed: the owner sees every consent, and each of them counts.
func TestAllConsentsAreListed(t *testing.T) {
	r, _ := newTestRig(t, nil)
	now := time.Now()
	const n = 1100
	for i := 0; i < n; i += 100 {
		var changes []store.Change
		for j := range 100 {
			g := Grant{ID: fmt.Sprintf("grant-%04d", i+j), Peer: "cat@acme", Scope: []string{fmt.Sprint("type", i+j)}, Expires: now.Add(time.Hour).Unix()}
			changes = append(changes, g.change(0))
		}
		if err := r.b.grants.records.Apply(t.Context(), changes, now); err != nil {
			t.Fatal(err)
		}
	}
	list, err := r.b.grants.list(t.Context(), "", now)
	if err != nil || len(list) != n {
		t.Errorf("list() = %d grants, %v, want %d", len(list), err, n)
	}
	if g, _, err := r.b.grants.findCovering(t.Context(), "cat@acme", []string{"type1099"}, "m", now); err != nil || g == nil {
		t.Errorf("the last grant is not found: %v, %v", g, err)
	}
}

// TestConsentForOneMessage: a consent for one message permits one message, however often that message is resent, and
// no other, neither over a link nor as an answer (MS-42). The other constraints are in the token.
func TestConsentForOneMessage(t *testing.T) {
	r, n := newTestRig(t, nil)
	const request = `{"action":"request","data_types":["email"],"purpose":"sync","duration":"24h","constraints":{"one_time":true,"no_forward":true}}`
	token := r.getConsent(request)
	raw, _ := base64.RawURLEncoding.DecodeString(token)
	if text := string(mustTree(t, string(raw)).Without("sig").JSON()); !strings.Contains(text, `"constraints":{"one_time":true,"no_forward":true}`) {
		t.Errorf("token: %s", text)
	}
	const private = `{"action":"deliver","message":{"body":"jane.doe@example.com"}}`
	first := newDelivery(t, cat, wire.Deliver, private)
	for range 2 {
		if _, err := r.b.Deliver(t.Context(), first); err != nil {
			t.Fatalf("the one message: %v", err)
		}
		r.receive(cat)
	}
	if _, err := r.b.Deliver(t.Context(), newDelivery(t, cat, wire.Deliver, private)); err == nil {
		t.Error("a second message left")
	}
	if m, _ := r.say(cat, r.draft(cat, message.OpConsent, `{"action":"verify","consent_token":"`+token+`"}`)); !strings.Contains(string(m.P.JSON()), `"valid":false`) {
		t.Errorf("a used token: %s", m.P.JSON())
	}
	if code := r.code(cat, r.draft(cat, message.OpConsent, strings.Replace(request, "true", `"yes"`, 1))); code != message.CodeInvalidParam {
		t.Errorf("a constraint that is not a boolean: %q", code)
	}
	r.getConsent(request)
	n.take = func(bridge.Inbound) (bridge.Outcome, error) {
		return bridge.Outcome{Status: http.StatusOK, Raw: []byte(`{"payload":{"action":"answer","answer":"jane.doe@example.com"}}`)}, nil
	}
	for _, want := range []message.Op{message.OpRespond, message.OpError} {
		reply := r.b.Receive(t.Context(), r.sign(cat, r.draft(cat, message.OpQuery, plainQuery)), nil, nil)
		p, e := message.ReadPacket(reply.Body, boxOf(cat))
		if e != nil || message.Op(p.Tree.GetStr("op")) != want || want == message.OpRespond && (!p.Boxed || p.Tree.GetStr("cls") != "pii") {
			t.Errorf("answered %s, boxed %v, %v, want %s", p.Tree.GetStr("op"), p.Boxed, e, want)
		}
	}
}

// TestBlockedAnswerIsReported: the owner learns once that the answer to a waiting peer was blocked, and why (MS-40).
func TestBlockedAnswerIsReported(t *testing.T) {
	var told []string
	r, n := newTestRig(t, func(c *Config) {
		c.OnBlocked = func(_ context.Context, a bridge.Address, cause error) {
			told = append(told, a.String()+" "+cause.Error())
		}
	})
	n.take = func(bridge.Inbound) (bridge.Outcome, error) {
		return bridge.Outcome{Status: http.StatusOK, Raw: []byte(`{"payload":{"action":"answer","answer":"jane.doe@example.com"}}`)}, nil
	}
	raw := r.sign(cat, r.draft(cat, message.OpQuery, plainQuery))
	for range 2 {
		if m, _ := r.sendRaw(cat, raw); m.P.GetStr("code") != string(message.CodeConsent) {
			t.Errorf("the peer got %s", m.P.JSON())
		}
	}
	if len(told) != 1 || !strings.HasPrefix(told[0], "moltspeak:cats/cat@acme ") || !strings.Contains(told[0], personal.TypeEmail) || strings.Contains(told[0], "jane") {
		t.Errorf("the owner was told %q", told)
	}
}

// failingRecords fails while down is set.
type failingRecords struct {
	store.Records
	down *bool
}

func (f failingRecords) Get(ctx context.Context, ns, key string, now time.Time) (store.Record, error) {
	if *f.down {
		return store.Record{}, errors.New("the database does not answer")
	}
	return f.Records.Get(ctx, ns, key, now)
}

// TestAnswerDuringAFailure: if the consent for an answer cannot be read, the peer gets an error that lets it
// repeat its message, and then the answer. The owner gets no notice that the answer was blocked.
func TestAnswerDuringAFailure(t *testing.T) {
	r, n := newTestRig(t, func(c *Config) {
		c.OnBlocked = func(_ context.Context, _ bridge.Address, cause error) { t.Errorf("a notice: %v", cause) }
	})
	r.getConsent(`{"action":"request","data_types":["email"],"purpose":"x","duration":"24h"}`)
	down := false
	r.b.pins.records = failingRecords{r.b.records, &down}
	n.take = func(bridge.Inbound) (bridge.Outcome, error) {
		down = true
		return bridge.Outcome{Status: http.StatusOK, Raw: []byte(`{"payload":{"action":"answer","answer":"jane.doe@example.com"}}`)}, nil
	}
	raw := r.sign(cat, r.draft(cat, message.OpQuery, plainQuery))
	if m, status := r.sendRaw(cat, raw); m.P.GetStr("code") != string(message.CodeInternal) || status != http.StatusInternalServerError {
		t.Errorf("%d %s", status, m.P.JSON())
	}
	down = false
	n.take = func(bridge.Inbound) (bridge.Outcome, error) {
		return bridge.Outcome{Status: http.StatusOK, Raw: []byte(`{"payload":{"action":"answer","answer":"jane.doe@example.com"}}`), Duplicate: true}, nil
	}
	p, e := message.ReadPacket(r.b.Receive(t.Context(), raw, nil, nil).Body, boxOf(cat))
	if e != nil || p.Tree.GetStr("op") != string(message.OpRespond) || p.Tree.GetStr("cls") != "pii" {
		t.Errorf("the answer to the repeat: %s, %v", p.Tree.JSON(), e)
	}
}

// TestConsentAnswerIsRetried: a peer that cannot be reached when the owner decides gets the answer later.
func TestConsentAnswerIsRetried(t *testing.T) {
	r, _ := newTestRig(t, nil)
	r.say(cat, r.draft(cat, message.OpConsent, `{"action":"request","data_types":["email"],"purpose":"sync","duration":"24h"}`))
	asks, _, err := r.b.cfg.Mesh.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
	if err != nil || len(asks) != 1 {
		t.Fatalf("%+v, %v", asks, err)
	}
	if _, err := r.b.cfg.Mesh.Asks().Decide(t.Context(), asks[0].ID, asks[0].Hash, acl.Approve, "test", time.Now()); err != nil {
		t.Fatal(err)
	}
	r.Disconnect()
	r.answerConsent()
	if len(r.queue(cat)) != 0 {
		t.Fatal("the peer got an answer")
	}
	r.Reconnect()
	r.answerConsent()
	if data, _ := r.receive(cat).P.Get("data"); data.GetStr("consent_token") == "" {
		t.Errorf("the answer is %s", data.JSON())
	}
	if n := len(r.callbacks()); n != 0 {
		t.Errorf("%d answers wait after the delivery", n)
	}
}

// TestConsentRejected: a rejected request is answered and grants nothing.
func TestConsentRejected(t *testing.T) {
	r, _ := newTestRig(t, nil)
	r.say(cat, r.draft(cat, message.OpConsent, `{"action":"request","data_types":["email"],"purpose":"sync\u001b[31m","duration":"session"}`))
	asks, _, err := r.b.cfg.Mesh.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
	if err != nil || len(asks) != 1 || strings.Contains(string(asks[0].Body), `\u001b`) {
		t.Fatalf("%+v, %v", asks, err)
	}
	if _, err := r.b.cfg.Mesh.Asks().Decide(t.Context(), asks[0].ID, asks[0].Hash, acl.Reject, "test", time.Now()); err != nil {
		t.Fatal(err)
	}
	r.answerConsent()
	if m := r.receive(cat); m.P.GetStr("status") != "error" {
		t.Errorf("answer: %s", m.P.JSON())
	}
	if list, err := r.b.grants.list(t.Context(), "", time.Now()); err != nil || len(list) != 0 {
		t.Errorf("consents: %v, %v", list, err)
	}
}
