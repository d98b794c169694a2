package node_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/wire"
)

// overLink returns a message of a stranger in its own conversation, over a link with a meter.
func overLink(m *bridge.LinkMeter, conv string) bridge.Inbound {
	out := to("ann", wire.ConversationID("conv_"+conv), "hello")
	in := inbound(out, "wire:test", out.Address)
	in.Meter = m
	return in
}

// limitedNode returns a node that accepts ten messages an hour.
func limitedNode(t *testing.T) *lone {
	return loneNode(t, t.TempDir(), &wireTransport{deliver: takes}, mode(acl.Open), func(c *node.Config) {
		c.Rates = acl.Rates{NewConversations: 2, Conversation: 5, Total: 10}
	})
}

// TestLinkHasItsOwnLimits: a message over a link with a meter uses nothing of the node's own limits, and has the
// limits of the link (AM-41, MEW-Q4).
func TestLinkHasItsOwnLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limitedNode(t)
		defer l.stop()
		meter := bridge.NewLinkMeter(bridge.LinkLimits{Messages: 30, ToolCalls: 5})
		for n := range 30 {
			if _, err := l.Accept(t.Context(), overLink(meter, fmt.Sprint("chat", n))); err != nil {
				t.Fatalf("message %d of the link: %v", n, err)
			}
		}
		refusal, ok := errors.AsType[*wire.Error](accept(t, l, overLink(meter, "more")))
		if !ok || refusal.Code != wire.RateLimited || refusal.RetryAfter != 2*time.Second {
			t.Errorf("message 31 of a minute: %v, want it limited for 2s", refusal)
		}
		ends := overLink(meter, "chat1")
		ends.Draw = bridge.DrawNothing
		if err := accept(t, l, ends); err != nil {
			t.Errorf("a message that draws nothing: %v", err)
		}
		native := to("ben", "conv_native", "hello")
		if err := accept(t, l, inbound(native, string(native.To), native.Address)); err != nil {
			t.Errorf("an unrelated peer: %v, want it heard", err)
		}
		time.Sleep(time.Minute)
		for n := range 6 {
			call := overLink(meter, fmt.Sprint("call", n))
			call.Draw = bridge.DrawToolCall
			if err := accept(t, l, call); (err == nil) != (n < 5) {
				t.Errorf("tool call %d of a minute: %v", n, err)
			}
		}
	})
}

func accept(t *testing.T, l *lone, in bridge.Inbound) error {
	t.Helper()
	_, err := l.Accept(t.Context(), in)
	return err
}

// TestSignedMessageOverLinkIsCharged: a signed AgentMesh message is charged to the node's own limits, whatever link
// carried it (AM-41).
func TestSignedMessageOverLinkIsCharged(t *testing.T) {
	l := limitedNode(t)
	meter := bridge.NewLinkMeter(bridge.LinkLimits{})
	for n := range 3 {
		in := overLink(meter, fmt.Sprint(n))
		in.Native = &wire.Message{ID: in.MessageID, From: in.Peer, Time: time.Now()}
		if err := accept(t, l, in); errors.Is(err, wire.ErrRateLimited) != (n == 2) {
			t.Errorf("conversation %d: %v", n, err)
		}
	}
}

// TestLinkOpenConversations: a link may have a maximum number of open conversations, also over a restart, and an ended
// one frees a place (MEW-Q4).
func TestLinkOpenConversations(t *testing.T) {
	dir := t.TempDir()
	meter := bridge.NewLinkMeter(bridge.LinkLimits{Conversations: 3})
	open := func() *lone {
		return loneNode(t, dir, &wireTransport{deliver: takes}, mode(acl.Open))
	}
	l := open()
	for n := range 4 {
		if err := accept(t, l, overLink(meter, fmt.Sprint(n))); errors.Is(err, wire.ErrRateLimited) != (n == 3) {
			t.Fatalf("conversation %d: %v", n, err)
		}
	}
	l.stop()
	l = open()
	if err := accept(t, l, overLink(meter, "restarted")); !errors.Is(err, wire.ErrRateLimited) {
		t.Errorf("after a restart: %v, want it limited", err)
	}
	if err := accept(t, l, overLink(meter, "1")); err != nil {
		t.Errorf("a message in an open conversation: %v", err)
	}
	ends := overLink(meter, "1")
	ends.Payload = wire.Obj(wire.Member{Key: "action", Value: wire.Text("close")}, wire.Member{Key: "status", Value: wire.Text("completed")})
	if err := accept(t, l, ends); err != nil {
		t.Fatal(err)
	}
	if err := accept(t, l, overLink(meter, "new")); err != nil {
		t.Errorf("after one ended: %v", err)
	}
	if err := accept(t, l, overLink(meter, "newer")); !errors.Is(err, wire.ErrRateLimited) {
		t.Errorf("after the place was taken again: %v, want it limited", err)
	}
}
