package moltspeak

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

func newDelivery(t *testing.T, peer string, intent wire.Intent, payload string) bridge.Delivery {
	t.Helper()
	address := bridge.Address{Kind: Kind, Link: linkOf(peer), Peer: peer}
	p, err := wire.Parse([]byte(payload))
	if err != nil {
		t.Fatal(err)
	}
	m, err := wire.ParseDraft(wire.Draft{
		ID: wire.NewMessageID(), Conversation: wire.NewConversationID(), From: "am_test", To: address.Pseudonym(), Time: time.Now(), Intent: intent, Payload: p,
	}.Tree())
	if err != nil {
		t.Fatal(err)
	}
	return bridge.Delivery{ID: string(m.ID), To: m.To, Address: address.String(), Message: m, Raw: m.Tree.JSON(), Attempt: 1}
}

func (r *rig) receive(peer string) message.Message {
	r.t.Helper()
	select {
	case raw := <-r.queue(peer):
		p, e := message.ReadPacket(raw, boxOf(peer))
		if e != nil {
			r.t.Fatal(e)
		}
		m, e := message.Parse(p.Tree)
		if e != nil {
			r.t.Fatal(e)
		}
		if p.Boxed != m.Class.IsBoxed() {
			r.t.Errorf("class %s boxed: %v", m.Class, p.Boxed)
		}
		return m
	case <-time.After(time.Minute):
		r.t.Fatal("the peer got nothing")
		return message.Message{}
	}
}

// TestAnswersAtOnce: an immediate answer of a peer becomes a reply in the conversation and ends it (§10).
func TestAnswersAtOnce(t *testing.T) {
	r, n := newTestRig(t, nil)
	answer := func(op message.Op, p string) func(string, wire.Value) []byte {
		return func(peer string, got wire.Value) []byte {
			d := r.draft(peer, op, p)
			d.Re = got.GetStr("id")
			return r.sign(peer, d)
		}
	}
	query := `{"action":"query","domain":"weather","params":{"city":"Tokyo"}}`
	r.reply = answer(message.OpRespond, `{"status":"success","data":{"high_c":12}}`)
	d := newDelivery(t, cat, IntentQuery, query)
	if _, err := r.b.Deliver(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if m := r.receive(cat); m.Op != message.OpQuery || string(m.P.JSON()) != `{"domain":"weather","params":{"city":"Tokyo"}}` {
		t.Errorf("sent: %s", m.P.JSON())
	}
	if len(n.got) != 2 || n.got[0].ConvID != d.Message.Conversation || n.got[0].Payload.GetStr("status") != "success" || n.got[0].Intent != wire.RequestInfo || n.got[1].Payload.GetStr("action") != wire.ActionClose {
		t.Fatalf("the node got %d messages: %+v", len(n.got), n.got)
	}
	r.reply = answer(message.OpRespond, `{"status":"partial","data":{"action":"pending_approval","reason":"later"}}`)
	if _, err := r.b.Deliver(t.Context(), newDelivery(t, cat, IntentQuery, query)); err != nil || len(n.got) != 3 || n.got[2].Payload.GetStr("action") != wire.ActionPending {
		t.Errorf("pending: %v, %d messages", err, len(n.got))
	}
	for code, retry := range map[message.Code]bool{message.CodeRateLimit: true, message.CodeTimeout: true, message.CodeInternal: true, message.CodeCapability: false, message.CodeSignature: false, message.CodeConsent: false} {
		r.reply = answer(message.OpError, string(message.Fail(code).Payload(false).JSON()))
		_, err := r.b.Deliver(t.Context(), newDelivery(t, cat, IntentQuery, query))
		if e, ok := errors.AsType[*client.SendError](err); !ok || e.Retry != retry || e.Refusal == nil {
			t.Errorf("%s: %v", code, err)
		}
	}
	r.reply = func(peer string, got wire.Value) []byte { // another agent signs the answer
		d := r.draft(cat, message.OpRespond, `{"status":"success","data":1}`)
		d.Re = got.GetStr("id")
		return r.sign(dog, d)
	}
	before := len(n.got)
	if _, err := r.b.Deliver(t.Context(), newDelivery(t, cat, IntentQuery, query)); err == nil || len(n.got) != before {
		t.Errorf("a forged answer: %v, %d messages", err, len(n.got)-before)
	}
	r.reply = func(string, wire.Value) []byte { return []byte("null") }
	if _, err := r.b.Deliver(t.Context(), newDelivery(t, cat, IntentQuery, query)); err == nil {
		t.Error("a message that is not an answer was accepted")
	}
}

// TestAnswersLater: a late answer reaches the conversation, but only from the peer of that conversation.
func TestAnswersLater(t *testing.T) {
	r, n := newTestRig(t, nil)
	d := newDelivery(t, cat, IntentTask, `{"action":"create","type":"research"}`)
	if _, err := r.b.Deliver(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	sent := r.receive(cat)
	if sent.P.GetStr("task_id") != string(d.Message.Conversation) {
		t.Errorf("task: %s", sent.P.JSON())
	}
	reply := func(peer string) message.Draft {
		x := r.draft(peer, message.OpRespond, `{"status":"partial","data":{"progress":1}}`)
		x.Re = sent.ID
		return x
	}
	if code := r.code(dog, reply(dog)); code != message.CodeInvalidParam || len(n.got) != 0 {
		t.Errorf("another peer answers: %q", code)
	}
	if _, status := r.say(cat, reply(cat)); status != http.StatusAccepted || len(n.got) != 1 || n.got[0].ConvID != d.Message.Conversation {
		t.Errorf("the peer answers: %d", status)
	}
	r.say(cat, r.draft(cat, message.OpTask, `{"action":"complete","task_id":"`+string(d.Message.Conversation)+`"}`))
	if len(n.got) != 2 || n.got[1].Payload.GetStr("status") != "completed" || n.got[1].ConvID != d.Message.Conversation {
		t.Errorf("complete: %d messages", len(n.got))
	}
}

// TestFinalAnswerLater: a request that waits for the owner is answered with pending_approval at once and with the
// final answer later (MS-45). A peer that cannot be called gets it by repeating its message.
func TestFinalAnswerLater(t *testing.T) {
	r, n := newTestRig(t, nil)
	n.take = func(bridge.Inbound) (bridge.Outcome, error) {
		return bridge.Outcome{Status: http.StatusAccepted, Held: true, Reply: &wire.Message{Payload: mustTree(t, `{"action":"pending_approval","estimated_response":"PT1H","reason":"owner"}`)}}, nil
	}
	for _, peer := range []string{cat, "bird@air"} {
		q := r.draft(peer, message.OpQuery, plainQuery)
		raw := r.sign(peer, q)
		m, status := r.sendRaw(peer, raw)
		data, _ := m.P.Get("data")
		if status != http.StatusAccepted || m.P.GetStr("status") != "partial" || data.GetStr("action") != wire.ActionPending {
			t.Fatalf("%s: %d %s", peer, status, m.P.JSON())
		}
		in := n.got[len(n.got)-1]
		final := newDelivery(t, peer, in.Intent, `{"action":"answer","answer":"sunny"}`)
		final.Address, final.To, final.Message.Conversation = in.Address, in.Peer, in.ConvID
		if _, err := r.b.Deliver(t.Context(), final); err != nil {
			t.Fatalf("%s: %v", peer, err)
		}
		if peer == cat {
			if m := r.receive(peer); m.Op != message.OpRespond || m.Re != q.ID || m.P.GetStr("status") != "success" {
				t.Errorf("the final answer: %s", m.Tree.JSON())
			}
			continue
		}
		if m, _ := r.sendRaw(peer, raw); m.P.GetStr("status") != "success" || m.Re != q.ID {
			t.Errorf("the answer to a repeat: %s", m.Tree.JSON())
		}
	}
}

// TestAnswerAfterTheReplayRecord: an answer that a repeat can no longer fetch goes over the open stream of a peer that
// cannot be called. Without a stream it is not delivered, and tried again.
func TestAnswerAfterTheReplayRecord(t *testing.T) {
	const bird = "bird@air"
	r, n := newTestRig(t, nil)
	n.take = func(bridge.Inbound) (bridge.Outcome, error) {
		return bridge.Outcome{Status: http.StatusAccepted, Held: true, Reply: &wire.Message{Payload: mustTree(t, `{"action":"pending_approval"}`)}}, nil
	}
	forget := func(d message.Draft) {
		t.Helper()
		gone := store.Change{IfRev: store.Any, Delete: true, Record: store.Record{NS: nsReplays, Key: replayKey(d.From, d.ID)}}
		if err := r.b.records.Apply(t.Context(), []store.Change{gone}, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	q := r.draft(bird, message.OpQuery, plainQuery)
	r.say(bird, q)
	forget(q)
	final := newDelivery(t, bird, n.got[0].Intent, `{"action":"answer","answer":"sunny"}`)
	final.Address, final.To, final.Message.Conversation = n.got[0].Address, n.got[0].Peer, n.got[0].ConvID
	_, err := r.b.Deliver(t.Context(), final)
	if e, ok := errors.AsType[*client.SendError](err); !ok || !e.Retry {
		t.Errorf("Deliver without a stream = %v, want another attempt", err)
	}
	request := r.draft(bird, message.OpConsent, `{"action":"request","data_types":["email"],"purpose":"sync","duration":"24h"}`)
	r.say(bird, request)
	forget(request)
	stream := r.open(t, r.serve())
	stream.exchange(r.sign(bird, r.draft(bird, message.OpHello, helloBody)), 1)
	if _, err := r.b.Deliver(t.Context(), final); err != nil {
		t.Errorf("Deliver over the stream: %v", err)
	}
	if m, err := next(t, stream.conn); err != nil || m.GetStr("re") != q.ID {
		t.Errorf("the stream got %s, %v, want the answer to %s", m.JSON(), err, q.ID)
	}
	r.b.deliverCallback(t.Context(), callback{DueRow: bridge.DueRow{Party: request.From.Name()}, Re: request.ID, P: message.Respond{Status: "error", Data: wire.Obj()}.Value(), Class: message.Internal})
	if m, err := next(t, stream.conn); err != nil || m.GetStr("re") != request.ID {
		t.Errorf("the stream got %s, %v, want the answer to %s", m.JSON(), err, request.ID)
	}
}

// brokenAfter fails all reads and writes after the first n.
type brokenAfter struct {
	store.Records
	n *int
}

func (b brokenAfter) broken() error {
	if *b.n--; *b.n < 0 {
		return errors.New("broken")
	}
	return nil
}

func (b brokenAfter) Get(ctx context.Context, ns, key string, now time.Time) (store.Record, error) {
	if err := b.broken(); err != nil {
		return store.Record{}, err
	}
	return b.Records.Get(ctx, ns, key, now)
}

func (b brokenAfter) List(ctx context.Context, ns, term, after string, limit int, now time.Time) (store.RecordPage, error) {
	if err := b.broken(); err != nil {
		return store.RecordPage{}, err
	}
	return b.Records.List(ctx, ns, term, after, limit, now)
}

func (b brokenAfter) Apply(ctx context.Context, changes []store.Change, now time.Time) error {
	if err := b.broken(); err != nil {
		return err
	}
	return b.Records.Apply(ctx, changes, now)
}

// TestDeliveryWithBrokenStore: a message is sent again later if the store fails, whichever operation fails.
func TestDeliveryWithBrokenStore(t *testing.T) {
	const bird = "bird@air" // has no endpoint
	for _, payload := range []string{`{"action":"answer","answer":"sunny"}`, `{"action":"answer","answer":"jane.doe@example.com"}`} {
		for _, peer := range []string{cat, bird} {
			r, n := newTestRig(t, nil)
			n.take = func(bridge.Inbound) (bridge.Outcome, error) {
				return bridge.Outcome{Status: http.StatusAccepted, Held: true, Reply: &wire.Message{Payload: mustTree(t, `{"action":"pending_approval"}`)}}, nil
			}
			r.say(peer, r.draft(peer, message.OpQuery, plainQuery))
			in, whole, private := n.got[0], r.b.records, strings.Contains(payload, "jane")
			for steps := 0; ; steps++ {
				d := newDelivery(t, peer, in.Intent, payload)
				d.Address, d.To, d.Message.Conversation = in.Address, in.Peer, in.ConvID
				left := steps
				broken := brokenAfter{whole, &left}
				r.b.records, r.b.pins.records, r.b.grants.records = broken, broken, broken
				_, err := r.b.Deliver(t.Context(), d)
				if left >= 0 {
					if private != (err != nil) {
						t.Errorf("to %s after %d steps: %v", peer, steps, err)
					}
					break
				}
				if sent, ok := errors.AsType[*client.SendError](err); !ok || !sent.Retry {
					t.Errorf("to %s, the store is broken after %d steps: %v, want another attempt", peer, steps, err)
				}
				for len(r.queue(peer)) > 0 {
					<-r.queue(peer)
				}
			}
		}
	}
}

// TestFinalAnswerIsKept: an answer that is stored while the receipt for the message is still being written is not
// replaced by the receipt.
func TestFinalAnswerIsKept(t *testing.T) {
	r, _ := newTestRig(t, nil)
	q := r.draft(cat, message.OpQuery, plainQuery)
	c := &request{ctx: t.Context(), m: message.Message{ID: q.ID, From: q.From}, now: time.Now()}
	stored := replayChange(c.m, replayRecord{Digest: "d", Conv: "conv"}, true, store.Absent, c.now)
	if err := r.b.records.Apply(t.Context(), []store.Change{stored}, c.now); err != nil {
		t.Fatal(err)
	}
	if err := r.b.keepAnswer(t.Context(), q.From, q.ID, false, []byte("final"), c.now); err != nil {
		t.Fatal(err)
	}
	r.b.replays.keep(c, replayRecord{Digest: "d", Reply: []byte("receipt"), Status: http.StatusAccepted})
	var got replayRecord
	if _, _, err := store.ReadRecord(t.Context(), r.b.records, nsReplays, replayKey(q.From, q.ID), &got, c.now); err != nil || string(got.Reply) != "final" {
		t.Errorf("stored: %s, %v", got.Reply, err)
	}
}

// TestMessageDuringAnswer: a message of the peer that arrives while our answer to an earlier one is on its way gets an
// answer of its own.
func TestMessageDuringAnswer(t *testing.T) {
	r, n := newTestRig(t, nil)
	n.take = func(bridge.Inbound) (bridge.Outcome, error) {
		return bridge.Outcome{Status: http.StatusAccepted, Held: true, Reply: &wire.Message{Payload: mustTree(t, `{"action":"pending_approval"}`)}}, nil
	}
	first, second := r.draft(cat, message.OpQuery, plainQuery), r.draft(cat, message.OpQuery, plainQuery)
	second.Re = first.ID
	r.say(cat, first)
	r.reply = func(string, wire.Value) []byte {
		r.reply = nil
		r.say(cat, second)
		return noAnswer
	}
	in := n.got[0]
	for _, asked := range []message.Draft{first, second} {
		d := newDelivery(t, cat, in.Intent, `{"action":"answer","answer":"sunny"}`)
		d.Address, d.To, d.Message.Conversation = in.Address, in.Peer, in.ConvID
		if _, err := r.b.Deliver(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		if m := r.receive(cat); m.Re != asked.ID {
			t.Errorf("the answer names %s, want %s", m.Re, asked.ID)
		}
		var state convState
		_, _, err := store.ReadRecord(t.Context(), r.b.records, nsConversations, convKey(in.Address, string(in.ConvID)), &state, time.Now())
		if err != nil || state.Re != second.ID || state.Done != (asked.ID == second.ID) {
			t.Errorf("after the answer to %s: %+v, %v", asked.ID, state, err)
		}
	}
}

// TestSameBytesAgain: a repeated attempt within the window sends the same bytes, so that the peer recognizes them.
func TestSameBytesAgain(t *testing.T) {
	r, _ := newTestRig(t, nil)
	d := newDelivery(t, cat, wire.Deliver, `{"action":"deliver","message":{"body":"x"}}`)
	for range 2 {
		if _, err := r.b.Deliver(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	if a, b := r.receive(cat), r.receive(cat); string(a.Tree.JSON()) != string(b.Tree.JSON()) {
		t.Errorf("two attempts sent\n%s\n%s", a.Tree.JSON(), b.Tree.JSON())
	}
}

// TestLinkTest: two bridges shake hands over HTTP, as agentmesh links test does.
func TestLinkTest(t *testing.T) {
	server, _ := newTestRig(t, nil)
	srv := server.serve()
	gone := server.serve()
	gone.Close()
	near, _ := newTestRig(t, func(c *Config) {
		c.Agent, c.Key, c.Box = message.Agent{Agent: "near", Org: "home"}, keyOf("near@home"), boxOf("near@home")
		c.Links = []bridge.Link{
			{Name: "far", Kind: Kind, URL: srv.URL, Options: map[string]string{"peer": "me@home"}},
			{Name: "nobody", Kind: Kind, URL: srv.URL},
			{Name: "gone", Kind: Kind, URL: gone.URL, Options: map[string]string{"peer": "me@home"}},
		}
	})
	if err := near.b.Test(t.Context(), "far"); err != nil {
		t.Errorf("Test: %v", err)
	}
	if len(server.b.handshake.challenges) != 0 || near.b.Links()[0].State != bridge.LinkUp {
		t.Errorf("%d challenges are not answered, %+v", len(server.b.handshake.challenges), near.b.Links())
	}
	if got := near.b.Links()[0].Peers; got != 1 {
		t.Errorf("%d peers were seen over a link that works, want 1", got)
	}
	if err := near.b.Test(t.Context(), "gone"); err == nil || near.b.Links()[2].Peers != 0 {
		t.Errorf("a link whose peer never answered: %v, %+v", err, near.b.Links()[2])
	}
	if near.b.Test(t.Context(), "nobody") == nil || near.b.Test(t.Context(), "none") == nil {
		t.Error("a link without a peer works")
	}
	srv.Close()
	if err := near.b.Test(t.Context(), "far"); err == nil || near.b.Links()[0].State == bridge.LinkUp {
		t.Errorf("a link to nobody: %v", err)
	}
}

// TestLinkTestAnsweredByAnother: the test of a link fails if another agent answers, and pins no key for that agent.
func TestLinkTestAnsweredByAnother(t *testing.T) {
	r, _ := newTestRig(t, nil)
	r.reply = func(_ string, got wire.Value) []byte {
		d := r.draft(dog, message.OpHelloAck, helloBody)
		d.Re = got.GetStr("id")
		return r.sign(dog, d)
	}
	if err := r.b.Test(t.Context(), "cats"); err == nil {
		t.Error("the test of the link succeeds")
	}
	if p, known, err := r.b.pins.get(t.Context(), dog, time.Now()); known || err != nil {
		t.Errorf("the key of %s is pinned: %+v, %v", dog, p, err)
	}
}

// TestLinkTestWithoutSession: the test of a link reports that the peer refused the session. Messages can still be sent.
func TestLinkTestWithoutSession(t *testing.T) {
	r, _ := newTestRig(t, nil)
	r.reply = func(peer string, got wire.Value) []byte {
		d := r.draft(peer, message.OpHelloAck, strings.TrimSuffix(helloBody, "}")+`,"challenge":"00"}`)
		if got.GetStr("op") != string(message.OpHello) {
			d = r.draft(peer, message.OpError, string(message.Fail(message.CodeAuthFailed).Payload(true).JSON()))
		}
		d.Re = got.GetStr("id")
		return r.sign(peer, d)
	}
	if err := r.b.Test(t.Context(), "cats"); err == nil || !strings.Contains(err.Error(), string(message.CodeAuthFailed)) {
		t.Errorf("Test = %v, want the refusal", err)
	}
	if l := r.b.Links()[0]; l.State == bridge.LinkDown {
		t.Errorf("%+v", l)
	}
}

// TestUnreachable: the error of a failed call names its cause.
func TestUnreachable(t *testing.T) {
	http := client.NewHTTP(client.HTTPConfig{Local: true})
	defer http.Close()
	b := &Bridge{cfg: Config{HTTP: http}}
	if _, err := b.transmit(t.Context(), "http://127.0.0.1:1/", client.Owner, "", []byte("{}")); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a call to a closed port: %v", err)
	}
}

// TestStatusWithoutPacket: a status that AM-47 lists as one to try again permits another attempt, even if a proxy sent
// it.
func TestStatusWithoutPacket(t *testing.T) {
	calls := client.NewHTTP(client.HTTPConfig{Local: true})
	defer calls.Close()
	b := &Bridge{cfg: Config{HTTP: calls}}
	for status, want := range map[int]bool{400: false, 403: false, 408: true, 425: true, 429: true, 502: true} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", status) }))
		_, err := b.transmit(t.Context(), srv.URL, client.Owner, "", []byte("{}"))
		srv.Close()
		if e, ok := errors.AsType[*client.SendError](err); !ok || e.Retry != want {
			t.Errorf("%d: %v, want another attempt: %v", status, err, want)
		}
	}
}
