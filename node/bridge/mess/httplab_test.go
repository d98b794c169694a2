package mess

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/rest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

type httpLab struct {
	*lab
	t      testing.TB
	server *rest.Server
	srv    *httptest.Server
}

func newHTTPLab(t testing.TB, change func(*exchange.Config)) *httpLab {
	l := newLab(t)
	cfg := exchange.Config{Store: l.store, Registration: "open", ThreadsPerHour: -1, CallsPerMinute: -1, RegistrationsPerHour: -1}
	if change != nil {
		change(&cfg)
	}
	l.Exchange = exchange.New(cfg)
	e := echo.New()
	d := &rest.Server{Exchange: l.Exchange}
	d.Mount(e)
	owner.Mount(e.Group("/owner"), d.Operations()...)
	e.HTTPErrorHandler = func(err error, c echo.Context) { _ = d.WriteError(c, err) }
	s := &httpLab{lab: l, t: t, server: d, srv: httptest.NewServer(e)}
	t.Cleanup(s.srv.Close)
	return s
}

// call makes a call with a key and returns status and body. path is below the exchange, or absolute.
func (s *httpLab) call(key, method, path, body string, headers ...string) (int, string) {
	s.t.Helper()
	if !strings.HasPrefix(path, "/") {
		path = "/api/v1/exchanges/home/" + path
	}
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.srv.URL+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := s.srv.Client().Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	s.compare(req, body, resp, data)
	if resp.StatusCode >= 400 && method != http.MethodHead {
		v, err := wire.Parse(data)
		if err != nil || v.Len() != 1 || v.GetStr("error") == "" {
			s.t.Errorf("%s %s: %d with body %q, want {error: text}", method, path, resp.StatusCode, data)
		}
	}
	return resp.StatusCode, string(data)
}

func (s *httpLab) want(status int, key, method, path, body string, headers ...string) wire.Value {
	s.t.Helper()
	got, text := s.call(key, method, path, body, headers...)
	if got != status {
		s.t.Fatalf("%s %s %.200s: %d %s, want %d", method, path, body, got, text, status)
	}
	v, _ := wire.Parse([]byte(text))
	return v
}

func (s *httpLab) register(id string) string {
	s.t.Helper()
	return s.want(201, "", "POST", "register", `{"executor_id":"`+id+`","display_name":"D","capabilities":["knife"]}`).GetStr("api_key")
}
