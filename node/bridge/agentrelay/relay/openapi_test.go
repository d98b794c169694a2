package relay

import (
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
)

// TestEveryRouteIsDescribed: the relay has the routes that openapi.yaml describes and no others. The tests that use a
// testRelay compare the answers of these routes with the description.
func TestEveryRouteIsDescribed(t *testing.T) {
	relay, err := New(t.Context(), Config{Records: openStore(t).Records()})
	if err != nil {
		t.Fatal(err)
	}
	e := echo.New()
	relay.Mount(e)
	var mounted []string
	for _, r := range e.Routes() {
		if r.Method != http.MethodOptions { // preflight requests
			mounted = append(mounted, r.Method+" "+r.Path)
		}
	}
	slices.Sort(mounted)
	if diff := cmp.Diff(apitest.Operations(t, "agentrelay"), mounted); diff != "" {
		t.Errorf("routes (-openapi.yaml +mounted):\n%s", diff)
	}
}
