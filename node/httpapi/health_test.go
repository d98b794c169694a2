package httpapi

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/wire"
)

func TestHealth(t *testing.T) {
	s := New(Config{Version: "v9"})
	var fault error
	s.Health("directory", func(context.Context) (any, error) { return struct{ Agents int }{7}, nil })
	s.Health("store", func(context.Context) (any, error) { return nil, fault })

	w := do(s.Handler(), "GET", "/health", "")
	const well = `{"status":"ok","version":"v9","parts":{"directory":{"Agents":7},"store":{"status":"ok"}}}`
	if w.Code != 200 || strings.TrimSpace(w.Body.String()) != well {
		t.Errorf("well: %d %s", w.Code, w.Body)
	}
	if w := do(s.Handler(), "GET", "/readyz", ""); w.Code != 200 || strings.TrimSpace(w.Body.String()) != well {
		t.Errorf("ready: %d %s", w.Code, w.Body)
	}
	fault = errors.New("disk /secret/path is full")
	w = do(s.Handler(), "GET", "/health", "")
	if w.Code != 200 || !strings.Contains(w.Body.String(), `"status":"degraded"`) || strings.Contains(w.Body.String(), "secret") {
		t.Errorf("not well: %d %s", w.Code, w.Body)
	}
	w = do(s.Handler(), "GET", "/readyz", "")
	if w.Code != 503 || errorCode(t, w.Body.Bytes()) != "AGENT_UNAVAILABLE" || strings.Contains(w.Body.String(), "secret") {
		t.Errorf("not ready: %d %s", w.Code, w.Body)
	}
}

func TestWellKnown(t *testing.T) { // AM-81
	s := New(Config{})
	if w := do(s.Handler(), "GET", "/.well-known/agentmesh.json", ""); w.Code != 404 {
		t.Errorf("without a document: %d", w.Code)
	}
	s.WellKnown(func() wire.WellKnown { return wire.WellKnown{AgentMesh: wire.Version, MaxCard: wire.MaxCard} })
	w := do(s.Handler(), "GET", "/.well-known/agentmesh.json", "")
	if w.Code != 200 || !strings.Contains(w.Body.String(), `"max_card_bytes":65536`) {
		t.Errorf("document: %d %s", w.Code, w.Body)
	}
	if w := do(s.Handler(), "HEAD", "/.well-known/agentmesh.json", ""); w.Code != 200 {
		t.Errorf("HEAD: %d", w.Code)
	}
}

// TestHealthNamesTheExchange: /health shows the id of the MESS exchange where MESS clients look for it.
func TestHealthNamesTheExchange(t *testing.T) {
	s := New(Config{Local: true, Version: "v9"})
	s.Exchange("home")
	w := httptest.NewRecorder()
	s.Internal().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/health", nil))
	if got := w.Body.String(); !strings.Contains(got, `"status":"ok","service":"agentmesh","version":"v9","exchange_id":"home"`) {
		t.Errorf("health = %s", got)
	}
}
