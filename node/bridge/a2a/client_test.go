package a2a_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
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
