package mcp_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/owner/mcp"
)

const listThree = `{"jsonrpc":"2.0","id":3,"method":"tools/list","params":{}}`

// TestBadLines: a line that is no message is answered, and the session goes on.
func TestBadLines(t *testing.T) {
	sarah := meshtest.New(t).Node("sarah", open)
	for name, tt := range map[string]struct{ line, code string }{
		"text":                {"hello", "-32700"},
		"number":              {"5", "-32600"},
		"batch":               {"[" + listThree + "]", "-32600"},
		"two on a line":       {listThree + " " + listThree, "-32700"},
		"cut":                 {`{"jsonrpc":"2.0",`, "-32700"},
		"no version":          {`{"id":1,"method":"tools/list"}`, "-32600"},
		"method is a number":  {`{"jsonrpc":"2.0","id":1,"method":5}`, "-32600"},
		"larger than allowed": {strings.Repeat("x", 3<<20), "-32600"},
		"byte order mark":     {"\ufeff" + listThree, "mesh_send"},
		"blanks":              {"  " + listThree + " \t\r", "mesh_send"},
		"empty line":          {"\n" + listThree, "mesh_send"},
	} {
		t.Run(name, func(t *testing.T) {
			in, out := startStdio(t, mcp.Config{Client: agentOf(sarah), Version: "test"}, nil)
			for _, step := range [][2]string{
				{initialize, `"id":1`}, {`{"jsonrpc":"2.0","method":"notifications/initialized"}`, ""}, {tt.line, tt.code}, {listThree, `"id":3`},
			} {
				if _, err := io.WriteString(in, step[0]+"\n"); err != nil {
					t.Fatal(err)
				}
				if step[1] == "" {
					continue
				}
				if answer, err := out.ReadString('\n'); err != nil || !strings.Contains(answer, step[1]) {
					t.Fatalf("%.60q: %.200s, %v; want %s", step[0], answer, err, step[1])
				}
			}
		})
	}
}

// TestLenientHTTP: clients that accept one media type or none are served, initialize with any version in
// the header gets one that the server has, and a body that is no message gets a JSON-RPC error.
func TestLenientHTTP(t *testing.T) {
	sarah := meshtest.New(t).Node("sarah", open)
	server := httptest.NewServer(mcp.Handler(mcp.New(mcp.Config{Client: agentOf(sarah), Version: "test"}), nil))
	t.Cleanup(server.Close)
	for name, tt := range map[string]struct {
		body, accept, version, coding string
		status                        int
		media, answer                 string
	}{
		"only JSON":       {initialize, "application/json", "", "", 200, "application/json", `"protocolVersion":"2025-11-25"`},
		"only events":     {initialize, "text/event-stream", "", "", 200, "text/event-stream", `"protocolVersion":"2025-11-25"`},
		"no Accept":       {initialize, "", "", "", 200, "application/json", `"protocolVersion":"2025-11-25"`},
		"unknown version": {strings.Replace(initialize, "2025-11-25", "2099-01-01", 1), "application/json", "2099-01-01", "", 200, "application/json", `"protocolVersion":"20`},
		"old version":     {initialize, "application/json", "1999-01-01", "", 200, "application/json", `"protocolVersion":"2025-11-25"`},
		"byte order mark": {"\ufeff" + listThree, "", "", "", 200, "application/json", "mesh_send"},
		"text":            {"hello", "", "", "", 400, "application/json", "-32700"},
		"number":          {"5", "", "", "", 400, "application/json", "-32600"},
		"batch":           {"[" + listThree + "]", "", "", "", 400, "application/json", "-32600"},
		"compressed":      {listThree, "", "", "gzip", 415, "text/plain", ""},
	} {
		r, err := http.NewRequestWithContext(t.Context(), "POST", server.URL, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		for key, value := range map[string]string{"Accept": tt.accept, "MCP-Protocol-Version": tt.version, "Content-Encoding": tt.coding} {
			if value != "" {
				r.Header.Set(key, value)
			}
		}
		resp, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != tt.status || !strings.HasPrefix(resp.Header.Get("Content-Type"), tt.media) || !strings.Contains(string(answer), tt.answer) {
			t.Errorf("%s: %d %s %.200s", name, resp.StatusCode, resp.Header.Get("Content-Type"), answer)
		}
	}
}

// TestLenientArguments: arguments are read as models write them.
func TestLenientArguments(t *testing.T) {
	s := connect(t, meshtest.New(t).Node("sarah", open))
	for name, tt := range map[string]struct {
		tool   string
		args   args
		failed bool
		answer string
	}{
		"a number as a string":  {"mesh_find_agents", args{"query": "x", "limit": "5"}, false, `"agents"`},
		"a boolean as a string": {"mesh_find_agents", args{"proven_only": "false"}, false, `"agents"`},
		"null":                  {"mesh_find_agents", args{"query": nil, "limit": nil, "proven_only": nil}, false, `"agents"`},
		"a list as a string":    {"mesh_wait", args{"seconds": "0", "topics": `["inbox"]`}, false, `"items"`},
		"an unknown member":     {"mesh_schedule", args{"around": "x", "agent": "am_x", "title": "x", "duration": "x"}, true, "It has: agent, title, window, duration."},
		"null for a needed one": {"mesh_get_agent", args{"agent": nil}, true, "agent"},
		"another string":        {"mesh_find_agents", args{"limit": "many"}, true, "limit"},
		"digits as a text":      {"mesh_find_agents", args{"query": "5"}, false, `"agents"`},
	} {
		if text, failed := s.try(tt.tool, tt.args); failed != tt.failed || !strings.Contains(text, tt.answer) {
			t.Errorf("%s: %t %s", name, failed, text)
		}
	}
}

// TestErrorsNameArguments: errors name the argument that the tool has and the allowed values, and say that the owner
// blocked the other side.
func TestErrorsNameArguments(t *testing.T) {
	mesh := meshtest.New(t)
	sarah, chris := mesh.Node("sarah", open), mesh.Node("chris", open)
	s := connect(t, sarah)
	sent := s.call("mesh_send", args{"to": chris.ID(), "text": "hi"})
	if status := sarah.Call("POST", "/peers/"+string(chris.ID()), owner.PeerChange{Action: "block"}, nil); status != http.StatusOK {
		t.Fatalf("block: %d", status)
	}
	for _, tt := range []struct {
		tool   string
		args   args
		answer string
	}{
		{"mesh_send", args{"to": chris.ID(), "text": "hi"}, "your owner blocked this agent"},
		{"mesh_reply", args{"conversation": sent["conversation"], "text": "hi"}, "your owner blocked this agent"},
		{"mesh_inbox", args{"cursor": "x"}, "cursor must be one that mesh_inbox returned"},
		{"mesh_inbox", args{"state": "x"}, "states are new, read"},
		{"mesh_wait", args{"topics": []string{"x"}}, "topics are inbox, approvals, conversations, outbox"},
		{"mesh_schedule", args{"agent": chris.ID(), "title": "x", "duration": "45m"}, "your owner has not connected a calendar"},
	} {
		if text, failed := s.try(tt.tool, tt.args); !failed || !strings.Contains(text, tt.answer) {
			t.Errorf("%s %v: %s", tt.tool, tt.args, text)
		}
	}
	if agent := s.call("mesh_get_agent", args{"agent": chris.ID()}); agent["standing"] != "blocked" {
		t.Errorf("agent = %v", agent)
	}
}
