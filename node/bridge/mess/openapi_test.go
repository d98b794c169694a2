package mess

import (
	"net/http"
	"strings"

	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
)

// compare checks an answer against openapi.yaml, if that describes the route. Package rest checks that it describes all
// routes that are not only for the owner.
func (s *httpLab) compare(req *http.Request, sent string, resp *http.Response, body []byte) {
	s.t.Helper()
	req.URL.Path = strings.TrimSuffix(req.URL.Path, "/") // a trailing slash is accepted
	if !apitest.Describes(req) {
		return
	}
	if req.Header.Get("Content-Type") == "" { // a missing type too
		req.Header.Set("Content-Type", "application/json")
	}
	resp.Header.Set("X-Request-Id", "0123456789abcdef") // the listener sets it, which this test does not use
	if err := apitest.Compare(req, []byte(sent), resp.StatusCode, resp.Header, body); err != nil {
		s.t.Errorf("%s %s answers %d, which openapi.yaml does not describe: %v", req.Method, req.URL.Path, resp.StatusCode, err)
	}
}
