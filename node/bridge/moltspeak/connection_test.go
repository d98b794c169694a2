package moltspeak

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

const helloBody = `{"protocol_versions":["0.1"]}`

type testStream struct {
	t    *testing.T
	r    *rig
	conn *websocket.Conn
}

func (r *rig) open(t *testing.T, srv *httptest.Server) testStream {
	o := testStream{t, r, dial(t, srv)}
	late := time.AfterFunc(8*time.Second, o.conn.Abort) // a missing answer fails the test
	t.Cleanup(func() { late.Stop() })
	return o
}

// exchange sends a frame and returns the next n answers.
func (o testStream) exchange(raw []byte, n int) []wire.Value {
	o.t.Helper()
	o.conn.Send(websocket.Text(raw))
	var out []wire.Value
	for range n {
		m, err := next(o.t, o.conn)
		if err != nil {
			o.t.Fatalf("after %d of %d answers: %v", len(out), n, err)
		}
		out = append(out, m)
	}
	return out
}

func pinnedPeer(name string) peer { return peer{Name: name, Key: self(name).Key} }

// isBound reports whether the stream gets what is pushed to the peer. Pushed messages arrive before later answers.
func (o testStream) isBound(peer string) bool {
	o.t.Helper()
	o.r.b.sockets.push(pinnedPeer(peer).identity(), o.r.sign("me@home", message.Draft{ID: "pushed", Op: message.OpPong, Re: "x", Time: time.Now(), From: us, To: self(peer), P: wire.Obj(), Class: message.Internal}))
	m := o.exchange(o.r.sign(peer, o.r.draft(peer, message.OpPing, `{"nonce":"after"}`)), 1)[0]
	if m.GetStr("id") != "pushed" {
		return false
	}
	if m, err := next(o.t, o.conn); err != nil || m.GetStr("op") != "pong" {
		o.t.Errorf("after what was pushed: %v %s", err, m.JSON())
	}
	return true
}

// proof returns the answer to the challenge of a verify.
func (o testStream) proof(peer string, verify wire.Value, op message.Op) message.Draft {
	p, _ := verify.Get("p")
	body := `{"challenge":"` + p.GetStr("challenge") + `"}`
	if op == message.OpRespond {
		body = `{"status":"success","data":` + body + `}`
	}
	d := o.r.draft(peer, op, body)
	d.Re = verify.GetStr("id")
	return d
}

// TestRecordedHelloBindsNothing: THREATS 36: a hello that somebody may have recorded binds no stream and takes none of
// its sender's places. A fresh hello with sender and recipient binds its stream, and so does the answer to a challenge
// of that stream.
func TestRecordedHelloBindsNothing(t *testing.T) {
	r, _ := newTestRig(t, nil)
	srv := r.serve()
	fresh := r.sign(cat, r.draft(cat, message.OpHello, helloBody))
	first := r.open(t, srv)
	if got := first.exchange(fresh, 1)[0]; got.GetStr("op") != "hello_ack" && got.GetStr("op") != "respond" {
		t.Fatalf("a fresh hello: %s", got.JSON())
	}
	if !first.isBound(cat) {
		t.Fatal("a fresh hello does not bind its stream")
	}
	without := func(keys ...string) []byte {
		tree := message.Sign(r.draft(cat, message.OpHello, helloBody).Tree().Without(keys...), keyOf(cat))
		return tree.JSON()
	}
	posted := r.sign(cat, r.draft(cat, message.OpHello, helloBody))
	r.sendRaw(cat, posted)
	for name, raw := range map[string][]byte{
		"a repeat": fresh, "a repeat of one that was posted": posted, "without id": without("id"), "without to": without("to"),
	} {
		for range socketsPerPeer + 2 {
			o := r.open(t, srv)
			got := o.exchange(raw, 2)
			if got[1].GetStr("op") != "verify" {
				t.Fatalf("%s: the second answer is %s", name, got[1].JSON())
			}
			if o.isBound(cat) {
				t.Errorf("%s: the stream is bound", name)
			}
		}
	}
	elsewhere := r.draft(cat, message.OpHello, helloBody)
	elsewhere.To = message.Agent{Agent: "other", Org: "home"}
	if got := r.open(t, srv).exchange(r.sign(cat, elsewhere), 1)[0]; got.GetStr("op") != "error" {
		t.Errorf("a hello to another agent: %s", got.JSON())
	}
	if again := r.open(t, srv); again.exchange(r.sign(cat, r.draft(cat, message.OpHello, helloBody)), 1)[0].GetStr("op") == "error" || !again.isBound(cat) {
		t.Error("the peer lost its places")
	}
}

// TestUnboundStreamTakesNoWork: before a stream is bound, no message on it can act for a sender.
func TestUnboundStreamTakesNoWork(t *testing.T) {
	r, n := newTestRig(t, nil)
	srv := r.serve()
	hello := r.sign(cat, r.draft(cat, message.OpHello, helloBody))
	r.sendRaw(cat, hello)
	answer := r.draft(cat, message.OpRespond, `{"status":"success","data":{}}`)
	answer.Re = "x"
	for _, d := range []message.Draft{r.draft(cat, message.OpQuery, `{"domain":"weather"}`), r.draft(cat, message.OpTask, `{"action":"create","task_id":"t"}`), answer} {
		o := r.open(t, srv)
		o.exchange(hello, 2)
		if got := o.exchange(r.sign(cat, d), 1)[0]; got.GetStr("op") != "error" {
			t.Errorf("%s: %s", d.Op, got.JSON())
		}
		_, err := next(t, o.conn)
		if end, ok := errors.AsType[*websocket.CloseError](err); !ok || strings.Contains(end.Reason, "first message") {
			t.Errorf("%s: the stream ends with %+v", d.Op, end)
		}
	}
	if len(n.got) != 0 {
		t.Errorf("the node got %+v", n.got)
	}
}

// TestChallengeBindsAStream: the challenge of a stream can be answered only on that stream, once, by its recipient.
func TestChallengeBindsAStream(t *testing.T) {
	r, _ := newTestRig(t, nil)
	srv := r.serve()
	hello := r.sign(cat, r.draft(cat, message.OpHello, helloBody))
	r.sendRaw(cat, hello)
	for _, op := range []message.Op{message.OpVerifyResponse, message.OpRespond} {
		o := r.open(t, srv)
		verify := o.exchange(hello, 2)[1]
		if e := mustMessage(t, verify).Verify(keyOf("me@home").Public()); e != nil {
			t.Errorf("our verify: %v", e)
		}
		proof := r.sign(cat, o.proof(cat, verify, op))
		if got := o.exchange(proof, 1)[0]; got.GetStr("op") == "error" || !o.isBound(cat) {
			t.Errorf("%s: %s", op, got.JSON())
		}
		thief := r.open(t, srv)
		thief.exchange(hello, 2)
		if got := thief.exchange(proof, 1)[0]; got.GetStr("op") != "error" {
			t.Errorf("%s: the proof of another stream: %s", op, got.JSON())
		}
	}
	for name, wrong := range map[string]func(o testStream, verify wire.Value) message.Draft{
		"another sender": func(o testStream, verify wire.Value) message.Draft {
			return o.proof(dog, verify, message.OpVerifyResponse)
		},
		"another text": func(o testStream, verify wire.Value) message.Draft {
			d := o.proof(cat, verify, message.OpVerifyResponse)
			d.P = mustTree(t, fmt.Sprintf(`{"challenge":"%064x"}`, 1))
			return d
		},
		"another message": func(o testStream, verify wire.Value) message.Draft {
			d := o.proof(cat, verify, message.OpVerifyResponse)
			d.Re = "x"
			return d
		},
		"another agent": func(o testStream, verify wire.Value) message.Draft {
			d := o.proof(cat, verify, message.OpVerifyResponse)
			d.To = self(dog)
			return d
		},
		"without the text": func(o testStream, verify wire.Value) message.Draft {
			d := o.proof(cat, verify, message.OpRespond)
			d.P = mustTree(t, `{"status":"success","data":{}}`)
			return d
		},
	} {
		o := r.open(t, srv)
		verify := o.exchange(hello, 2)[1]
		d := wrong(o, verify)
		peer := d.From.Name()
		if got := o.exchange(r.sign(peer, d), 1)[0]; got.GetStr("op") != "error" {
			t.Errorf("%s: %s", name, got.JSON())
		}
		if _, err := next(t, o.conn); err == nil {
			t.Errorf("%s: the stream stays open", name)
		}
	}
}

// TestRecordedHelloKeepsTheChallenge: a recorded hello, which anybody may repeat, does not invalidate the challenge
// that its sender is answering.
func TestRecordedHelloKeepsTheChallenge(t *testing.T) {
	r, _ := newTestRig(t, nil)
	ack, _ := r.say(cat, r.draft(cat, message.OpHello, helloBody))
	tree := message.Sign(r.draft(cat, message.OpHello, helloBody).Tree().Without("id"), keyOf(cat))
	r.sendRaw(cat, tree.JSON())
	proof := r.draft(cat, message.OpVerifyResponse, `{"challenge":"`+challengeOf(ack)+`"}`)
	proof.Re = ack.ID
	if m, status := r.say(cat, proof); status != 200 || m.Op == message.OpError {
		t.Errorf("the answer to the first challenge: %d %s", status, m.P.JSON())
	}
}

// TestUnpinnedKeyGetsNoAnswers: after the owner unpinned a peer, no answer to the peer's new key goes to a stream that
// the old key opened.
func TestUnpinnedKeyGetsNoAnswers(t *testing.T) {
	const bird = "bird@air"
	r, n := newTestRig(t, nil)
	n.take = func(bridge.Inbound) (bridge.Outcome, error) {
		return bridge.Outcome{Status: http.StatusAccepted, Raw: []byte(`{"payload":{"action":"received"}}`)}, nil
	}
	old := r.open(t, r.serve())
	old.exchange(r.sign(bird, r.draft(bird, message.OpHello, helloBody)), 1)
	if !old.isBound(bird) {
		t.Fatal("the stream is not bound")
	}
	if err := r.b.unpin(t.Context(), bird); err != nil {
		t.Fatal(err)
	}
	q := r.draft(bird, message.OpQuery, plainQuery)
	q.From.Key, q.From.EncKey = self(dog).Key, ""
	r.sendRaw(bird, r.sign(dog, q))
	final := newDelivery(t, bird, n.got[0].Intent, `{"action":"answer","answer":"sunny"}`)
	final.Address, final.To, final.Message.Conversation = n.got[0].Address, n.got[0].Peer, n.got[0].ConvID
	if _, err := r.b.Deliver(t.Context(), final); err != nil {
		t.Fatal(err)
	}
	if got := old.exchange(r.sign(bird, r.draft(bird, message.OpPing, `{"nonce":1}`)), 1)[0]; got.GetStr("op") != "error" {
		t.Errorf("the stream of the old key got %s", got.JSON())
	}
}

func mustMessage(t *testing.T, tree wire.Value) message.Message {
	t.Helper()
	m, e := message.Parse(tree)
	if e != nil {
		t.Fatalf("%v: %s", e, tree.JSON())
	}
	return m
}
