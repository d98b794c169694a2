package link

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// strictNode is a node that checks what every bridge promises about its messages, and accepts them. t is the running
// test.
type strictNode struct{ t atomic.Pointer[testing.T] }

func (s *strictNode) Accept(_ context.Context, in bridge.Inbound) (bridge.Outcome, error) {
	t := s.t.Load()
	a, err := bridge.ParseAddress(in.Address)
	meta, _ := in.Payload.Get("metadata")
	from, _ := meta.Get("bridge")
	switch {
	case err != nil || a.Kind != Kind || a.Link != "home" || in.Peer != a.Pseudonym():
		t.Errorf("address %q, peer %s: %v", in.Address, in.Peer, err)
	case in.Principal != "mew:home" || in.Verified != bridge.VerifiedNone || in.Native != nil:
		t.Errorf("principal %q, verified %q", in.Principal, in.Verified)
	case !in.MessageID.Valid() || !in.ConvID.Valid() || !in.Intent.Valid():
		t.Errorf("ids %q %q %q", in.MessageID, in.ConvID, in.Intent)
	case in.Payload.Kind() != wire.Object || len(in.Payload.JSON()) > wire.MaxMessage:
		t.Errorf("a payload of %d bytes", len(in.Payload.JSON()))
	case from.GetStr("peer") != a.Peer || from.GetStr("envelope_id") == "":
		t.Errorf("metadata.bridge is %s", from.JSON())
	}
	return bridge.Outcome{Status: 200}, nil
}

// FuzzLink: whatever a space sends, a link hands a valid message to the node, or none.
func FuzzLink(f *testing.F) {
	r := start(f, newClubConfig(f, allKinds, "cat"))
	node := new(strictNode)
	k := newTestLink(f, r, Config{Links: []bridge.Link{linkOf(r, bridge.LinkPolicy{Broadcast: true, Tools: bridge.Tools()})}, Mesh: bridgetest.Mesh{Receiver: node}, Records: r.Store.Records(), Steps: r.Store.Steps()}, "cat")
	for _, s := range []string{
		string(chatText(1)), `{"id":"1","kind":"chat","payload":{"text":"a","format":"markdown"}}`,
		`{"id":"p","kind":"mcp/proposal","to":["node","cat"],"payload":{"method":"x"}}`,
		`{"id":"w","kind":"mcp/withdraw","correlation_id":["p"],"payload":{}}`,
		`{"id":"r","kind":"mcp/request","to":["node"],"correlation_id":["p"],"payload":{"jsonrpc":"2.0","id":1.5,"method":"tools/call","params":{"name":"send"}}}`,
		`{"id":"s","kind":"mcp/response","to":["node"],"correlation_id":["r"],"payload":{"result":[]}}`,
		`{"id":"c","kind":"chat/cancel","correlation_id":["m-1"],"payload":{}}`,
		`{"id":"a","kind":"chat/acknowledge","correlation_id":["m-1"],"payload":{"status":"read"}}`,
		`{"id":"q","kind":"participant/pause","to":["node"],"payload":{"timeout_seconds":1e-9}}`,
		`{"id":"q","kind":"participant/request-status","to":["node"],"payload":{}}`,
		`{"id":"q","kind":"stream/close","payload":{"stream_id":"stream-1"}}`,
		`{"id":"q","kind":"reasoning/start","payload":{}}`, `#stream-1#x`, `null`, `{"id":"e","kind":"system/error","correlation_id":["x"],"payload":{"error":"x"}}`,
	} {
		f.Add([]byte(s), "cat")
	}
	f.Fuzz(func(t *testing.T, data []byte, from string) {
		node.t.Store(t)
		k.Inject(t.Context(), from, data)
	})
}
