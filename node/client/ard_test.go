package client

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/goldentest"
)

// registryOf serves the answers of a foreign registry by path.
func registryOf(t *testing.T, answers map[string]string) (base string, asked *[]string) {
	var list []string
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		list = append(list, r.Method+" "+r.URL.Path+" "+string(body))
		answer, ok := answers[r.URL.Path]
		if !ok {
			http.Error(w, `{"errorCode":"NOT_FOUND","message":"no\u001b[31m such\nroute"}`, http.StatusNotFound)
			return
		}
		io.WriteString(w, answer)
	})
	return srv.URL, &list
}

// TestSearchARD checks that a search asks the registry that the manifest of a domain names, and that control characters
// are removed from the answer.
func TestSearchARD(t *testing.T) {
	answers, longToken := map[string]string{}, strings.Repeat("t", 4000)
	base, asked := registryOf(t, answers)
	answers["/.well-known/ai-catalog.json"] = `{"entries":[{"type":"application/mcp-server-card+json","url":"https://mcp.example"},{"type":"application/ai-registry+json","url":"` + base + `/api/search"}]}`
	answers["/api/search"] = `{"results":[
		{"identifier":"urn:air:x.example:agent:a","displayName":"A\u001b]0;evil\u0007\u202e\nB","type":"application/a2a-agent-card+json","url":"https://x.example/.well-known/agent-card.json","capabilities":["c\u0000",7],"score":55,"source":"s"},
		{"identifier":"urn:air:x.example:agent:b","type":"application/a2a-agent-card+json","url":"javascript:alert(1)","score":1.5},
		{"type":"application/a2a-agent-card+json","url":"https://u:p@x.example/"},
		{"type":"application/a2a-agent-card+json","url":"https://x.example/\u202ecard"},
		{"type":"application/mcp-server-card+json","url":"https://x.example/"},
		{"type":"application/a2a-agent-card+json","url":"https://x.example/` + strings.Repeat("x", 2000) + `"},
		7],"pageToken":"` + longToken + `"}`
	list, token, err := SearchARD(t.Context(), local(t, HTTPConfig{}), base, Query{Text: "a b", Capabilities: []string{"c"}, Limit: 7})
	if err != nil || token != longToken || len(list) != 7 {
		t.Fatalf("%d entries, token %q, %v", len(list), token, err)
	}
	want := ARDEntry{
		Identifier: "urn:air:x.example:agent:a", Name: "A]0;evil B", Type: "application/a2a-agent-card+json", URL: "https://x.example/.well-known/agent-card.json",
		Capabilities: []string{"c"}, Score: 55, Source: "s", Address: "a2a:https://x.example",
	}
	if got := list[0]; got.Name != want.Name || got.Address != want.Address || got.Score != want.Score || len(got.Capabilities) != 1 || got.Capabilities[0] != "c" {
		t.Errorf("first = %+v", got)
	}
	for _, e := range list[1:] {
		if e.Address != "" || len(e.URL) > 1100 {
			t.Errorf("%+v has an address", e)
		}
	}
	if got := (*asked)[len(*asked)-1]; got != `POST /api/search {"query":{"text":"a b","filter":{"capabilities":["c"]}},"federation":"none","pageSize":7}` {
		t.Errorf("asked %s", got)
	}
}

// TestSearchARDFails checks that the answer of a bad registry is bounded, and that the error shows its text on one
// line.
func TestSearchARDFails(t *testing.T) {
	answers := map[string]string{
		"/big/search": `{"results":["` + strings.Repeat("x", 3<<20) + `"]}`, "/deep/search": strings.Repeat(`{"results":`, 5000),
		"/html/search": "<html>", "/none/search": `{}`, "/many/search": `{"results":[` + strings.Repeat(`{},`, 500) + `{}]}`,
	}
	base, _ := registryOf(t, answers)
	h := local(t, HTTPConfig{})
	for _, path := range []string{"/big", "/deep", "/html", "/none", "/x", "", "/a?b", "#x"} {
		if _, _, err := SearchARD(t.Context(), h, base+path, Query{Text: "x"}); err == nil || strings.ContainsAny(err.Error(), "\n\x1b") || !goldentest.Says(t, path, strings.ReplaceAll(err.Error(), base, "URL")) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if list, _, err := SearchARD(t.Context(), h, base+"/many", Query{Text: "x"}); err != nil || len(list) != maxARDEntries {
		t.Errorf("%d entries, %v", len(list), err)
	}
}

// TestSearchARDIsGuarded checks that neither a URL from the owner nor one from a manifest leads to a private address.
func TestSearchARDIsGuarded(t *testing.T) { // THREATS row 16
	answers := map[string]string{"/search": `{"results":[]}`}
	base, asked := registryOf(t, answers)
	public := NewHTTP(HTTPConfig{})
	defer public.Close()
	for _, target := range []string{base + "/ard", "http://169.254.169.254/ard", "https://10.0.0.1/ard", "https://localhost/ard", "file:///etc/passwd", "ftp://registry.example/ard"} {
		if _, _, err := SearchARD(t.Context(), public, target, Query{Text: "x"}); err == nil {
			t.Errorf("%s was called", target)
		} else if _, refused := errors.AsType[*GuardError](err); !refused && !strings.Contains(err.Error(), "a registry is") {
			t.Errorf("%s: %v, want a refusal of the guard", target, err)
		}
	}
	if len(*asked) != 0 {
		t.Errorf("the public profile asked %v", *asked)
	}
	answers["/.well-known/ard.json"] = `{"entries":[{"type":"application/ai-registry","url":"http://10.0.0.1/ard"}]}`
	if _, _, err := SearchARD(t.Context(), local(t, HTTPConfig{}), base, Query{Text: "x"}); err == nil {
		t.Error("a manifest led to a private address")
	}
}
