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

// TestEveryRouteIsDescribed: the exchange has the routes that openapi.yaml describes, and no others except those for
// the owner. Every call of a [httpLab] compares its answer.
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

// compare checks an answer against openapi.yaml, if that describes the route.
func (s *httpLab) compare(req *http.Request, sent string, resp *http.Response, body []byte) {
	s.t.Helper()
	if !slices.Contains(rest.PublicRoutes(), rest.RouteOf(req.Method, req.URL.EscapedPath())) {
		return
	}
	req.URL.Path = strings.TrimSuffix(req.URL.Path, "/") // a trailing slash is accepted
	if req.Header.Get("Content-Type") == "" {            // a missing type too
		req.Header.Set("Content-Type", "application/json")
	}
	resp.Header.Set("X-Request-Id", "0123456789abcdef") // the listener sets it, which this test does not use
	if err := apitest.Compare(req, []byte(sent), resp.StatusCode, resp.Header, body); err != nil {
		s.t.Errorf("%s %s answers %d, which openapi.yaml does not describe: %v", req.Method, req.URL.Path, resp.StatusCode, err)
	}
}
