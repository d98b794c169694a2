package registry

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
	"github.com/agentmesh/agentmesh/node/wire"
)

const listedCard = `{"agent_id":"am_x","name":"X","description":"talks","capabilities":["talk"],"metadata":{"moltspeak":"https://x.example/moltspeak/v0.1","moltspeak_agent":"am_x@agentmesh","moltspeak_key":"ed25519:AAAA"}}`

// TestRegistry checks each row of §9 with its keys, and the bearer token that guards an entry (MS-53 to MS-55).
func TestRegistry(t *testing.T) {
	_, c := newTestServer(t, func(c *Config) {
		c.Local, c.Directory = false, &cards{list: []wire.Value{mustTree(t, listedCard), mustTree(t, `{"agent_id":"am_y","name":"Y"}`)}}
	})
	const other = "another-bearer-entirely"
	key := keyOf(cat)
	add := func(name string) string {
		return fmt.Sprintf(`{"agent_name":"%s","org":"acme","public_key":"%s","endpoint":"https://cat.example/","description":"Purrs","capabilities":["purr","nap"]}`, name, key)
	}
	for _, tt := range []struct {
		method, path, token, body string
		status                    int
		has                       string
	}{
		{"GET", "/api/health", "", "", 200, `"status":"ok"`},
		{"POST", "/api/v1/agents", mine, "null", 400, `{"error":"Invalid JSON body"}`},
		{"POST", "/api/v1/agents", mine, "{", 400, `{"error":"Invalid JSON body"}`},
		{"POST", "/api/v1/agents", mine, `{"org":"acme"}`, 400, `{"error":"Missing required fields","required":["agent_name","org","public_key"]}`},
		{"POST", "/api/v1/agents", "", add("cat"), 401, "error"},
		{"POST", "/api/v1/agents", "short", add("cat"), 401, "error"},
		{"POST", "/api/v1/agents", mine, strings.Replace(add("cat"), "https:", "http:", 1), 400, "https"},
		{"POST", "/api/v1/agents", mine, strings.Replace(add("cat"), key, "any text", 1), 400, "public_key"},
		{"POST", "/api/v1/agents", mine, add("cat me"), 400, "error"},
		{"POST", "/api/v1/agents", mine, add("cat"), 201, `"success":true,"agent":{"id":"cat@acme","agent_name":"cat","org":"acme"`},
		{"POST", "/api/v1/agents", other, add("cat"), 409, `{"error":"Agent already registered","agent_id":"cat@acme"}`},
		{"GET", "/api/v1/agents/cat@acme", "", "", 200, `"status":"active"`},
		{"GET", "/api/v1/agents/dog@acme", "", "", 404, `{"error":"Agent not found"}`},
		{"GET", "/api/v1/agents/am_x@agentmesh", "", "", 200, `"description":"talks"`},
		{"PUT", "/api/v1/agents/am_x@agentmesh", mine, `{}`, 403, "card"},
		{"PUT", "/api/v1/agents/cat@acme", "", `{}`, 401, "error"},
		{"PUT", "/api/v1/agents/cat@acme", other, `{"description":"stolen"}`, 403, "error"},
		{"PUT", "/api/v1/agents/cat@acme", mine, `{"description":"Meows"}`, 200, `"description":"Meows"`},
		{"PUT", "/api/v1/agents/cat@acme", mine, `{"description":["Barks"]}`, 400, "description has a wrong type"},
		{"PUT", "/api/v1/agents/cat@acme", mine, `{"capabilities":"bark"}`, 400, "capabilities has a wrong type"},
		{"PUT", "/api/v1/agents/cat@acme", mine, `{"endpoint":1}`, 400, "endpoint has a wrong type"},
		{"PUT", "/api/v1/agents/cat@acme", mine, `{"description":null}`, 200, `"endpoint":"https://cat.example/","description":"Meows","capabilities":["purr","nap"]`},
		{"POST", "/api/v1/agents/cat@acme/heartbeat", mine, "", 200, `"last_seen_at"`},
		{"POST", "/api/v1/agents/dog@acme/heartbeat", mine, "", 404, "error"},
		{"GET", "/api/v1/stats", "", "", 200, `{"total_agents":2,"total_orgs":2,"version":"0.1"}`},
		{"GET", "/api/v1/agents?limit=500", "", "", 200, `"pagination":{"total":2,"limit":100,"offset":0,"has_more":false}`},
		{"GET", "/api/v1/agents?limit=1&offset=1", "", "", 200, `"pagination":{"total":2,"limit":1,"offset":1,"has_more":false}`},
		{"GET", "/api/v1/search", "", "", 400, "q, capability, or org"},
		{"GET", "/api/v1/search?capability=purr&org=nobody", "", "", 200, `"count":1`},
		{"GET", "/api/v1/search?capability=pur", "", "", 200, `"results":[],"count":0`},
		{"GET", "/api/v1/search?org=acme", "", "", 200, `"count":1`},
		{"GET", "/api/v1/search?q=MEO", "", "", 200, `"query":{"q":"MEO"}`},
		{"DELETE", "/api/v1/agents/cat@acme", other, "", 403, "error"},
		{"DELETE", "/api/v1/agents/cat@acme", mine, "", 200, `{"success":true}`},
		{"GET", "/api/v1/agents/cat@acme", "", "", 404, "error"},
		{"POST", "/api/v1/agents", other, add("cat"), 409, "already"},
	} {
		status, body := c.do(tt.method, tt.path, tt.token, tt.body)
		if status != tt.status || !strings.Contains(body, tt.has) || !json.Valid([]byte(body)) {
			t.Errorf("%s %s %.60s: %d %s, want %d with %s", tt.method, tt.path, tt.body, status, body, tt.status, tt.has)
		}
		if strings.Contains(body, mine) || strings.Contains(body, "bearer\":") {
			t.Errorf("%s %s tells the bearer: %s", tt.method, tt.path, body)
		}
	}
}

// TestRegistryWithoutAuth: without auth the registry behaves like the public registry, for development.
func TestRegistryWithoutAuth(t *testing.T) {
	_, c := newTestServer(t, func(c *Config) { c.NoAuth = true })
	if status, body := c.do("POST", "/api/v1/agents", "", `{"agent_name":"a","org":"b","public_key":"any"}`); status != 201 {
		t.Errorf("%d %s", status, body)
	}
	if status, body := c.do("DELETE", "/api/v1/agents/a@b", "", ""); status != 200 {
		t.Errorf("%d %s", status, body)
	}
}

// TestRefusedRegistrationsAreFree: a refused registration costs its address nothing (AM-43).
func TestRefusedRegistrationsAreFree(t *testing.T) {
	s, _ := newTestServer(t, func(c *Config) { c.Local = false })
	door := apitest.NewDoor(t, s.Mount)
	headers := []string{"Content-Type", "application/json", "Authorization", "Bearer " + mine}
	add := func(want int, name string) {
		t.Helper()
		door.Dial(want, apitest.Newcomer, "POST", "/api/v1/agents", register(name, "https://x.example"), headers...)
	}
	add(http.StatusCreated, "taken@x")
	for range registrationsPerHour + 1 {
		add(http.StatusConflict, "taken@x")
	}
	add(http.StatusCreated, "another@x")
}

// TestWrongBearersWait: an address that shows too many wrong bearer tokens must wait, and the owner of the entry need
// not (AM-43).
func TestWrongBearersWait(t *testing.T) {
	s, _ := newTestServer(t, func(c *Config) { c.Local = false })
	door := apitest.NewDoor(t, s.Mount)
	call := func(want int, bearer string) {
		t.Helper()
		door.Dial(want, apitest.Newcomer, "POST", "/api/v1/agents/cat@acme/heartbeat", "", "Authorization", "Bearer "+bearer)
	}
	door.Dial(http.StatusCreated, apitest.Newcomer, "POST", "/api/v1/agents", register(cat, "https://x.example"), "Content-Type", "application/json", "Authorization", "Bearer "+mine)
	for range credential.MaxFailures {
		call(http.StatusForbidden, "a-bearer-of-another")
	}
	call(http.StatusTooManyRequests, "a-bearer-of-another")
	call(http.StatusOK, mine)
}
