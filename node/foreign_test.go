package node_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestForeignMessageIsPurged: a message with a purge time is deleted everywhere by then: inbox, transcript, questions
// and stored answers. A deadline also ends the wait for the owner.
func TestForeignMessageIsPurged(t *testing.T) {
	sarah := loneNode(t, t.TempDir(), &wireTransport{deliver: takes}, mode(acl.Approval))
	out := to("ann", "conv_1", "hello")
	in := inbound(out, "wire:test", out.Address)
	in.Purge, in.Deadline = time.Now().Add(2*time.Hour), time.Now().Add(time.Hour)
	held, err := sarah.Accept(t.Context(), in)
	if err != nil || !held.Held {
		t.Fatalf("%+v, %v, want it held", held, err)
	}
	early, late := in.Purge.Add(-time.Second), in.Purge
	ask, err := sarah.Asks().Get(t.Context(), held.Ask, early)
	if err != nil || !ask.Expires.Equal(in.Deadline) || ask.State != acl.AskExpired {
		t.Errorf("the question ends %s as %s, %v, want the deadline", ask.Expires, ask.State, err)
	}
	kept := func(now time.Time) (what []string) {
		if _, err := sarah.Asks().Get(t.Context(), held.Ask, now); err == nil {
			what = append(what, "question")
		}
		if page, err := sarah.store.Records().List(t.Context(), "inbox", "", "", 10, now); err == nil && len(page.Records) > 0 {
			what = append(what, "inbox")
		}
		if _, err := sarah.store.Steps().Conversation(t.Context(), store.ConvKey{Peer: string(out.To), ID: string(out.Conv)}, now); err == nil {
			what = append(what, "conversation")
		}
		if _, err := sarah.store.Steps().FindReplay(t.Context(), string(out.To), string(in.MessageID), now); err == nil {
			what = append(what, "answer")
		}
		return what
	}
	if got := kept(early); len(got) != 4 {
		t.Errorf("a second before: %v", got)
	}
	if got := kept(late); len(got) != 0 {
		t.Errorf("when it must be gone, there are left: %v", got)
	}
}

// TestFailedMessagesArePurged: messages that fail in a conversation with a purge time are deleted by then, also those
// that waited for the first one.
func TestFailedMessagesArePurged(t *testing.T) {
	fail := make(chan struct{})
	sarah := loneNode(t, t.TempDir(), &wireTransport{deliver: func(context.Context, bridge.Delivery) (bridge.Delivered, error) {
		<-fail
		return bridge.Delivered{}, errors.New("no such peer")
	}}, mode(acl.Open))
	out := to("ann", "conv_1", "hello")
	in := inbound(out, "wire:test", out.Address)
	in.Purge = time.Now().Add(2 * time.Hour)
	if _, err := sarah.Accept(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{"one", "two", "three"} {
		mustSend(t, sarah.Node, to("ann", "conv_1", body), 0)
	}
	close(fail)
	var entries []node.OutboxEntry
	for len(entries) < 3 {
		var err error
		if entries, _, err = sarah.Outbox(t.Context(), owner.SendFailed, "", 10); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range entries {
		if e.Keep.After(in.Purge) {
			t.Errorf("message %s is kept until %s, after %s", e.ID, e.Keep, in.Purge)
		}
	}
}

// TestForeignConversationStaysForeign: anybody can register the id that stands for a foreign peer. Such an agent
// cannot join the peer's conversation, which our owner's message opened to the peer in every mode (AM-30), and gets
// none of our messages there.
func TestForeignConversationStaysForeign(t *testing.T) {
	wires := &wireTransport{deliver: takes}
	sarah := loneNode(t, t.TempDir(), wires, mode(acl.Allowlist))
	out := to("ann", "conv_1", "hello")
	mustSend(t, sarah.Node, out, 10*time.Second)
	if _, err := sarah.Accept(t.Context(), inbound(out, string(out.To), "")); !errors.Is(err, wire.ErrNotAllowed) {
		t.Errorf("a native message in a foreign conversation: %v, want %v", err, wire.ErrNotAllowed)
	}
	if _, err := sarah.Accept(t.Context(), inbound(out, "wire:test", out.Address)); err != nil {
		t.Errorf("the foreign peer's message: %v", err)
	}
	items, _, err := sarah.Inbox(t.Context(), "", "", 10)
	if err != nil || len(items) != 1 || items[0].Address != out.Address {
		t.Fatalf("inbox = %+v, %v, want the foreign peer's message", items, err)
	}
	row, err := sarah.store.Steps().Conversation(t.Context(), store.ConvKey{Peer: string(out.To), ID: string(out.Conv)}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if conv, err := conversations.Decode(row); err != nil || conv.Address != out.Address {
		t.Errorf("the conversation goes on with %q, %v, want %q", conv.Address, err, out.Address)
	}
}
