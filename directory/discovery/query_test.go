package discovery

import (
	"errors"
	"net/http"
	"testing"

	"github.com/agentmesh/agentmesh/node/wire"
)

// FuzzParseSearch: a body of a search is refused with 400 or gives a request within the bounds.
func FuzzParseSearch(f *testing.F) {
	for _, seed := range []string{
		`{"query":{"text":"find me a flight booking agent","filter":{"type":["application/a2a-agent-card+json"]}},"federation":"referrals","pageSize":5}`,
		`{"query":{"@context":{"okf":"https://okf.example/ns#"},"text":"","filter":{"tags":"x","okf:taxonomy":["y"]}},"pageToken":"x"}`,
		`{"query":{"text":"x"},"pageSize":1e2}`, `{"query":{"text":"\ud800"}}`, `[]`, `{`, ``, `{"query":{"text":"x","filter":{"type":[[]]}}}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) { checkRequest(t, body, parseSearch) })
}

// FuzzParseListFilter: the same for the filter of a list.
func FuzzParseListFilter(f *testing.F) {
	for _, seed := range []string{"type = 'a,b' AND tags=\"c\"", "type='a' AND ", "=''", "type = 'a' AND AND", "'", "type='", "publisherId='x'AND type='y'"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		checkRequest(t, text, func([]byte) (request, error) {
			filter, err := parseListFilter(text)
			return request{filter: filter, size: 1, federation: "auto"}, err
		})
	})
}

func checkRequest(t *testing.T, text string, parse func([]byte) (request, error)) {
	r, err := parse([]byte(text))
	if err != nil {
		if refused, ok := errors.AsType[*wire.Error](err); !ok || refused.Status != http.StatusBadRequest {
			t.Fatalf("%q: %v", text, err)
		}
		return
	}
	if r.size < 1 || r.size > maxPage || r.federation == "" {
		t.Fatalf("%q: %+v", text, r)
	}
	for key, values := range r.filter {
		if len(values) > maxPerKey {
			t.Fatalf("%q: %d values of %s", text, len(values), key)
		}
	}
	q, _ := New(Config{BaseURL: "https://directory.example/v1"}, nil).newSearch(r)
	if len(q.Entry) > 1 || len(q.Checks) > len(attestations) {
		t.Fatalf("%q: %+v", text, q)
	}
}

// TestA2ACard: a card may name an A2A card at the host of its endpoint only.
func TestA2ACard(t *testing.T) {
	for at, want := range map[string]bool{
		"https://a.example/.well-known/agent-card.json": true,
		"https://A.example/x":                           true,
		"https://b.example/x":                           false, "http://a.example/x": false, "https://a.example:444/x": false, "https://u@a.example/x": false,
		"javascript:alert(1)": false, "https://a.example/x#y": false, "//a.example/x": false, "": false, "\x00": false,
	} {
		card := wire.Obj(wire.TextField("endpoint", "https://a.example/agentmesh"), wire.Member{Key: "metadata", Value: wire.Obj(wire.TextField("a2a", at))})
		if got := A2ACard(card); (got != "") != want {
			t.Errorf("A2ACard(%q) = %q", at, got)
		}
	}
	if got := A2ACard(wire.Obj(wire.Member{Key: "metadata", Value: wire.Text("x")})); got != "" {
		t.Errorf("without an endpoint: %q", got)
	}
}
