package owner_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

type question struct {
	Text string `json:"text"`
}

// TestEndpoint: handler and caller agree on request and answer, and a refusal arrives unchanged.
func TestEndpoint(t *testing.T) {
	ask := owner.Endpoint[question, question]{Method: http.MethodPost, Path: "/things/:id/questions/:n", Right: owner.Send}
	drop := owner.Endpoint[owner.None, owner.None]{Method: http.MethodDelete, Path: "/things/:id", Right: owner.Decide}
	op := ask.Serve(func(c echo.Context, in question) (question, error) {
		if in.Text == "" {
			return question{}, store.ErrNotFound
		}
		return question{in.Text + " of " + c.Param("id") + " and " + c.Param("n") + " by " + owner.Door(c)}, nil
	})
	if op.Right != owner.Send || op.Request != reflect.TypeFor[question]() || op.Answer != reflect.TypeFor[question]() {
		t.Errorf("operation = %+v", op)
	}
	private := httpapi.NewOwner(httpapi.OwnerConfig{})
	owner.Mount(private.Group(), op, drop.Serve(func(echo.Context, owner.None) (owner.None, error) { return owner.None{}, nil }))
	c := owner.Client{HTTP: &http.Client{Transport: client.InProcess(private.Handler())}, Door: "cli"}

	call := ask.With(question{"what"}, "a b?", "3")
	raw, err := c.Raw(t.Context(), call.Method, call.Path, call.Query, call.Body)
	if want := `{"text":"what of a b? and 3 by cli"}`; err != nil || strings.TrimSpace(string(raw)) != want {
		t.Errorf("answer = %s, %v, want %s", raw, err, want)
	}
	gone := drop.Call("x")
	if raw, err := c.Raw(t.Context(), gone.Method, gone.Path, gone.Query, gone.Body); err != nil || len(raw) != 0 {
		t.Errorf("no answer = %q, %v", raw, err)
	}
	for _, tt := range []struct {
		path string
		body any
		want int
	}{
		{"things/a/questions/1", question{}, http.StatusNotFound},
		{"things/a/questions/1", map[string]string{"txt": "misspelled"}, http.StatusBadRequest},
		{"things/a/questions/1", map[string]int{"text": 1}, http.StatusBadRequest},
	} {
		_, err := c.Raw(t.Context(), http.MethodPost, tt.path, nil, tt.body)
		if e, ok := errors.AsType[*wire.Error](err); !ok || e.Status != tt.want {
			t.Errorf("%s %v: %v, want %d", tt.path, tt.body, err, tt.want)
		}
	}
	if _, err := c.Raw(t.Context(), http.MethodGet, "nothing", nil, nil); !errors.Is(err, owner.ErrNotServed) {
		t.Errorf("an unknown route: %v, want ErrNotServed", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Raw(ended, http.MethodGet, "nothing", nil, nil); !errors.Is(err, owner.ErrNoAnswer) {
		t.Errorf("a process that does not answer: %v, want ErrNoAnswer", err)
	}
}

// TestRequestOfSigns: a request is not longer than its texts. An import sends as many cards as fit in the body of a
// request, and a stranger chose the texts of each card.
func TestRequestOfSigns(t *testing.T) {
	const text = `{"text":"<&> "}`
	c := owner.Client{HTTP: &http.Client{Transport: client.InProcess(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) }))}}
	if got, err := c.Raw(t.Context(), http.MethodPost, "echo", nil, json.RawMessage(text)); err != nil || strings.TrimSpace(string(got)) != text {
		t.Errorf("the request %s is sent as %s, %v", text, got, err)
	}
}
