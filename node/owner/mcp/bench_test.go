package mcp_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner/mcp"
	"github.com/agentmesh/agentmesh/node/wire"
)

// BenchmarkCall measures one call of a tool over HTTP, with the caller, for an owner who knows 64 peers. The inbox item
// that the tool shows is signed.
func BenchmarkCall(b *testing.B) {
	mesh := meshtest.New(b)
	sarah := mesh.Node("sarah", open)
	for i := range 64 {
		card := meshtest.Card(b, fmt.Sprint("peer", i), "http://127.0.0.1:9/agentmesh")
		sarah.Call("POST", "/peers", map[string]any{"card": card.Tree}, nil)
	}
	chris := mesh.Stranger("chris")
	draft := chris.Draft(sarah.ID(), wire.Deliver, `{"action":"deliver","message":{"body":"Shall we meet at the old mill?"}}`)
	if a := meshtest.Post(b, sarah.URL, chris.Sign(draft)); a.Status >= 300 {
		b.Fatalf("post: %d %s", a.Status, a.Body)
	}
	server := httptest.NewServer(mcp.Handler(mcp.New(mcp.Config{Client: agentOf(sarah), Version: "test"}), nil))
	b.Cleanup(server.Close)
	const body = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mesh_inbox","arguments":{"limit":1},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"}}}}`
	b.ReportAllocs()
	for b.Loop() {
		r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, server.URL, strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		for key, value := range map[string]string{
			"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28",
			"Mcp-Method": "tools/call", "Mcp-Name": "mesh_inbox",
		} {
			r.Header.Set(key, value)
		}
		resp, err := server.Client().Do(r)
		if err != nil {
			b.Fatal(err)
		}
		data, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || !strings.Contains(string(data), "old mill") {
			b.Fatalf("%v %s", err, data)
		}
	}
}
