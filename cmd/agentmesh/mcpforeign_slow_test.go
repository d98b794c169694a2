//go:build slow

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestMCPForeignAgent: an agent finds its conversations with a foreign peer, by each of the peer's names.
func TestMCPForeignAgent(t *testing.T) {
	t.Parallel()
	s := startMCP(t)
	const address = "a2a:http://127.0.0.1:1" // a port that is never called
	sent := s.call("mesh_send", map[string]any{"to": address, "text": "hello"})
	with := s.call("mesh_read", map[string]any{"conversation": sent["conversation"]})["with"]
	for _, name := range []any{address, "a2a:web/http://127.0.0.1:1", with} {
		list, _ := s.call("mesh_get_agent", map[string]any{"agent": name})["conversations"].([]any)
		if len(list) != 1 || list[0].(map[string]any)["conversation"] != sent["conversation"] {
			t.Errorf("with %s: %v", name, list)
		}
	}
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"name":"Helper","description":"helps","version":"1","skills":[{"id":"x","name":"translating","description":"x","tags":[]}],
			"supportedInterfaces":[{"url":"http://%s/","protocolBinding":"JSONRPC","protocolVersion":"1.0"}],"capabilities":{},"defaultInputModes":["text/plain"],"defaultOutputModes":["text/plain"]}`, r.Host)
	}))
	t.Cleanup(host.Close)
	card := s.call("mesh_get_agent", map[string]any{"agent": "a2a:" + host.URL}) // before the first message
	if about, _ := json.Marshal(card["describes_itself"]); card["has_card"] != true || !strings.Contains(string(about), "skills: translating") {
		t.Errorf("card = %v", card)
	}
}
