package registry

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/store"
)

// TestListedElsewhere: the registrar registers our agent in the registry of a link, keeps it registered, registers it
// again if it is forgotten, and finds others there (MS-56).
func TestListedElsewhere(t *testing.T) {
	there, c := newTestServer(t, nil)
	http := client.NewHTTP(client.HTTPConfig{Local: true})
	defer http.Close()
	us := Entry{ID: "me@home", AgentName: "me", Org: "home", PublicKey: keyOf("me@home"), Endpoint: "https://me.example", Capabilities: []string{"task.create"}}
	g := &Registrar{
		Self: us, HTTP: http, Logger: slog.New(slog.DiscardHandler), Reachable: func(string) bool { return true },
		Links: func() []bridge.Link {
			return []bridge.Link{{Name: "first", RegistryURL: c.base + "/api/v1/"}, {Name: "again", RegistryURL: c.base}, {Name: "none"}}
		},
		Token: func(base string) client.Credential { return client.Credential("bearer for " + base) },
	}
	if n := len(g.Registries()); n != 1 {
		t.Fatalf("%d registries, want one", n)
	}
	remote, now := g.Registries()[0], time.Now()
	g.renew(t.Context(), remote, now)
	if _, body := c.do("GET", "/api/v1/agents/me@home", "", ""); !strings.Contains(body, us.PublicKey) || !strings.Contains(body, `"task.create"`) {
		t.Fatalf("listed: %s", body)
	}
	if got := g.States(); len(got) != 1 || got[0].Registered.IsZero() || got[0].Error != "" {
		t.Errorf("the owner is shown %+v", got)
	}
	later := now.Add(heartbeatGap)
	g.renew(t.Context(), remote, later)
	if got := g.States(); !got[0].Registered.Equal(later.UTC()) {
		t.Errorf("after a heartbeat: %+v", got)
	}
	found, err := remote.search(t.Context(), map[string][]string{"org": {"home"}})
	if err != nil || len(found) != 1 || found[0].ID != "me@home" {
		t.Errorf("search: %+v, %v", found, err)
	}
	thief := remote
	thief.token = "another bearer, of somebody else"
	if err := thief.register(t.Context(), Entry{ID: "me@home", AgentName: "me", Org: "home", PublicKey: keyOf(dog)}); err == nil {
		t.Error("a name was taken over")
	}
	gone := store.Change{IfRev: store.Any, Delete: true, Record: store.Record{NS: ns, Key: "me@home"}}
	if err := errors.Join(there.cfg.Records.Apply(t.Context(), []store.Change{gone}, now), there.accounts.Load(t.Context())); err != nil {
		t.Fatal(err)
	}
	for _, at := range []time.Time{later.Add(heartbeatGap), later.Add(2 * heartbeatGap)} {
		g.renew(t.Context(), remote, at)
	}
	if _, body := c.do("GET", "/api/v1/agents/me@home", "", ""); !strings.Contains(body, us.PublicKey) {
		t.Errorf("a registry that forgot us: %s", body)
	}
}
