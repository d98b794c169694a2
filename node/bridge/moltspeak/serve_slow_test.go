//go:build slow

package moltspeak

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/websocket"
)

// TestServeStream: the first frame must be a valid hello; it binds the connection (MS-47).
func TestServeStream(t *testing.T) {
	r, _ := newTestRig(t, nil)
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.b.Run(ctx) }()
	srv := r.serve()
	for _, first := range [][]byte{[]byte("null"), r.sign(cat, r.draft(cat, message.OpPing, `{"nonce":1}`)), r.sign(cat, r.draft(dog, message.OpHello, `{"protocol_versions":["0.1"]}`))} {
		c := dial(t, srv)
		c.Send(websocket.Text(first))
		if m, err := next(t, c); err != nil || m.GetStr("op") != "error" {
			t.Errorf("%.40s: %v %s", first, err, m.JSON())
		}
		if _, err := next(t, c); err == nil {
			t.Errorf("%.40s: the connection stays open", first)
		}
	}
	c := dial(t, srv)
	c.Send(websocket.Text(r.sign(cat, r.draft(cat, message.OpHello, `{"protocol_versions":["0.1"]}`))))
	if m, err := next(t, c); err != nil || m.GetStr("op") != "respond" {
		t.Fatalf("hello: %v %s", err, m.JSON())
	}
	unnamed := r.draft(cat, message.OpPing, `{"nonce":"x"}`)
	tree := message.Sign(unnamed.Tree().Without("from"), keyOf(cat))
	c.Send(websocket.Text(tree.JSON()))
	if m, err := next(t, c); err != nil || m.GetStr("op") != "pong" {
		t.Errorf("without from: %v %s", err, m.JSON())
	}
	c.Send(websocket.Text(r.sign(dog, r.draft(dog, message.OpPing, `{"nonce":"x"}`))))
	if m, err := next(t, c); err != nil || m.GetStr("op") != "error" {
		t.Errorf("another sender: %v %s", err, m.JSON())
	}
	c.Send(websocket.Text([]byte(strings.Repeat(" ", message.MaxMessage+message.MaxWrapping+1))))
	if _, err := next(t, c); err == nil {
		t.Error("a frame beyond the limit was taken")
	}
	open := dial(t, srv)
	open.Send(websocket.Text(r.sign(cat, r.draft(cat, message.OpHello, `{"protocol_versions":["0.1"]}`))))
	next(t, open)
	stop()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("Run does not end")
	}
	if _, err := next(t, open); err == nil {
		t.Error("the stream outlives Run")
	}
	srv.Close()
	http.DefaultClient.CloseIdleConnections()
	r.server.Close()
	r.b.cfg.HTTP.Close()
}

// TestSilentStreamsGiveWay: a connection without a hello is closed to make room for a new one.
func TestSilentStreamsGiveWay(t *testing.T) {
	t.Parallel() // it mostly waits
	r, _ := newTestRig(t, nil)
	srv := r.serve()
	first := dial(t, srv)
	for range unboundSockets {
		dial(t, srv)
	}
	ended := make(chan error, 1)
	go func() { _, _, err := first.Read(); ended <- err }()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the first connection got a message")
		}
	case <-time.After(30 * time.Second):
		t.Error("the first connection stays, although it never said hello")
	}
	r.b.sockets.group.Close(stopPatience)
}
