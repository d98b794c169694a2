package link

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// fakeNode is a node that accepts everything and answers with reply.
type fakeNode struct {
	mu    sync.Mutex
	got   []bridge.Inbound
	reply func(bridge.Inbound) (bridge.Outcome, error)
}

func (n *fakeNode) Accept(_ context.Context, in bridge.Inbound) (bridge.Outcome, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.got = append(n.got, in)
	if n.reply != nil {
		return n.reply(in)
	}
	return bridge.Outcome{Status: 200}, nil
}

func (n *fakeNode) all() []bridge.Inbound {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]bridge.Inbound(nil), n.got...)
}

// newLinkedNode links a fakeNode that stores records as a node does.
func newLinkedNode(t *testing.T, edit func(*bridge.Link), cfg Config) (*testLink, *fakeNode) {
	t.Helper()
	st := openStore(t)
	n := &fakeNode{}
	n.reply = func(in bridge.Inbound) (bridge.Outcome, error) {
		return bridge.Outcome{Status: 200}, st.Records().Apply(context.Background(), in.Records, time.Now())
	}
	if cfg.Store = st; cfg.Mesh == nil {
		cfg.Mesh = bridgetest.NewMesh(n, st)
	}
	return newTestLink(t, cfg, edit), n
}

func (x *testLink) from(peer, format string, args ...any) {
	x.t.Helper()
	x.Inject(x.t.Context(), peer, fmt.Appendf(nil, format, args...))
}

func newDelivery(t *testing.T, conv wire.ConversationID, intent wire.Intent, payload string) bridge.Delivery {
	t.Helper()
	v, err := wire.Parse([]byte(payload))
	if err != nil {
		t.Fatal(err)
	}
	to := arcAddress("agent-042")
	m, err := wire.ParseDraft(wire.Draft{
		ID: wire.NewMessageID(), Conversation: conv, From: "am_us", To: to.Pseudonym(), Time: time.Now(), Intent: intent, Payload: v,
	}.Tree())
	if err != nil {
		t.Fatal(err)
	}
	return bridge.Delivery{ID: string(m.ID), To: m.To, Address: to.String(), Message: m, Raw: m.Tree.JSON(), Attempt: 1}
}

func (x *testLink) send(d bridge.Delivery) wire.Value {
	x.t.Helper()
	if _, err := x.Deliver(x.t.Context(), d); err != nil {
		x.t.Fatalf("Deliver: %v", err)
	}
	return x.nextFrame()
}

// nextFrame returns the next frame that the peer gets.
func (x *testLink) nextFrame() wire.Value {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), patience)
	defer cancel()
	raw, err := x.Next(ctx, "agent-042")
	if err != nil {
		x.t.Fatalf("nothing came: %v", err)
	}
	v, err := wire.ParseForeign(raw, frame.MaxDepth, frame.MaxValues)
	if err != nil {
		x.t.Fatal(err)
	}
	return v
}

// TestQuestions: the answer to a question has the question's ref, or its id if it has no ref. The node's own questions
// have their message id as ref, and the answer to one arrives in its conversation and completes it (AR-28, AR-57).
func TestQuestions(t *testing.T) {
	x, n := newLinkedNode(t, nil, Config{})
	for _, tt := range []struct{ frame, ref string }{
		{`{"id":"r1","type":"question","payload":"why?"}`, "r1"},
		{`{"id":"r2","type":"question","ref":"mine-7","payload":"why?"}`, "mine-7"},
		{`{"id":"r3","type":"question","ref":"r2","payload":"and why that?"}`, "r3"}, // an id that we have seen
	} {
		x.from("agent-042", "%s", tt.frame)
		got := n.all()
		in := got[len(got)-1]
		if in.Intent != wire.RequestInfo || in.Payload.GetStr("action") != "ask" || in.Verified != bridge.VerifiedNone {
			t.Fatalf("%s came in as %s %s", tt.frame, in.Intent, in.Payload.JSON())
		}
		f := x.send(newDelivery(t, in.ConvID, wire.RequestInfo, `{"action":"answer","answer":"so"}`))
		if f.GetStr("type") != "answer" || f.GetStr("ref") != tt.ref || f.GetStr("payload") != "so" {
			t.Errorf("%s was answered with %s, want ref %s", tt.frame, f.JSON(), tt.ref)
		}
	}
	got := n.all()
	if got[1].ConvID != got[2].ConvID {
		t.Errorf("a ref to the second question is in %s, want %s", got[2].ConvID, got[1].ConvID)
	}
	before := len(got)
	d := newDelivery(t, wire.NewConversationID(), wire.RequestInfo, `{"action":"ask","question":"where?"}`)
	q := x.send(d)
	if q.GetStr("ref") != string(d.Message.ID) || q.GetStr("payload") != "where?" || q.GetStr("type") != "question" {
		t.Fatalf("our question left as %s", q.JSON())
	}
	x.from("agent-042", `{"id":"r9","type":"answer","ref":"%s","payload":"there"}`, q.GetStr("ref"))
	got = n.all()[before:]
	if len(got) != 2 || got[0].ConvID != d.Message.Conversation || got[0].Payload.GetStr("answer") != "there" ||
		got[1].Payload.GetStr("action") != wire.ActionClose || got[1].Payload.GetStr("status") != "completed" || got[1].ConvID != d.Message.Conversation {
		t.Errorf("the answer came in as %+v", got)
	}
}

// TestConversations: without a ref, a message after one of the node's belongs to its conversation. The same ref from
// two peers means two conversations (AR-57).
func TestConversations(t *testing.T) {
	x, n := newLinkedNode(t, nil, Config{})
	d := newDelivery(t, wire.NewConversationID(), wire.Deliver, `{"action":"deliver","message":{"body":"hello"}}`)
	if f := x.send(d); f.GetStr("payload") != "hello" || f.GetStr(meshConvMember) != string(d.Message.Conversation) {
		t.Errorf("left as %s", f.JSON())
	}
	x.from("agent-042", `{"id":"a1","payload":"hello yourself"}`)
	x.from("agent-042", `{"id":"a2","payload":"and another thing"}`)
	x.from("agent-007", `{"id":"b1","payload":"x","ref":"%s"}`, d.Message.ID)
	x.from("agent-042", `{"id":"a3","payload":{"x":1,"agentmesh":{"conv":"conv_theirs","msg":"msg_theirs"}}}`)
	got := n.all()
	if len(got) != 4 || got[0].ConvID != d.Message.Conversation || got[1].ConvID == d.Message.Conversation || got[2].ConvID == d.Message.Conversation {
		t.Fatalf("conversations %+v", got)
	}
	if got[3].ConvID != "conv_theirs" || strings.Contains(string(got[3].Payload.JSON()), "msg_theirs") {
		t.Errorf("a message that names a conversation is in %s: %s", got[3].ConvID, got[3].Payload.JSON())
	}
	if again := n.all()[0]; again.MessageID == got[1].MessageID || again.Principal != "agentrelay:free/agent-042" {
		t.Errorf("two messages have one id: %+v", again)
	}
}

// TestFilter: only messages that match the owner's filter reach the node (AR-26).
func TestFilter(t *testing.T) {
	x, n := newLinkedNode(t, func(l *bridge.Link) {
		l.Policy.Filter = bridge.LinkFilter{Types: []string{"thought"}, From: []string{"agent-042"}, Keywords: []string{"Go"}}
	}, Config{})
	x.from("agent-042", `{"id":"1","type":"thought","payload":{"text":"I like go"}}`)
	x.from("agent-042", `{"id":"2","type":"thought","payload":"nothing"}`)
	x.from("agent-042", `{"id":"3","type":"alert","payload":"go"}`)
	x.from("agent-007", `{"id":"4","type":"thought","payload":"go"}`)
	if got := n.all(); len(got) != 1 {
		t.Errorf("%d messages passed, want 1", len(got))
	}
}

// TestControlHasNoPower: no frame from the relay itself changes anything (AR-30).
func TestControlHasNoPower(t *testing.T) {
	x, n := newLinkedNode(t, nil, Config{})
	for _, kind := range []string{"welcome", "error", "pong", "subscribed", "vote_result", "answer", "agentmesh", "command_result"} {
		for _, to := range []string{"other-id", "our-node"} {
			x.from("relay", `{"id":"c-%s-%s","to":["%s"],"type":"%s","payload":{"code":"\u001b[31mred","relay":"evil"}}`, kind, to, to, kind)
		}
	}
	for _, member := range []string{"id", "ref", "type"} { // large members must not fill the memory
		f, _ := wire.Parse([]byte(`{"id":"big","ref":"r","type":"vote_result","payload":{}}`))
		x.from("relay", "%s", f.With(member, wire.Text("vote_result"+strings.Repeat("x", 200<<10))).JSON())
	}
	for _, it := range x.link.itemLog.latest(feedSize) {
		if len(it.ID)+len(it.Ref)+len(it.Type) > 100 {
			t.Errorf("the feed has an item with an id of %d bytes, a ref of %d and a type of %d", len(it.ID), len(it.Ref), len(it.Type))
		}
	}
	if len(n.all()) != 0 || x.link.ownID() != "our-node" || x.link.Status().State != bridge.LinkUp {
		t.Errorf("node got %d, we are %s, %+v", len(n.all()), x.link.ownID(), x.link.Status())
	}
}

// TestOutgoingLimits: a message that is too large or that ARC cannot express fails for good; over the budget it waits,
// which is not an attempt (AR-53).
func TestOutgoingLimits(t *testing.T) {
	x, _ := newLinkedNode(t, nil, Config{})
	for _, d := range []bridge.Delivery{
		newDelivery(t, wire.NewConversationID(), wire.Handoff, `{"action":"request_human","reason":"r"}`),
		newDelivery(t, wire.NewConversationID(), wire.Deliver, `{"action":"deliver","message":{"body":"`+strings.Repeat("x", 65<<10)+`"}}`),
	} {
		_, err := x.Deliver(t.Context(), d)
		if _, again := err.(*client.SendError); err == nil || again {
			t.Errorf("Deliver(%s) = %v, want a final error", d.Message.Intent, err)
		}
	}
	for n := range ownPerMinute + 1 {
		_, err := x.Deliver(t.Context(), newDelivery(t, wire.NewConversationID(), wire.Deliver, `{"action":"deliver","message":{"body":"x"}}`))
		if wait, ok := err.(*client.SendError); n == ownPerMinute && (!ok || !wait.Retry || !wait.Unsent || wait.After <= 0) || n < ownPerMinute && err != nil {
			t.Fatalf("message %d: %v", n, err)
		}
	}
}

// TestNothingIsSpentOffline: attempts while the link is not connected use up no budget, and change no conversation
// (AR-53).
func TestNothingIsSpentOffline(t *testing.T) {
	x, _ := newLinkedNode(t, nil, Config{})
	x.Disconnect()
	d := newDelivery(t, wire.NewConversationID(), wire.RequestInfo, `{"action":"ask","question":"where?"}`)
	for range 3 {
		if _, err := x.Deliver(t.Context(), d); err == nil {
			t.Error("a message left while the link was not connected")
		}
		if _, err := x.link.sendTunnel(t.Context(), "agent-042", []byte(`{"message_id":"msg_1"}`)); err == nil {
			t.Error("a tunneled message left while the link was not connected")
		}
	}
	if spent := x.link.sender.budget.Count(time.Now()); spent != 0 {
		t.Errorf("%d of the budget are spent, want 0", spent)
	}
	c := x.link.convStore
	if s, err := c.read(t.Context(), c.key("agent-042", d.Message.Conversation), time.Now()); err != nil || s.LastOurs || s.Asked {
		t.Errorf("the conversation is %+v, %v, want it unchanged", s, err)
	}
}

// reachedMesh records which peers the bridge reports as reachable again.
type reachedMesh struct {
	bridge.Mesh
	reached chan bridge.Address
}

func (m reachedMesh) Reachable(a bridge.Address) { m.reached <- a }

// TestMessagesAwaitTheLink: a message that fails because the link is not connected awaits the link, through the tunnel
// too, and the link reports each connection that lasts. A message beyond the budget awaits only its time (AR-53).
func TestMessagesAwaitTheLink(t *testing.T) {
	mesh := reachedMesh{bridgetest.NewMesh(&fakeNode{}, openStore(t)), make(chan bridge.Address, 10)}
	x, _ := newLinkedNode(t, nil, Config{Mesh: mesh})
	link := x.link.address("")
	check := func(when, want string, errs ...error) {
		t.Helper()
		for _, err := range errs {
			if e, ok := errors.AsType[*client.SendError](err); !ok || !e.Retry || e.Awaits != want {
				t.Errorf("%s: %+v, want an error that awaits %q", when, err, want)
			}
		}
	}
	d := newDelivery(t, wire.NewConversationID(), wire.Deliver, `{"action":"deliver","message":{"body":"x"}}`)
	for range 2 {
		if got := <-mesh.reached; got != link {
			t.Errorf("%v can be reached, want %v", got, link)
		}
		x.Disconnect()
		_, direct := x.Deliver(t.Context(), d)
		_, tunneled := x.link.sendTunnel(t.Context(), "agent-042", []byte(`{"message_id":"msg_1"}`))
		check("not connected", link.String(), direct, tunneled)
		x.Reconnect()
	}
	<-mesh.reached
	for range 3 { // connections that end early
		x.Disconnect()
		x.link.reliableAfter = time.Hour
		x.Reconnect()
	}
	if n := len(mesh.reached); n != 0 {
		t.Errorf("%d connections were reported too early", n)
	}
	x.changeSender(func(s *sender) { s.budget = rate.NewWindows(1, 0) })
	if _, err := x.Deliver(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	_, err := x.Deliver(t.Context(), d)
	check("over the budget", "", err)
}

// TestFailedSendsAreFree: what a connection that has ended does not take uses up no budget (AR-53).
func TestFailedSendsAreFree(t *testing.T) {
	x, _ := newLinkedNode(t, nil, Config{})
	s := x.link.sender
	s.mu.Lock()
	ended := s.conn
	s.mu.Unlock()
	x.Disconnect()
	s.setConn(ended) // as before the link notices the end
	for range 3 {
		s.answer("agent-042", []byte(`{}`))
		if err := x.link.writeNow([]byte(`{}`)); err == nil {
			t.Error("a frame of the owner left over a connection that has ended")
		}
		if _, err := x.Deliver(t.Context(), newDelivery(t, wire.NewConversationID(), wire.RequestInfo, `{"action":"ask","question":"where?"}`)); err == nil {
			t.Error("a message left over a connection that has ended")
		}
	}
	if all, answers := s.budget.Count(time.Now()), s.answers.Count(time.Now()); all != 0 || answers != 0 {
		t.Errorf("%d of the budget and %d of the part for answers are spent, want 0 and 0", all, answers)
	}
}

// applyStore calls apply before it stores records.
type applyStore struct {
	store.Store
	apply *func() error
}

type applyRecords struct {
	store.Records
	apply *func() error
}

func (s applyStore) Records() store.Records { return applyRecords{s.Store.Records(), s.apply} }

func (r applyRecords) Apply(ctx context.Context, changes []store.Change, now time.Time) error {
	if err := (*r.apply)(); err != nil {
		return err
	}
	return r.Records.Apply(ctx, changes, now)
}

// TestConversationWaitsForTheBudget: if two messages want the rest of the budget at the same time, the one that must
// wait leaves its conversation unchanged. A message whose conversation cannot be stored uses up no budget (AR-53).
func TestConversationWaitsForTheBudget(t *testing.T) {
	apply := func() error { return store.ErrUnavailable }
	x := newTestLink(t, Config{Mesh: bridgetest.Mesh{Receiver: &fakeNode{}}, Store: applyStore{openStore(t), &apply}}, nil)
	x.changeSender(func(s *sender) { s.budget = rate.NewWindows(1, 0) })
	first, second := wire.NewConversationID(), wire.NewConversationID()
	deliver := func(conv wire.ConversationID) error {
		_, err := x.Deliver(t.Context(), newDelivery(t, conv, wire.RequestInfo, `{"action":"ask","question":"where?"}`))
		return err
	}
	if err := deliver(first); err == nil || x.link.sender.budget.Count(time.Now()) != 0 {
		t.Errorf("without the store: %v, and %d of the budget are spent, want 0", err, x.link.sender.budget.Count(time.Now()))
	}
	var late error
	apply = func() error {
		apply = func() error { return nil }
		late = deliver(second)
		return nil
	}
	if err := deliver(first); err != nil || late == nil {
		t.Errorf("the first message: %v, the second: %v, want only the first to leave", err, late)
	}
	c := x.link.convStore
	for conv, want := range map[wire.ConversationID]bool{first: true, second: false} {
		if s, err := c.read(t.Context(), c.key("agent-042", conv), time.Now()); err != nil || s.Asked != want {
			t.Errorf("the conversation is %+v, %v, want it changed: %v", s, err, want)
		}
	}
}

// TestAnswersLeaveRoom: peers that make the node answer cannot use up its budget. Notices that the owner decides wait
// for their part of the budget, in order, and answers of the outbox wait for the same part (AR-53).
func TestAnswersLeaveRoom(t *testing.T) {
	x, n := newLinkedNode(t, nil, Config{})
	n.mu.Lock()
	n.reply = func(in bridge.Inbound) (bridge.Outcome, error) {
		reply := newDelivery(t, in.ConvID, wire.RequestInfo, `{"action":"pending_approval"}`).Message
		return bridge.Outcome{Status: 202, Held: true, Reply: &reply}, x.link.convStore.records.Apply(context.Background(), in.Records, time.Now())
	}
	n.mu.Unlock()
	x.changeSender(func(s *sender) { s.answers = rate.NewShortWindows(3, 0, 20*time.Millisecond) })
	for n := range 5 {
		x.from("agent-042", `{"id":"r%d","type":"question","payload":"why?"}`, n)
	}
	if _, err := x.Deliver(t.Context(), newDelivery(t, wire.NewConversationID(), wire.Deliver, `{"action":"deliver","message":{"body":"ours"}}`)); err != nil {
		t.Errorf("our own message: %v", err)
	}
	var refs []string
	for range 6 {
		if f := x.nextFrame(); f.GetStr("payload") != "ours" {
			refs = append(refs, f.GetStr("ref"))
		}
	}
	if want := []string{"r0", "r1", "r2", "r3", "r4"}; !slices.Equal(refs, want) {
		t.Errorf("notices about %v, want %v", refs, want)
	}
	if spent := x.link.sender.budget.Count(time.Now()); spent != 6 {
		t.Errorf("%d of the whole budget are spent, want 6", spent)
	}
	x.changeSender(func(s *sender) { s.answers = rate.NewWindows(1, 0) })
	for i, want := range []bool{false, true, true} {
		_, err := x.Deliver(t.Context(), newDelivery(t, wire.NewConversationID(), wire.RequestInfo, `{"action":"answer","answer":"so","metadata":{"in_reply_to":"msg_1"}}`))
		if wait, ok := errors.AsType[*client.SendError](err); ok != want || want && (!wait.Retry || wait.After <= 0) {
			t.Errorf("answer %d: %v", i, err)
		}
	}
	if spent := x.link.sender.budget.Count(time.Now()); spent != 7 {
		t.Errorf("%d of the whole budget are spent, want 7", spent)
	}
}

// TestMinWait checks how long a link waits at least after each kind of failure (AR-52).
func TestMinWait(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want time.Duration
	}{
		{&websocket.CloseError{Code: frame.CloseRate}, waitAfterRate}, {&websocket.HandshakeError{Status: 429}, waitAfterRate}, {errTooMany, waitAfterRate},
		{&websocket.CloseError{Code: frame.ClosePolicy}, waitAfterPolicy}, {&websocket.CloseError{Code: 1006}, 0}, {nil, 0},
	} {
		if got := minWait(tt.err); got != tt.want {
			t.Errorf("minWait(%v) = %v, want %v", tt.err, got, tt.want)
		}
	}
}

// TestRefusedToken: a refused token stops the link until the owner acts (AR-8, AR-52).
func TestRefusedToken(t *testing.T) {
	for _, how := range []int{http.StatusUnauthorized, frame.CloseBadToken} {
		x, _ := newLinkedNode(t, nil, Config{})
		x.relay.refuse(how)
		x.relay.cut()
		x.waitFor(bridge.LinkDown)
		if err := x.link.Test(t.Context()); !errors.Is(err, errToken) {
			t.Errorf("%d: Test() = %v, want %v", how, err, errToken)
		}
	}
}

// TestRegistersItself: a link without a token registers, at the next port if nothing answers at the first, and stores
// its credentials in a file (AR-51).
func TestRegistersItself(t *testing.T) {
	asked := make(chan string, 10)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			ID string `json:"agent_id"`
		}
		_ = json.NewDecoder(r.Body).Decode(&body)
		asked <- r.URL.Path + " " + body.ID
		fmt.Fprintf(w, `{"agent_id":"our-node","token":"tok_x%d"}`, len(asked))
	}))
	defer srv.Close()
	at, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, _ := strconv.Atoi(at.Port())
	h := client.NewHTTP(client.HTTPConfig{Local: true})
	defer h.Close()
	l, err := New(Config{
		Link: bridge.Link{Name: "free", Kind: Kind, URL: "ws://127.0.0.1:" + strconv.Itoa(port-1) + "/arc", AgentID: "our-node"},
		Dir:  t.TempDir(), Mesh: bridgetest.Mesh{Receiver: &fakeNode{}}, Store: openStore(t), HTTP: h,
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		token, err := l.token(t.Context())
		if err != nil || string(token) != "tok_x1" {
			t.Fatalf("token() = %q, %v", string(token), err)
		}
	}
	if got := <-asked; got != "/register our-node" || len(asked) != 0 {
		t.Errorf("asked for %q, and %d times more", got, len(asked))
	}
	info, err := os.Stat(l.tokenFile())
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the token's file: %v, %v", info, err)
	}
}

// TestLinkConfig: New rejects an invalid configuration.
func TestLinkConfig(t *testing.T) {
	config := func(l bridge.Link) Config {
		return Config{Link: l, Dir: "x", Mesh: bridgetest.Mesh{Receiver: &fakeNode{}}, Store: openStore(t), HTTP: client.NewHTTP(client.HTTPConfig{})}
	}
	good := bridge.Link{Name: "free", Kind: Kind, URL: "wss://relay.example/arc"}
	for name, edit := range map[string]func(*bridge.Link){
		"http":     func(l *bridge.Link) { l.URL = "https://relay.example/arc" },
		"token":    func(l *bridge.Link) { l.URL += "?token=tok_1" },
		"id":       func(l *bridge.Link) { l.AgentID = "relay" },
		"option":   func(l *bridge.Link) { l.Options = map[string]string{"x": "true"} },
		"no value": func(l *bridge.Link) { l.Options = map[string]string{optPending: "yes"} },
	} {
		l := good
		edit(&l)
		if _, err := New(config(l)); err == nil {
			t.Errorf("%s: %+v was accepted", name, l)
		}
	}
	if _, err := New(config(good)); err != nil {
		t.Error(err)
	}
}

// TestBusyNodeLosesNothing: if the connection ends while the node handles a message, the link connects again, and the
// node still gets the messages that arrived before the end, because a relay does not send them again.
func TestBusyNodeLosesNothing(t *testing.T) {
	x, n := newLinkedNode(t, nil, Config{})
	<-x.relay.joined
	accept, release := n.reply, make(chan struct{})
	n.mu.Lock()
	n.reply = func(in bridge.Inbound) (bridge.Outcome, error) {
		<-release
		return accept(in)
	}
	n.mu.Unlock()
	for i := range 3 {
		x.relay.say(fmt.Appendf(nil, `{"id":"%d","from":"agent-042","to":["our-node"],"payload":"hello"}`, i))
	}
	x.from("relay", `{"id":"last"}`) // the link has read the others before
	x.relay.cut()
	select {
	case <-x.relay.joined:
	case <-time.After(patience):
		t.Error("the link waits for the node before it connects again")
	}
	close(release)
	for range 3 {
		<-x.handled
	}
	if got := n.all(); len(got) != 3 {
		t.Errorf("the node got %d messages, want 3", len(got))
	}
}

// TestHugeFrameFromRelay: a huge frame ends the relay's connection and nothing else, and the link connects again
// (AR-54).
func TestHugeFrameFromRelay(t *testing.T) {
	x, n := newLinkedNode(t, nil, Config{})
	for len(x.relay.joined) > 0 {
		<-x.relay.joined
	}
	x.relay.say([]byte(`{"id":"1","from":"agent-042","to":["our-node"],"payload":"` + strings.Repeat("x", 7<<20) + `"}`))
	select {
	case <-x.relay.joined:
	case <-time.After(patience):
		t.Fatal("the link did not connect again")
	}
	x.waitFor(bridge.LinkUp)
	x.from("agent-042", `{"id":"2","payload":"small"}`)
	if got := n.all(); len(got) != 1 || got[0].Name != "agent-042" {
		t.Errorf("the node got %d messages, want the small one", len(got))
	}
}
