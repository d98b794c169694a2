package main

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/httpapi"
)

// openToAgent lists the operations that the agent's door carries out. Every other operation of the owner API is
// refused there. An operation that you add here must not decide anything.
var openToAgent = strings.Fields(`
	GET/version GET/certificate GET/status GET/bridges GET/links GET/cards/:id GET/card GET/discover GET/peers GET/events
	GET/inbox GET/inbox/:id POST/inbox/:id/ack GET/outbox POST/send POST/reply POST/questions GET/questions/:id
	GET/conversations GET/conversations/:id POST/conversations/:id/close
	GET/calendar GET/calendar/free POST/calendar/cancel GET/clients/probes/:probe GET/directory/cards
	GET/mew/spaces GET/mew/spaces/:name GET/mew/spaces/:name/events
	GET/mew/links GET/mew/links/:name GET/mew/links/:name/events
	GET/moltspeak GET/moltspeak/search GET/moltspeak/consents GET/moltspeak/peers
	GET/agentrelay/agents GET/agentrelay/links/:link/feed GET/agentrelay/links/:link/peers
`)

// TestAgentDoorDecidesNothing tries every route of the owner API, with all roles and bridges, through the agent's door
// (THREATS row 40).
func TestAgentDoorDecidesNothing(t *testing.T) {
	o := openOwnerAPI(t, t.TempDir())
	defer o.Close()
	api := o.Local.OwnerAPI()
	refused := 0
	for _, route := range api.Echo().Routes() {
		path, ok := strings.CutPrefix(route.Path, "/owner")
		if !ok || strings.HasPrefix(path, "/page") || route.Method == "echo_route_not_found" || path == "" || path == "/*" {
			continue
		}
		if slices.Contains(openToAgent, route.Method+path) {
			continue
		}
		target := strings.NewReplacer(":", "x", "*", "x").Replace(route.Path)
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), route.Method, target, strings.NewReader("{}"))
		r.Header.Set(httpapi.DoorHeader, "cli")
		api.AgentHandler().ServeHTTP(w, r)
		if w.Code != http.StatusForbidden || route.Method != http.MethodHead && !goldentest.Says(t, "refused", w.Body.String()) {
			t.Errorf("%s %s: %d %s, want 403", route.Method, path, w.Code, w.Body)
		}
		refused++
	}
	if refused < 40 {
		t.Errorf("%d routes were refused: the test sees too little", refused)
	}
	for _, open := range openToAgent {
		if !slices.ContainsFunc(api.Echo().Routes(), func(r *echo.Route) bool { return r.Method+strings.TrimPrefix(r.Path, "/owner") == open }) {
			t.Errorf("there is no operation %s", open)
		}
	}
}
