package apitest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestCommonRoutes checks the routes of every process against the document.
func TestCommonRoutes(t *testing.T) {
	edge := httpapi.New(httpapi.Config{Local: true, Version: "v0"})
	h := Check(t, edge.Handler())
	get := func(method, path, host string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), method, path, nil)
		r.Host = host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	for _, path := range []string{"/health", "/readyz", "/openapi.yaml"} {
		for _, method := range []string{"GET", "HEAD"} {
			if got := get(method, path, "localhost"); got.Code != http.StatusOK {
				t.Errorf("%s %s = %d", method, path, got.Code)
			}
		}
	}
	if got := get("GET", "/.well-known/agentmesh.json", "localhost").Code; got != http.StatusNotFound {
		t.Errorf("well-known without a node = %d", got)
	}
	edge.WellKnown(func() wire.WellKnown {
		return wire.WellKnown{AgentMesh: wire.Version, CanonicalForms: []string{"jcs"}, KeyKinds: []string{"age"}}
	})
	edge.Health("store", func(context.Context) (any, error) { return nil, errors.New("no disk") })
	for path, status := range map[string]int{"/.well-known/agentmesh.json": 200, "/health": 200, "/readyz": 503, "/nothing": 404} {
		if got := get("GET", path, "localhost").Code; got != status {
			t.Errorf("%s = %d, want %d", path, got, status)
		}
	}
	for _, path := range []string{"/health", "/nothing"} {
		if got := get("GET", path, "elsewhere.example").Code; got != http.StatusBadRequest {
			t.Errorf("%s for a foreign host = %d", path, got)
		}
	}
	if got := get("POST", "/health", "localhost").Code; got != http.StatusMethodNotAllowed {
		t.Errorf("POST /health = %d", got)
	}
	if got := get("GET", "/openapi.yaml", "localhost"); got.Body.String() != string(httpapi.OpenAPI()) || got.Header().Get("Content-Type") != "application/yaml" {
		t.Errorf("/openapi.yaml = %v %d bytes", got.Header(), got.Body.Len())
	}
}

// TestEveryError checks the error body and the headers of every row of the table against the document.
func TestEveryError(t *testing.T) {
	for _, row := range wire.Table() {
		edge := httpapi.New(httpapi.Config{})
		edge.Echo().POST("/agentmesh", func(echo.Context) error { return row })
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/agentmesh", nil)
		w := httptest.NewRecorder()
		if row.Status == http.StatusMethodNotAllowed {
			continue // the route has the method
		}
		Check(t, edge.Handler()).ServeHTTP(w, r)
		if w.Code != row.Status {
			t.Errorf("%s = %d, want %d", row.Row(), w.Code, row.Status)
		}
	}
}

// fakeTB records the failure instead of failing the test.
type fakeTB struct {
	testing.TB
	wrong string
}

func (f *fakeTB) Errorf(format string, args ...any) { f.wrong = fmt.Sprintf(format, args...) }

// TestCheckNotices: Check finds each kind of difference.
func TestCheckNotices(t *testing.T) {
	good := func(h http.Header) {
		h.Set("X-Request-Id", "0123456789abcdef")
		h.Set("Content-Type", "application/json")
		h.Set("Cache-Control", "no-store")
	}
	refusal := `{"error":{"code":"INVALID_MESSAGE","message":"no","retry":false}}`
	registered := `{"agent_id":"am_a","registered_at":"2026-02-18T10:00:00.000Z","expires_at":"2026-03-20T10:00:00.000Z"}`
	card := `{"agentmesh":"0.1.0","agent_id":"am_a","name":"A","endpoint":"https://a.example","public_key":"k","capabilities":[],"intents":[]}`
	cases := []struct {
		name, method, path, sent string
		status                   int
		header                   func(http.Header)
		body                     string
		wrong                    string // "" for no difference
	}{
		{"a refusal", "GET", "/v1/agents", "", 400, good, refusal, ""},
		{"a status", "GET", "/v1/agents", "", 402, good, refusal, "status"},
		{"a header", "GET", "/v1/agents", "", 400, func(h http.Header) { good(h); h.Del("X-Request-Id") }, refusal, "X-Request-Id"},
		{"no Retry-After", "GET", "/v1/agents", "", 429, good, refusal, "Retry-After"},
		{"a body", "GET", "/v1/agents", "", 400, good, `{"error":"no"}`, "error"},
		{"a media type", "GET", "/v1/agents", "", 400, func(h http.Header) { good(h); h.Set("Content-Type", "text/plain") }, "no", "Content-Type"},
		{"a code", "GET", "/v1/agents", "", 400, good, strings.Replace(refusal, "INVALID_MESSAGE", "OOPS", 1), "code"},
		{"a route", "GET", "/v1/nothing", "", 200, good, `{}`, "no matching"},
		{"an unknown route's body", "GET", "/v1/nothing", "", 404, good, `{}`, "lacks"},
		{"405 without Allow", "PATCH", "/v1/agents", "", 405, good, refusal, "Allow"},
		{"an accepted card", "POST", "/v1/agents", card, 201, func(h http.Header) { good(h); h.Set("Location", "/x") }, registered, ""},
		{"an accepted card of another shape", "POST", "/v1/agents", `{"name":1}`, 201, func(h http.Header) { good(h); h.Set("Location", "/x") }, registered, "accepted"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			noted := &fakeTB{TB: t}
			h := Check(noted, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var b [1 << 10]byte
				_, _ = r.Body.Read(b[:])
				c.header(w.Header())
				w.WriteHeader(c.status)
				_, _ = w.Write([]byte(c.body))
			}))
			r := httptest.NewRequestWithContext(t.Context(), c.method, c.path, strings.NewReader(c.sent))
			if c.sent != "" {
				r.Header.Set("Content-Type", "application/json")
			}
			h.ServeHTTP(httptest.NewRecorder(), r)
			if (c.wrong == "") != (noted.wrong == "") || !strings.Contains(noted.wrong, c.wrong) {
				t.Errorf("noted %q, want %q", noted.wrong, c.wrong)
			}
		})
	}
}
