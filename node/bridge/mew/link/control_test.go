package link

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

func number(v wire.Value) string { n, _ := v.Num(); return n }

// TestLinkObeys: a link handles control messages to it, and its answers are true (MEW-L5).
func TestLinkObeys(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open"})
	cat := l.peers["cat"]
	cat.Send(`{"id":"c1","kind":"chat","to":["node"],"payload":{"text":"hello"}}`)
	item := l.inbox(l.home, owner.ItemNew)
	cat.Send(fmt.Sprintf(proposalText, "p1", `,"dog"`, "x"))
	ask := l.ask()

	if v := cat.Control("participant/request-status", `{"fields":["latency"]}`, "participant/status"); number(mewtest.Payload(v, "messages_in_context")) != "2" || mewtest.Text(mewtest.Payload(v, "status")) != "active" {
		t.Errorf("status: %s, want one chat and one proposal", v.JSON())
	}
	if v := cat.Control("participant/forget", `{"direction":"oldest","entries":1}`, "participant/status"); number(mewtest.Payload(v, "messages_in_context")) != "2" {
		t.Errorf("forget: %s, want that nothing was forgotten", v.JSON())
	}
	if v := cat.Control("participant/compact", `{}`, "participant/compact-done"); string(mewtest.Payload(v, "skipped").JSON()) != "true" {
		t.Errorf("compact: %s", v.JSON())
	}
	for _, kind := range []string{"participant/clear", "participant/restart"} {
		if v := cat.Control(kind, `{}`, "participant/status"); number(mewtest.Payload(v, "messages_in_context")) != "0" {
			t.Errorf("%s: %s", kind, v.JSON())
		}
	}
	if got := l.ask(); got.ID != ask.ID {
		t.Error("a clear took a question from the owner")
	}
	if got := l.inbox(l.home, owner.ItemNew); got.ID != item.ID {
		t.Error("a clear took a message from the owner")
	}
	if v := cat.Control("capability/grant", `{"recipient":"node","capabilities":[{"kind":"stream/*"}]}`, "capability/grant-ack"); mewtest.Text(mewtest.Payload(v, "status")) != "accepted" {
		t.Errorf("grant: %s", v.JSON())
	}
	l.await("told", func() bool { // the link handles the welcome after a grant
		l.l.space.mu.Lock()
		defer l.l.space.mu.Unlock()
		return l.l.space.space.allows(envelope.Draft{Kind: "stream/request", Payload: wire.Obj()})
	})
}

// TestLinkPause: a pause holds back what would leave over the link, and the link ends the pause when its time is over
// (MEW-L5).
func TestLinkPause(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open"})
	cat := l.peers["cat"]
	cat.Send(`{"kind":"participant/pause","to":["node"],"payload":{"reason":"wait"}}`)
	l.await("paused", func() bool { return l.l.View().Participants[0].Paused })
	address := bridge.Address{Kind: Kind, Link: "home", Peer: "cat"}
	sent, err := l.home.Send(t.Context(), node.Outgoing{
		To: address.Pseudonym(), Address: address.String(), Intent: wire.Deliver, Via: "owner",
		Payload: mewtest.Parse(t, `{"action":"deliver","message":{"body":"later"}}`),
	}, 20*time.Second)
	if err != nil || sent.State != owner.SendQueued {
		t.Errorf("sent into a pause: %+v, %v, want it kept", sent, err)
	}
	cat.Send(`{"kind":"participant/resume","to":["node"],"payload":{}}`)
	l.await("resumed", func() bool { return !l.l.View().Participants[0].Paused })

	cat.Send(`{"id":"pause-2","kind":"participant/pause","to":["node"],"payload":{"timeout_seconds":0.05}}`)
	if v := cat.FromNode("participant/resume"); mewtest.About(v) != "pause-2" {
		t.Errorf("at the end of a pause: %s", v.JSON())
	}
}

// TestLinkLearnsOfPause: a link that has connected again during a pause learns of the pause from the first refusal. The
// refused message waits until a participant resumes the node.
func TestLinkLearnsOfPause(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open"})
	cat := l.peers["cat"]
	isPaused := func() bool { return l.l.View().Participants[0].Paused }
	cat.Send(`{"kind":"participant/pause","to":["node"],"payload":{}}`)
	l.await("paused", isPaused)
	l.Disconnect()
	l.Reconnect()
	if e, ok := errors.AsType[*client.SendError](l.chatTo("cat")); !ok || e.Awaits != "mew:home/" || !isPaused() {
		t.Errorf("%+v, paused: %v; want the message to await the link", e, isPaused())
	}
	cat.Send(`{"kind":"participant/resume","to":["node"],"payload":{}}`)
	l.await("resumed", func() bool { return !isPaused() })
	if err := l.chatTo("cat"); err != nil {
		t.Error(err)
	}
}

// agent is a hook.
type agent func(context.Context, hook.Call) (hook.Answer, error)

func (a agent) Handle(ctx context.Context, c hook.Call) (hook.Answer, error) { return a(ctx, c) }

// TestLinkPauseKeepsAnswer: the outbox keeps the answer of a hook that comes during a pause, and the answer names the
// chat.
func TestLinkPauseKeepsAnswer(t *testing.T) {
	r := start(t, newClubConfig(t, allKinds, "cat", "dog"))
	asked, free := make(chan struct{}), make(chan struct{})
	l := newLabWith(t, r, meshtest.New(t), func(c *node.Config) {
		c.Routes = []node.Route{{Pattern: "*", Name: "agent", Handler: agent(func(context.Context, hook.Call) (hook.Answer, error) {
			close(asked)
			<-free
			answer := mewtest.Parse(t, `{"action":"deliver","message":{"body":"until six"}}`)
			return hook.Answer{Payload: &answer}, nil
		})}}
	}, linkOf(r, bridge.LinkPolicy{Access: "open"}))
	cat := l.peers["cat"]
	cat.Send(`{"id":"c1","kind":"chat","to":["node"],"payload":{"text":"is the shop open?"}}`)
	<-asked
	cat.Send(`{"kind":"participant/pause","to":["node"],"payload":{"reason":"wait"}}`)
	l.await("paused", func() bool { return l.l.View().Participants[0].Paused })
	close(free)
	l.inbox(l.home, owner.ItemAnswered)
	cat.Send(`{"kind":"participant/resume","to":["node"],"payload":{}}`)
	if chat := cat.FromNode("chat"); mewtest.Text(mewtest.Payload(chat, "text")) != "until six" || mewtest.About(chat) != "c1" {
		t.Errorf("after the pause: %s", chat.JSON())
	}
}

// TestLinkPauseByHand: an envelope that the owner sends by hand does not leave during a pause either, except for kinds
// that a paused participant may send (MEW-37). The gateway of this test does not know of the pause, like one that
// leaves pauses to the participants.
func TestLinkPauseByHand(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open"})
	cat := l.peers["cat"]
	l.Inject(t.Context(), "cat", []byte(`{"id":"pause","kind":"participant/pause","to":["node"],"payload":{"timeout_seconds":60}}`))
	owner := l.l
	if _, err := owner.Say(t.Context(), []byte(`{"kind":"chat","payload":{"text":"too early"}}`)); err == nil || !strings.Contains(err.Error(), "the space paused this node until") {
		t.Errorf("said by hand in a pause: %v, want it refused", err)
	}
	if _, err := owner.Say(t.Context(), []byte(`{"kind":"participant/status","to":["cat"],"payload":{"messages_in_context":0}}`)); err != nil {
		t.Errorf("a status in a pause: %v", err)
	}
	for _, s := range cat.Fence() {
		if strings.Contains(s, "too early") {
			t.Errorf("it left during the pause: %s", s)
		}
	}
}

// TestLinkShutdown: a shutdown lasts until the owner connects the link again, also over a restart of the process. The
// same holds for a kick (MEW-L5).
func TestLinkShutdown(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open"})
	cat := l.peers["cat"]
	cat.Control("participant/shutdown", `{"reason":"enough"}`, "chat/acknowledge")
	down := func() bool { return l.Links()[0].State == bridge.LinkDown }
	l.await("down", down)
	if s := l.Links()[0]; !goldentest.Says(t, "down", s.Error) {
		t.Errorf("status %+v, want the reason", s)
	}
	again, err := New(l.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.links.All()[0].space.load(t.Context()); err != nil || again.Links()[0].State != bridge.LinkDown || !goldentest.Says(t, "down", again.Links()[0].Error) {
		t.Errorf("after a restart: %+v, %v, want it down", again.Links()[0], err)
	}
	up := func() bool { return l.Links()[0].State == bridge.LinkUp }
	l.l.Connect()
	l.l.Connect()
	l.await("up", up)
	l.l.Connect()
	cat.Send(`{"kind":"space/kick","payload":{"participant_id":"node"}}`)
	l.await("kicked", down)
	dials := l.dials.Load()
	cat.Fence()
	if !down() || l.dials.Load() != dials {
		t.Error("a link that was kicked connects by itself")
	}
}

// newChat returns a message to a participant, as the outbox delivers it.
func (k *testLink) newChat(peer string) bridge.Delivery {
	address := k.l.address(peer)
	m, err := wire.ParseDraft(wire.Draft{
		ID: wire.NewMessageID(), Conversation: wire.NewConversationID(), From: "am_test", To: address.Pseudonym(), Time: time.Now(),
		Intent: wire.Deliver, Payload: mewtest.Parse(k.t, `{"action":"deliver","message":{"body":"x"}}`),
	}.Tree())
	if err != nil {
		k.t.Fatal(err)
	}
	return bridge.Delivery{ID: string(m.ID), To: m.To, Address: address.String(), Message: m, Attempt: 1}
}

// chatTo returns the error of an attempt to deliver a message to a participant.
func (k *testLink) chatTo(peer string) error {
	_, err := k.Deliver(k.t.Context(), k.newChat(peer))
	return err
}

// TestLinkDeliverFails: an envelope that the space refuses fails for good. One that the space cannot accept now awaits
// its participant or the link.
func TestLinkDeliverFails(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open"}, "chat/*")
	if err := l.chatTo("cat"); !errors.Is(err, wire.ErrNotAllowed) {
		t.Errorf("without the capability: %v, want it refused for good", err)
	}
	check := func(peer, awaits string) {
		t.Helper()
		if e, ok := errors.AsType[*client.SendError](l.chatTo(peer)); !ok || !e.Retry || e.Awaits != awaits {
			t.Errorf("to %s: %+v, want it to await %q", peer, e, awaits)
		}
	}
	check("nobody", "mew:home/nobody")
	cat := l.peers["cat"]
	cat.Send(`{"kind":"participant/pause","to":["node"],"payload":{}}`)
	l.await("paused", func() bool { return l.l.View().Participants[0].Paused })
	check("cat", "mew:home/")
	l.Disconnect()
	check("cat", "mew:home/")
}

// TestLinkRateLimited: on its first day, a message that the rate limit of the space holds back waits without an
// attempt.
func TestLinkRateLimited(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "open"}).l
	limited := refusalOf(mewtest.Parse(t, `{"error":"rate_limited"}`))
	for age, unsent := range map[time.Duration]bool{0: true, 23 * time.Hour: true, 25 * time.Hour: false} {
		e, ok := errors.AsType[*client.SendError](l.deliveryError("cat", limited, time.Now().Add(-age)))
		if !ok || !e.Retry || e.Unsent != unsent || e.After < limitPause {
			t.Errorf("after %v: %+v, want no attempt: %v", age, e, unsent)
		}
	}
}

// reachedMesh records which peers the bridge reports as reachable again.
type reachedMesh struct {
	bridgetest.Mesh
	reached chan string
}

func (m reachedMesh) Reachable(a bridge.Address) { m.reached <- a.String() }

// TestLinkReportsReachable: the link reports to the node each join of its own and of a participant who was away, each
// new sender that the gateway does not list, and the end of a pause.
func TestLinkReportsReachable(t *testing.T) {
	r := start(t, newClubConfig(t, allKinds, "cat", "dog"))
	mesh := reachedMesh{reached: make(chan string, 100)}
	k := newTestLink(t, r, Config{Mesh: mesh, Records: r.Store.Records()}, "cat")
	cat := k.peers["cat"]
	check := func(when, want string) {
		t.Helper()
		select {
		case got := <-mesh.reached:
			if got != want {
				t.Errorf("%s: %s can be reached, want %s", when, got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: nobody can be reached, want %s", when, want)
		}
	}
	check("joined", "mew:home/")
	r.Join("dog-token")
	check("a participant joined", "mew:home/dog")
	k.l.space.handle(t.Context(), nil, []byte(`{"id":"1","from":"system:gateway","kind":"system/presence","payload":{"event":"join","participant":{"id":"dog"}}}`))
	for range 2 {
		k.Inject(t.Context(), "http-client", []byte(`{"id":"h1","kind":"chat","to":["node"],"payload":{"text":"x"}}`))
	}
	check("a new sender", "mew:home/http-client")
	cat.Send(`{"kind":"participant/pause","to":["node"],"payload":{}}`)
	cat.Send(`{"kind":"participant/resume","to":["node"],"payload":{}}`)
	check("resumed", "mew:home/")
	cat.Send(`{"kind":"participant/resume","to":["node"],"payload":{}}`) // nothing was paused
	cat.Send(`{"kind":"participant/pause","to":["node"],"payload":{"timeout_seconds":0.05}}`)
	check("the time of the pause is over", "mew:home/")
	k.Disconnect()
	k.Reconnect()
	check("joined again", "mew:home/")
	if n := len(mesh.reached); n != 0 {
		t.Errorf("%d more reports, the first for %s", n, <-mesh.reached)
	}
}

// blockedNode is a node that accepts nothing until free is closed.
type blockedNode struct{ free chan struct{} }

func (b blockedNode) Accept(ctx context.Context, _ bridge.Inbound) (bridge.Outcome, error) {
	select {
	case <-b.free:
	case <-ctx.Done():
	}
	return bridge.Outcome{}, wire.ErrUnavailable
}

// TestLinkFlood: a participant that sends more than the node can handle loses its envelopes. The link keeps reading and
// handles control messages (THREATS 22).
func TestLinkFlood(t *testing.T) {
	r := start(t, newClubConfig(t, allKinds, "cat"))
	node := blockedNode{make(chan struct{})}
	k := newTestLink(t, r, Config{Mesh: bridgetest.Mesh{Receiver: node}, Records: r.Store.Records()}, "cat")
	cat := k.peers["cat"]
	for n := range linkQueue + 1000 {
		cat.Send(fmt.Sprintf(`{"id":"f%d","kind":"chat","to":["node"],"payload":{"text":"x"}}`, n))
		if n%200 == 0 {
			cat.Fence()
		}
	}
	if v := cat.Control("participant/request-status", `{}`, "participant/status"); v.IsNull() {
		t.Error("no answer in a flood")
	}
	if dropped := k.l.dropped.Load(); dropped < 900 || dropped > 1000 {
		t.Errorf("%d envelopes were dropped, want all that the queue cannot hold", dropped)
	}
	close(node.free)
}

// TestLinkWithoutEcho: a message that gets no echo counts as accepted if the gateway still answers, if only a ping. If
// nothing comes over the connection, the message may be lost, so the outbox keeps it; it does not wait for the end of
// the connection.
func TestLinkWithoutEcho(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ reads, answers, accepts bool }{
		"answers": {true, true, true}, "answers pings": {true, false, true}, "is silent": {false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ended := make(chan struct{})
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				conn, err := websocket.Accept(w, r, websocket.Options{})
				if err != nil {
					t.Error(err)
					return
				}
				err = conn.Send(websocket.Text([]byte(`{"id":"1","from":"system:gateway","kind":"system/welcome","payload":{"you":{"id":"node","capabilities":["chat"]},"participants":[{"id":"cat"}]}}`)))
				if !tt.reads {
					<-ended
				}
				for err == nil {
					if _, _, err = conn.Read(); err == nil && tt.answers {
						err = conn.Send(websocket.Text([]byte(`null`)))
					}
				}
			}))
			t.Cleanup(srv.Close)
			defer close(ended)
			r := start(t, newClubConfig(t, allKinds))
			link := bridge.Link{Name: "home", Kind: Kind, URL: "ws" + strings.TrimPrefix(srv.URL, "http"), Space: "lab"}
			k := newTestLinkWith(t, r, Config{Links: []bridge.Link{link}, Mesh: bridgetest.Mesh{}, Records: r.Store.Records()},
				func(b *Bridge) { b.links.All()[0].space.echoPatience = 2 * time.Second })
			err := k.chatTo("cat")
			if e, ok := errors.AsType[*client.SendError](err); tt.accepts && err != nil || !tt.accepts && (!ok || !e.Retry || e.Awaits != "mew:home/") {
				t.Errorf("%+v, want it to count as accepted: %v, or to await the link", err, tt.accepts)
			}
		})
	}
}

// newOddGateway starts a server that behaves unlike our gateway: it wants a join message, repeats itself, and sends
// invalid messages.
func newOddGateway(t *testing.T, joined chan<- string) *httptest.Server {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, websocket.Options{})
		if err != nil {
			t.Error(err)
			return
		}
		_, data, err := conn.Read()
		if err != nil {
			return
		}
		joined <- string(data)
		for _, s := range []string{
			`null`, `[]`, `{"a":`, `{"kind":"system/welcome","payload":{}}`, `{"id":"1","from":"mallory","kind":"system/welcome","payload":{"you":{"id":"x"}}}`,
			"#stream-1#data", `{"id":"1","from":"system:gateway","kind":"system/presence","payload":{"event":"join","participant":{"id":"early"}}}`,
			`{"id":"1","from":"system:gateway","kind":"system/error","correlation_id":["a"],"payload":{"error":"unauthorized"}}`,
			`{"id":"2","from":"system:gateway","kind":"system/welcome","payload":{"you":{"id":"node","capabilities":["chat",7,{"kind":["/(/"]}]},"participants":[{"id":"` + strings.Repeat("x", 500) + `"},{"id":"a"},7]}}`,
			`{"id":"3","from":"system:gateway","kind":"system/welcome","payload":{"you":{"id":"node","capabilities":["chat"]},"participants":[{"id":"a"}]}}`,
		} {
			if err := conn.Send(websocket.Text([]byte(s))); err != nil {
				return
			}
		}
		conn.Drain()
	}))
	t.Cleanup(srv.Close)
	return srv
}

// TestLinkTargets checks the URLs to which a link may connect (MEW-L1).
func TestLinkTargets(t *testing.T) {
	for url, want := range map[string]string{
		"wss://a.example":               "wss://a.example/ws?space=lab",
		"wss://a.example/":              "wss://a.example/ws?space=lab",
		"wss://a.example/x?space=other": "wss://a.example/x?space=other",
		"ws://127.0.0.1:8080":           "ws://127.0.0.1:8080/ws?space=lab",
		"ws://localhost:8080/ws":        "ws://localhost:8080/ws?space=lab",
		"ws://a.example":                "",
		"https://a.example":             "",
		"wss://":                        "",
	} {
		got, err := socketTarget(bridge.Link{URL: url, Space: "lab"})
		if want == "" && err == nil || want != "" && (err != nil || got.String() != want) {
			t.Errorf("%s leads to %v, %v, want %s", url, got, err, want)
		}
	}
	if _, err := socketTarget(bridge.Link{URL: "ws://a.example", Options: map[string]string{"allow_insecure": "true"}}); err != nil {
		t.Errorf("with allow_insecure: %v", err)
	}
	if _, err := socketTarget(bridge.Link{URL: "wss://a.example", Options: map[string]string{"insecure": "true"}}); err == nil {
		t.Error("an option that does not exist was ignored")
	}
	st := start(t).Store
	if _, err := New(Config{Links: []bridge.Link{{Name: "a", URL: "wss://a.example"}}, Records: st.Records(), Steps: st.Steps(), Dial: mewtest.PlainDial}); err == nil {
		t.Error("a link without a token was made")
	}
}

// TestLinkStrangersAreOne: a space costs its owner one question about strangers, however many participants write
// (THREATS 30).
func TestLinkStrangersAreOne(t *testing.T) {
	l := newLab(t, bridge.LinkPolicy{Access: "approval"})
	for n := range 20 {
		for name, p := range l.peers {
			p.Send(fmt.Sprintf(`{"id":"%s%d","kind":"chat","to":["node"],"payload":{"text":"x"}}`, name, n),
				fmt.Sprintf(`{"id":"p%s%d","kind":"mcp/proposal","to":["node"],"payload":{"method":"x"}}`, name, n),
				fmt.Sprintf(`{"id":"r%s%d","kind":"mcp/request","to":["node"],"payload":{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"send"}}}`, name, n))
		}
	}
	for _, p := range l.peers {
		p.Control("participant/request-status", `{}`, "participant/status")
	}
	l.ask()
	asks, _, err := l.home.Asks().List(t.Context(), acl.AskFilter{}, "", 100, time.Now())
	if err != nil || len(asks) != 1 {
		t.Errorf("%d questions, %v, want one", len(asks), err)
	}
}

// TestLinkInvite: an owner that invites over a link gets the token, and nobody who watches the link gets it (MEW-27).
func TestLinkInvite(t *testing.T) {
	r := start(t, newClubConfig(t, []string{"*"}, "cat"))
	k := newTestLink(t, r, Config{Mesh: bridgetest.Mesh{Receiver: blockedNode{make(chan struct{})}}, Records: r.Store.Records()}, "cat")
	feed := k.l.Watch()
	defer feed.Close()
	said, err := k.l.Say(t.Context(), []byte(`{"kind":"space/invite","payload":{"participant_id":"guest","initial_capabilities":[{"kind":"chat"}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	token := said.Token
	if token == "" {
		t.Fatalf("invite: %+v", said)
	}
	k.peers["cat"].Fence()
	r.Join(token).Fence()
	for {
		select {
		case raw := <-feed.C():
			if strings.Contains(string(raw), token) {
				t.Errorf("the feed has the token: %s", raw)
			}
			continue
		default:
		}
		break
	}
}

// TestLinkFeedHasOneLine: the owner sees each envelope whole, because an event stream ends a datum at a line break.
func TestLinkFeedHasOneLine(t *testing.T) {
	r := start(t, newClubConfig(t, allKinds))
	k := newTestLink(t, r, Config{Mesh: bridgetest.Mesh{Receiver: blockedNode{make(chan struct{})}}, Records: r.Store.Records()})
	feed := k.l.Watch()
	defer feed.Close()
	k.l.space.handle(t.Context(), nil, []byte("{\n \"id\": \"1\",\r\n\"from\":\"cat\", \"kind\":\"chat\"\n}"))
	if got := string(<-feed.C()); got != `{"id":"1","from":"cat","kind":"chat"}` {
		t.Errorf("the owner sees %q", got)
	}
}

// TestLinkErrorsAreTheGateways: only a system/error from the gateway ends the wait for an envelope.
func TestLinkErrorsAreTheGateways(t *testing.T) {
	r := start(t, newClubConfig(t, allKinds))
	k := newTestLink(t, r, Config{Mesh: bridgetest.Mesh{Receiver: blockedNode{make(chan struct{})}}, Records: r.Store.Records()})
	for from, counts := range map[string]bool{"mallory": false, "system:mallory": false, "node": false, envelope.FromSystem: true, envelope.FromStream: true} {
		waits := make(chan outcome, 1)
		k.l.space.mu.Lock()
		k.l.space.echoes["ours-1"] = waits
		k.l.space.mu.Unlock()
		k.l.space.handle(t.Context(), nil, []byte(`{"id":"1","from":"`+from+`","kind":"system/error","correlation_id":["ours-1"],"payload":{"error":"unauthorized"}}`))
		select {
		case e := <-waits:
			if !counts || e.err == nil {
				t.Errorf("from %s it ended the wait with %v", from, e.err)
			}
		default:
			if counts {
				t.Errorf("from %s it ended nothing", from)
			}
		}
		k.l.space.mu.Lock()
		delete(k.l.space.echoes, "ours-1")
		k.l.space.mu.Unlock()
	}
}

// TestSayFault: if the space may have accepted an envelope, the owner does not read that nothing was sent.
func TestSayFault(t *testing.T) {
	for err, want := range map[error]string{
		errNotJoined: "nothing was sent: ", errMayNot: "nothing was sent: ",
		errLinkEnded: "the space may have accepted it: ", context.Canceled: "the space may have accepted it: ",
	} {
		if got := sayFault(err).Error(); !strings.HasSuffix(got, ": "+want+err.Error()) {
			t.Errorf("%v: the owner reads %q, want %q before the error", err, got, want)
		}
	}
}
