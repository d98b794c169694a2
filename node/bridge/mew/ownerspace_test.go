package mew

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
	"github.com/agentmesh/agentmesh/node/owner"
)

// TestAudience: a chat reaches the participants that are connected, and the owner learns who is not.
func TestAudience(t *testing.T) {
	r := start(t)
	cat, bob := r.Join("cat-token"), r.Join("bob-token")
	linked := newJoinedSpace(startLink(t, r).RemoteLinks()[0])
	for name, s := range map[string]*ownerSpace{"link": linked, "hosted": newHostedSpace(r.G.Space("lab"))} {
		others := map[string]int{"link": 2, "hosted": 3}[name] // the node is in the audience of the hosted space
		for to, absent := range map[string]int{`[]`: 0, `["cat","bob"]`: 0, `["cat","bird"]`: 1} {
			got := s.findAudience([]byte(`{"kind":"chat","to":` + to + `,"payload":{"text":"hello"}}`))
			if got.Listeners != others || len(got.Absent) != absent {
				t.Errorf("%s: chat to %s: %+v, want %d listeners and %d absent", name, to, got, others, absent)
			}
		}
		sent, err := s.send(t.Context(), []byte(`{"id":"to bird by `+name+`","kind":"chat","to":["bird"],"payload":{"text":"hello"}}`))
		if err != nil || sent.ID == "" || sent.Status != "accepted" || sent.Listeners != others || len(sent.Absent) != 1 {
			t.Errorf("%s: sent %+v, %v", name, sent, err)
		}
	}
	cat.Quit()
	bob.Quit()
	await(t, func() bool {
		return linked.findAudience([]byte(`{"kind":"chat","payload":{"text":"hello"}}`)).Listeners == 0
	})
}

// TestMisspelledDecision: a request without a decision decides nothing.
func TestMisspelledDecision(t *testing.T) {
	r := start(t)
	alice := r.Join("alice-token")
	alice.Send(`{"id":"p1","kind":"mcp/proposal","payload":{"method":"x"}}`)
	alice.Fence()
	e := echo.New()
	owner.Mount(e.Group(""), Operations(r.G, nil)...)
	path := "/mew/spaces/lab/proposals/" + mewtest.Key(t, r.G.Space("lab").View(), "p1")
	for _, body := range []string{``, `{}`, `{"aprove":true}`, `{"approve":true,"x":1}`} {
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "POST", path, strings.NewReader(body)))
		if pending := len(r.G.Space("lab").View().Proposals); w.Code == 200 || pending != 1 {
			t.Errorf("%s: %d with %d pending proposals: %s", body, w.Code, pending, w.Body)
		}
	}
}
