package mcp_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/owner/mcp"
	"github.com/agentmesh/agentmesh/node/wire"
)

// startStdio runs a server over pipes, and returns the client's ends.
func startStdio(t *testing.T, cfg mcp.Config, channel *mcp.Channel) (io.Writer, *bufio.Reader) {
	t.Helper()
	inHere, inThere := io.Pipe()
	outThere, outHere := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mcp.ServeStdio(ctx, mcp.New(cfg), inHere, outHere, channel) }()
	t.Cleanup(func() {
		inThere.Close()
		cancel()
		go io.Copy(io.Discard, outThere)
		<-done
	})
	return inThere, bufio.NewReader(outThere)
}

// initialize is the first request of a client of 2025-11-25, such as OpenClaw.
const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"old","version":"1"}}}`

// TestInitialize2025: a client that begins with initialize gets its version, the tools, and no logging.
func TestInitialize2025(t *testing.T) {
	sarah := meshtest.New(t).Node("sarah", open)
	in, out := startStdio(t, mcp.Config{Client: agentOf(sarah), Version: "test"}, nil)
	ask := func(line string) string {
		if _, err := io.WriteString(in, line+"\n"); err != nil {
			t.Fatal(err)
		}
		answer, err := out.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(answer)
	}
	compare(t, "initialize-2025-11-25.json", []byte(ask(initialize)+"\n"))
	if _, err := io.WriteString(in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	if answer := ask(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"mesh_inbox","arguments":{}}}`); !strings.Contains(answer, `"structuredContent":{"items":[]}`) || !strings.Contains(answer, `"text":"{\"items\":[]}"`) {
		t.Errorf("call = %s", answer)
	}
	if answer := ask(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"mesh_approve","arguments":{}}}`); !strings.Contains(answer, `-32602`) {
		t.Errorf("unknown tool = %s", answer)
	}
}

// TestDiscover2026: a client of 2026-07-28 begins with server/discover over HTTP, without a session.
func TestDiscover2026(t *testing.T) {
	sarah := meshtest.New(t).Node("sarah", open)
	server := httptest.NewServer(mcp.Handler(mcp.New(mcp.Config{Client: agentOf(sarah), Version: "test"}), nil))
	t.Cleanup(server.Close)
	ask := func(method, name, params string) (*http.Response, string) {
		meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"new","version":"1"}}`
		r, err := http.NewRequestWithContext(t.Context(), "POST", server.URL, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{`+params+meta+`}}`))
		if err != nil {
			t.Fatal(err)
		}
		for key, value := range map[string]string{
			"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Mcp-Name": name,
		} {
			if value != "" {
				r.Header.Set(key, value)
			}
		}
		resp, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		text := string(body)
		if _, data, ok := strings.Cut(text, "data: "); ok {
			text, _, _ = strings.Cut(data, "\n")
		}
		return resp, strings.TrimSpace(text)
	}
	resp, body := ask("server/discover", "", "")
	if resp.Header.Get("Mcp-Session-Id") != "" {
		t.Error("the answer names a session")
	}
	compare(t, "discover-2026-07-28.json", []byte(body+"\n"))
	if _, body := ask("tools/call", "mesh_inbox", `"name":"mesh_inbox","arguments":{},`); !strings.Contains(body, `"resultType":"complete"`) {
		t.Errorf("call = %s", body)
	}
	for _, method := range []string{"GET", "DELETE"} {
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", "text/event-stream")
		resp, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s = %d, want 405", method, resp.StatusCode)
		}
	}
}

// TestOpenClawSession replays what a real OpenClaw gateway sent to the server in one session: every request gets
// a result, and the owner's answer to the agent's question is in it. TestRealGateway in cmd/agentmesh records the
// session.
func TestOpenClawSession(t *testing.T) {
	session, err := os.ReadFile("testdata/openclaw.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	sarah := meshtest.New(t).Node("sarah", open)
	in, out := startStdio(t, mcp.Config{Client: agentOf(sarah), Version: "test"}, nil)
	answers := make(map[string]string)
	for line := range strings.Lines(string(session)) {
		request, err := wire.ParseObject([]byte(line))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(in, line); err != nil {
			t.Fatal(err)
		}
		if _, asks := request.Get("id"); !asks {
			continue
		}
		params, _ := request.Get("params")
		if params.GetStr("name") == "mesh_ask_owner" {
			var waiting owner.List[owner.Approval]
			for len(waiting.Items) == 0 {
				sarah.Call("GET", "/approvals", nil, &waiting)
			}
			sarah.Call("POST", "/approvals/"+waiting.Items[0].ID, owner.Decision{Choice: acl.Approve, Hash: waiting.Items[0].Hash, Text: "only after five"}, nil)
		}
		answer, err := out.ReadString('\n')
		if err != nil || strings.Contains(answer, `"error"`) || strings.Contains(answer, `"isError":true`) {
			t.Errorf("%s: %s, %v", line, answer, err)
		}
		answers[request.GetStr("method")] = answer
	}
	for method, want := range map[string]string{
		"initialize": `"protocolVersion":"2025-11-25"`, "tools/list": `"name":"mesh_ask_owner"`, "tools/call": `"owner_says":"only after five"`,
	} {
		if !strings.Contains(answers[method], want) {
			t.Errorf("%s = %s, want %s in it", method, answers[method], want)
		}
	}
}
