package moltspeak

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
)

// TestEveryRouteIsDescribed: the endpoint and the registry have exactly the routes in openapi.yaml. Every test with a
// listener compares the answers with it.
func TestEveryRouteIsDescribed(t *testing.T) {
	r, _ := newTestRig(t, func(c *Config) { c.Registry = true })
	e := echo.New()
	r.b.Mount(e)
	var mounted []string
	for _, route := range e.Routes() {
		if route.Method != echo.RouteNotFound { // a group with its own guard adds it
			mounted = append(mounted, route.Method+" "+strings.Replace(route.Path, ":id", "{name}", 1))
		}
	}
	slices.Sort(mounted)
	if diff := cmp.Diff(apitest.Operations(t, "moltspeak", "moltspeak-registry"), mounted); diff != "" {
		t.Errorf("routes (-openapi.yaml +mounted):\n%s", diff)
	}
}
