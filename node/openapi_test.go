package node_test

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/directory"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
	"github.com/agentmesh/agentmesh/node/meshtest"
)

// TestEveryRouteIsDescribed compares the mounted routes of a process with both roles with openapi.yaml: they must be
// the same. HEAD belongs to GET. Each bridge has its own test.
func TestEveryRouteIsDescribed(t *testing.T) {
	edge := httpapi.New(httpapi.Config{Local: true})
	directory.New(directory.Config{Store: meshtest.Store(t), Local: true}).Mount(edge.Echo())
	meshtest.InMemory(t).Node("sarah", open).Mount(edge.Echo(), edge.Addresses())
	var mounted []string
	for _, r := range edge.Echo().Routes() {
		if r.Method != http.MethodHead && !strings.HasPrefix(r.Path, "/static/") { // style and icon, whose names contain a hash
			path := strings.NewReplacer(":id", "{agent_id}", ":urn", "{identifier}", "/*", "/{rest:.*}", ":relay", "{relay_id}").Replace(r.Path)
			mounted = append(mounted, r.Method+" "+path)
		}
	}
	slices.Sort(mounted)
	if diff := cmp.Diff(apitest.Operations(t, "directory", "ard", "relay", "node", "process"), mounted); diff != "" {
		t.Errorf("routes (-openapi.yaml +mounted):\n%s", diff)
	}
}

// TestPathsArePlain: the document has only what OpenAPI allows in a path, because tools of others read it.
func TestPathsArePlain(t *testing.T) {
	pattern := regexp.MustCompile(`(?m)^  /\S*\{[^}:]*:.*$`)
	if found := pattern.FindAll(httpapi.OpenAPI(), -1); found != nil {
		t.Errorf("paths with a pattern: %q", found)
	}
}
