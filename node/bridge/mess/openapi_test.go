package mess

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/node/bridge/mess/rest"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
)

// The exchange has the routes that openapi.yaml describes, and no other but those for the owner alone. What they answer,
// every call of a [site] compares.
func TestEveryRouteIsDescribed(t *testing.T) {
	var described []string
	for _, op := range apitest.Operations(t, Kind) {
		op = regexp.MustCompile(`/api/v1/exchanges/\{exchange\}/`).ReplaceAllString(op, "")
		described = append(described, regexp.MustCompile(`\{\w+\}`).ReplaceAllString(op, "{}"))
	}
	slices.Sort(described)
	if diff := cmp.Diff(described, rest.PublicRoutes()); diff != "" {
		t.Errorf("routes (-openapi.yaml +served):\n%s", diff)
	}
}

// compare holds an answer to openapi.yaml, where it describes the route.
func (s *site) compare(req *http.Request, sent string, resp *http.Response, body []byte) {
	s.t.Helper()
	if !slices.Contains(rest.PublicRoutes(), rest.RouteOf(req.Method, req.URL.EscapedPath())) {
		return
	}
	req.URL.Path = strings.TrimSuffix(req.URL.Path, "/") // it is taken too
	if req.Header.Get("Content-Type") == "" {            // likewise
		req.Header.Set("Content-Type", "application/json")
	}
	resp.Header.Set("X-Request-Id", "0123456789abcdef") // the listener's, which is not in this test
	if err := apitest.Compare(req, []byte(sent), resp.StatusCode, resp.Header, body); err != nil {
		s.t.Errorf("%s %s answers %d, which openapi.yaml does not describe: %v", req.Method, req.URL.Path, resp.StatusCode, err)
	}
}
