package link

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

// newServedLink returns a link to a relay that serves each connection with serve after the welcome, and then reads it
// to its end.
func newServedLink(t *testing.T, serve func(*websocket.Conn)) *testLink {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, websocket.Options{})
		if err != nil {
			t.Error(err)
			return
		}
		_ = conn.Send(websocket.Text([]byte(`{"id":"w","from":"relay","to":["our-node"],"type":"welcome","payload":{},"ts":1}`)))
		serve(conn)
		conn.Drain()
	}))
	t.Cleanup(srv.Close)
	mesh := reachedMesh{bridgetest.Mesh{Receiver: &fakeNode{}}, make(chan bridge.Address, 100)}
	return newTestLink(t, Config{Mesh: mesh, Store: openStore(t)}, func(l *bridge.Link) {
		l.URL = "ws" + strings.TrimPrefix(srv.URL, "http") + "/arc"
	})
}

// TestSilentConnection: a message counts as sent only if the relay gives a sign of life after it. If the connection is
// broken without a sign, the message is sent again after a pause (AR-53).
func TestSilentConnection(t *testing.T) {
	for _, answers := range []bool{true, false} {
		stall := make(chan struct{})
		x := newServedLink(t, func(*websocket.Conn) {
			if !answers {
				<-stall
			}
		})
		wait := patience
		if !answers {
			wait = 50 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		_, err := x.Deliver(ctx, newDelivery(t, wire.NewConversationID(), wire.Deliver, `{"action":"deliver","message":{"body":"hi"}}`))
		cancel()
		close(stall)
		if failed, ok := errors.AsType[*client.SendError](err); ok == answers || ok && (!failed.Retry || failed.Awaits != "") {
			t.Errorf("the relay answers %v: %v, want another attempt after a pause without an answer", answers, err)
		}
	}
}

// TestRelayClosesAfterFrame: a message does not count as sent if the relay reads it and closes the connection, as it
// does when it restarts or when the frame is one too many. The next attempt sends the message again. That attempt does
// not come with the next connection, because the relay may close that one for the same reason (AR-53).
func TestRelayClosesAfterFrame(t *testing.T) {
	frames := make(chan string, 2)
	x := newServedLink(t, func(conn *websocket.Conn) {
		_, data, err := conn.Read()
		if err != nil {
			return // the test has ended
		}
		if frames <- string(data); len(frames) == 1 {
			conn.Close(websocket.CodeGoingAway, "going down")
		}
	})
	d := newDelivery(t, wire.NewConversationID(), wire.Deliver, `{"action":"deliver","message":{"body":"hi"}}`)
	_, err := x.Deliver(t.Context(), d)
	if failed, ok := errors.AsType[*client.SendError](err); !ok || !failed.Retry || failed.Unsent || failed.Awaits != "" {
		t.Fatalf("the relay closed the connection: %v, want another attempt after a pause", err)
	}
	for deadline := time.Now().Add(patience); err != nil && time.Now().Before(deadline); _, err = x.Deliver(t.Context(), d) {
		<-time.After(time.Millisecond)
	}
	if first := <-frames; err != nil || <-frames != first {
		t.Errorf("the next connection: %v, want the same frame again", err)
	}
}

// TestUnreadMessages: a relay that reads nothing holds up only a few attempts. The others end at once, without a frame,
// and do not count. They leave when the relay has read a message (AR-53).
func TestUnreadMessages(t *testing.T) {
	stall := make(chan struct{})
	x := newServedLink(t, func(*websocket.Conn) { <-stall })
	deliver := func() error {
		_, err := x.Deliver(t.Context(), newDelivery(t, wire.NewConversationID(), wire.Deliver, `{"action":"deliver","message":{"body":"hi"}}`))
		return err
	}
	ended := make(chan error, maxUnread)
	for range maxUnread {
		go func() { ended <- deliver() }()
	}
	spent := func() int { return x.link.sender.budget.Count(time.Now()) }
	for deadline := time.Now().Add(patience); spent() < maxUnread && time.Now().Before(deadline); {
		<-time.After(time.Millisecond)
	}
	reached := x.link.cfg.Mesh.(reachedMesh).reached
	<-reached // the link is up
	own := x.link.address("")
	if failed, ok := errors.AsType[*client.SendError](deliver()); !ok || !failed.Retry || !failed.Unsent || failed.Awaits != own.String() || len(ended) > 0 || spent() != maxUnread {
		t.Errorf("with %d unread messages: %+v, and %d frames left", maxUnread, failed, spent())
	}
	if len(reached) > 0 {
		t.Error("the link reports a place although the relay reads nothing")
	}
	close(stall)
	for range maxUnread {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if len(reached) == 0 || <-reached != own {
		t.Error("the relay has read a message, and the others still wait")
	}
	if err := deliver(); err != nil {
		t.Errorf("the relay reads again: %v", err)
	}
}

// TestAnswerIsRepeated: if the connection ends between the commit of an answer and its frame, the next attempt sends
// the same frame. The next message of the node is not an answer.
func TestAnswerIsRepeated(t *testing.T) {
	apply := func() error { return nil }
	n := &fakeNode{}
	x := newTestLink(t, Config{Mesh: bridgetest.Mesh{Receiver: n}, Store: applyStore{openStore(t), &apply}}, nil)
	n.mu.Lock()
	n.reply = func(in bridge.Inbound) (bridge.Outcome, error) {
		return bridge.Outcome{Status: 200}, x.link.convStore.records.Apply(context.Background(), in.Records, time.Now())
	}
	n.mu.Unlock()
	x.from("agent-042", `{"id":"q1","type":"question","payload":"why?"}`)
	d := newDelivery(t, n.got[0].ConvID, wire.Deliver, `{"action":"deliver","message":{"body":"so"}}`)
	x.link.sender.mu.Lock()
	conn := x.link.sender.conn
	x.link.sender.mu.Unlock()
	apply = func() error { x.link.sender.clearConn(); return nil }
	if _, err := x.Deliver(t.Context(), d); err == nil {
		t.Error("a message left without a connection")
	}
	apply = func() error { return nil }
	x.link.sender.setConn(conn)
	for _, want := range []string{"answer", "thought"} {
		if _, err := x.Deliver(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		if f := x.nextFrame(); f.GetStr("type") != want || (f.GetStr("ref") == "q1") != (want == "answer") {
			t.Errorf("the peer got %s, want a frame of type %s", f.JSON(), want)
		}
		d = newDelivery(t, n.got[0].ConvID, wire.Deliver, `{"action":"deliver","message":{"body":"by the way"}}`)
	}
}

// TestRepeatedMessageStaysTheSame: a message that is sent again leaves as it did first, as the answer to a question or
// not, although the peer has asked something meanwhile. The new question is still unanswered then (AR-28, AR-53).
func TestRepeatedMessageStaysTheSame(t *testing.T) {
	x, n := newLinkedNode(t, nil, Config{})
	x.from("agent-042", `{"id":"q1","type":"question","payload":"why?"}`)
	for conv, want := range map[wire.ConversationID][2]string{n.all()[0].ConvID: {"answer", "q1"}, wire.NewConversationID(): {"thought", ""}} {
		check := func(d bridge.Delivery, want [2]string) {
			t.Helper()
			if f := x.send(d); f.GetStr("type") != want[0] || f.GetStr("ref") != want[1] {
				t.Errorf("the peer got %s, want type and ref %q", f.JSON(), want)
			}
		}
		d := newDelivery(t, conv, wire.Deliver, `{"action":"deliver","message":{"body":"so"}}`)
		check(d, want)
		next := "after " + want[0]
		x.from("agent-042", `{"id":"%s","type":"question","payload":"and now?","agentmesh_conv":"%s"}`, next, conv)
		check(d, want)
		check(newDelivery(t, conv, wire.Deliver, `{"action":"deliver","message":{"body":"then"}}`), [2]string{"answer", next})
	}
}
