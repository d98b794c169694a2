package node_test

import (
	"errors"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// inbound is a message from a principal at an address, native where that is empty.
func inbound(out node.Outgoing, principal, address string) bridge.Inbound {
	id := wire.NewMessageID()
	return bridge.Inbound{
		Principal: principal, Peer: out.To, Address: address, Verified: bridge.VerifiedNone,
		MessageID: id, ConvID: out.Conv, Intent: out.Intent, Payload: out.Payload, Time: time.Now(), Received: time.Now(),
		Raw: []byte(`{"id":"` + string(id) + `"}`), Digest: [32]byte([]byte(id)[:32]),
	}
}

// TestForeignConversationStaysForeign: the id that stands for a foreign peer can be registered by anybody. Who has it
// gets no say in the peer's conversation, which our owner's word opens to the peer in every mode (AM-30), and gets
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
