package a2a_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestCardBelowPath checks that the card of an agent whose URL has a path is below that path, as behind a relay, or
// else at the root of the host.
func TestCardBelowPath(t *testing.T) {
	p := newPeerAgent(t)
	agents := http.NewServeMux()
	card := func(name string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, strings.Replace(p.card(p.URL), `"Peer"`, `"`+name+`"`, 1))
		}
	}
	agents.HandleFunc("/a2a/am_one/.well-known/agent-card.json", card("one"))
	agents.HandleFunc("/a2a/am_old/.well-known/agent.json", card("old"))
	agents.HandleFunc("/.well-known/agent-card.json", card("root"))
	agents.HandleFunc("/page/.well-known/agent-card.json", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") })
	host := httptest.NewServer(agents)
	defer host.Close()
	h := serve(t, nil, nil, nil)
	for path, want := range map[string]string{
		"/a2a/am_one": "one", "/a2a/am_one/": "one", "/a2a/am_old": "old", "/rpc": "root", "/page": "root", "": "root", "/": "root",
		"/a2a/am_one/.well-known/agent-card.json": "one",
	} {
		if got := h.bridge.NameAt(t, host.URL+path); got != want {
			t.Errorf("the agent at %q is %q, want %q", path, got, want)
		}
	}
}

// TestBusyAgent checks that a message and its answer survive the rate limit of OpenClaw: an error of JSON-RPC with
// the HTTP status 200.
func TestBusyAgent(t *testing.T) {
	t.Parallel()
	p := newPeerAgent(t)
	answer := p.answer
	p.answer = func(method string, params wire.Value) (string, int) {
		if p.count(method) == 1 {
			return "", -32000
		}
		if method == "GetTask" {
			return `{"id":"t1","contextId":"c","status":{"state":"TASK_STATE_COMPLETED"},"artifacts":[{"artifactId":"a","parts":[{"text":"done"}]}]}`, 0
		}
		return answer(method, params)
	}
	h := serve(t, nil, nil, nil)
	sent := h.write("a2a:"+p.URL, "work")
	if sent.State == owner.SendFailed {
		t.Fatalf("sent: %+v", sent)
	}
	if v := h.inbox(sent.Conversation, 1); text(v, "message.body") != "done" {
		t.Errorf("the answer is %s", v.JSON())
	}
	if sends := p.count("SendMessage"); sends != 2 {
		t.Errorf("the message was sent %d times", sends)
	}
}
