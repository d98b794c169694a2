package httpapi

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/wire"
)

// scrape returns the lines of /metrics.
func scrape(t *testing.T, m *Metrics) []string {
	t.Helper()
	w := do(NewOwner(OwnerConfig{Metrics: m}).Handler(), "GET", "/metrics", "")
	if w.Code != http.StatusOK || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Fatalf("GET /metrics = %d, %s: %s", w.Code, w.Header().Get("Content-Type"), w.Body)
	}
	return strings.Split(strings.TrimSpace(w.Body.String()), "\n")
}

// series returns the values of a scrape by series.
func series(lines []string) map[string]string {
	out := map[string]string{}
	for _, line := range lines {
		if at := strings.LastIndexByte(line, ' '); !strings.HasPrefix(line, "#") && at > 0 {
			out[line[:at]] = line[at+1:]
		}
	}
	return out
}

func TestMetricsOfRequests(t *testing.T) {
	m := NewMetrics("1.2.3")
	s := New(Config{PublicURL: "https://sarah.example", RequestsPerMinute: 3, Metrics: m})
	s.Echo().GET("/v1/agents/:id", s.Addresses().Guard(func(c echo.Context) error {
		if c.Param("id") == "am_lost" {
			return wire.ErrNoAgent
		}
		return c.NoContent(http.StatusOK)
	}))
	s.Echo().GET("/boom", func(echo.Context) error { panic("boom") })
	s.Echo().GET("/tunnel", func(c echo.Context) error { c.Response().WriteHeader(http.StatusSwitchingProtocols); return nil })
	for _, path := range []string{"/v1/agents/am_a", "/v1/agents/am_b", "/v1/agents/am_lost", "/v1/agents/am_c", "/nowhere", "/boom", "/tunnel"} {
		do(s.Handler(), "GET", path, "")
	}
	got := series(scrape(t, m))
	for name, want := range map[string]string{
		`agentmesh_http_requests_total{listener="public",method="read",route="/v1/agents/:id",status="2xx"}`: "2",
		`agentmesh_http_requests_total{listener="public",method="read",route="/v1/agents/:id",status="4xx"}`: "2",
		`agentmesh_http_requests_total{listener="public",method="read",route="none",status="4xx"}`:           "1",
		`agentmesh_http_requests_total{listener="public",method="read",route="/boom",status="5xx"}`:          "1",
		`agentmesh_http_request_seconds_count{listener="public",route="/v1/agents/:id"}`:                     "4",
		`agentmesh_http_requests_total{listener="public",method="read",route="/tunnel",status="1xx"}`:        "1",
		`agentmesh_http_request_seconds_count{listener="public",route="/tunnel"}`:                            "0",
		`agentmesh_http_requests_in_flight{listener="public"}`:                                               "0",
		`agentmesh_http_requests_in_flight{listener="owner"}`:                                                "1", // the scrape
		`agentmesh_limiter_refusals_total{limiter="requests-of-address"}`:                                    "1",
		`agentmesh_limiter_refusals_total{limiter="faults-of-address"}`:                                      "0",
	} {
		if got[name] != want {
			t.Errorf("%s = %q, want %q", name, got[name], want)
		}
	}
}

// TestStrangersMakeNoSeries: nothing that a stranger sends becomes a label or a series (THREATS 29).
func TestStrangersMakeNoSeries(t *testing.T) {
	m := NewMetrics("1.2.3")
	s := New(Config{Metrics: m})
	s.Echo().GET("/v1/agents/:id", func(c echo.Context) error { return c.NoContent(http.StatusOK) })
	odd := func(i int) {
		for _, path := range []string{"/v1/agents/x%d", "/v1/agents/x%d/record", "/x%d", "/v1/x%d", "/health/x%d", "/metrics?x=%d"} {
			r := httptest.NewRequest("GET", fmt.Sprintf(path, i), nil)
			r.Header.Set("User-Agent", fmt.Sprintf("agent-x%d", i))
			s.Handler().ServeHTTP(httptest.NewRecorder(), r)
			r = httptest.NewRequest(fmt.Sprintf("METHOD%d", i), fmt.Sprintf(path, i), nil)
			r.Host = fmt.Sprintf("x%d.example", i)
			s.Handler().ServeHTTP(httptest.NewRecorder(), r)
		}
	}
	odd(0)
	scrape(t, m) // the next scrape counts this one
	before := series(scrape(t, m))
	for i := range 1000 {
		odd(i + 1)
	}
	after := series(scrape(t, m))
	for name := range after {
		if _, ok := before[name]; !ok && !strings.HasPrefix(name, "go_") {
			t.Errorf("new series %s", name)
		}
		if strings.Contains(name, "METHOD") || strings.Contains(name, "x1") {
			t.Errorf("%s holds what a stranger sent", name)
		}
	}
	if got := after[`agentmesh_http_requests_total{listener="public",method="other",route="none",status="4xx"}`]; got == "" {
		t.Error("requests with odd methods were not counted")
	}
}

func TestMetricsAreTheOwners(t *testing.T) {
	m := NewMetrics("1.2.3")
	if w := do(New(Config{Metrics: m}).Handler(), "GET", "/metrics", ""); w.Code != http.StatusNotFound {
		t.Errorf("the public listener answers /metrics with %d", w.Code)
	}
	if w := do(NewOwner(OwnerConfig{}).Handler(), "GET", "/metrics", ""); w.Code != http.StatusNotFound {
		t.Errorf("without metrics /metrics is %d", w.Code)
	}
}

// TestServiceMetrics: a service creates its own series without importing a metrics library.
func TestServiceMetrics(t *testing.T) {
	m := NewMetrics("1.2.3")
	queue := 7
	m.Gauge("relay_queue", "Letters that wait.", func() float64 { return float64(queue) })
	sent := m.Counter("relay_letters_total", "Letters.", "outcome", "sent")
	m.Counter("relay_letters_total", "Letters.", "outcome", "lost")
	sizes := m.Histogram("relay_bytes", "Size.", []float64{10, 100})
	m.Limiter("relay-letters").Inc()
	for range 3 {
		sent.Inc()
	}
	sizes.Observe(50)
	queue = 8
	got := series(scrape(t, m))
	for name, want := range map[string]string{
		`agentmesh_relay_queue`:                                     "8", // read at the scrape
		`agentmesh_relay_letters_total{outcome="sent"}`:             "3",
		`agentmesh_relay_letters_total{outcome="lost"}`:             "0", // a series exists before its first event
		`agentmesh_relay_bytes_bucket{le="100"}`:                    "1",
		`agentmesh_relay_bytes_bucket{le="10"}`:                     "0",
		`agentmesh_limiter_refusals_total{limiter="relay-letters"}`: "1",
	} {
		if got[name] != want {
			t.Errorf("%s = %q, want %q", name, got[name], want)
		}
	}
	odd := []string{"outcome"}
	for name, mistake := range map[string]func(){
		"twice":      func() { m.Counter("relay_letters_total", "Letters.", "outcome", "sent") },
		"half pair":  func() { m.Counter("x_total", "X.", odd...) },
		"other help": func() { m.Counter("relay_letters_total", "Other.", "outcome", "late") },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			mistake()
		}()
	}
	var none *Metrics
	none.Counter("a_total", "A.").Inc()
	none.Histogram("b", "B.", []float64{1}).Observe(1)
	none.Gauge("c", "C.", func() float64 { return 0 })
	none.LimiterFunc("d", func() uint64 { return 0 })
}
