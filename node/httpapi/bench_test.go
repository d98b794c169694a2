package httpapi

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/labstack/echo/v4"
)

// discardResponse is a response writer that costs nothing.
type discardResponse struct{ h http.Header }

func (b *discardResponse) Header() http.Header         { return b.h }
func (b *discardResponse) Write(p []byte) (int, error) { return len(p), nil }
func (b *discardResponse) WriteHeader(int)             {}

// BenchmarkEdge measures what this package costs on top of a handler that writes the same response.
func BenchmarkEdge(b *testing.B) {
	body := []byte(`{"status":"ok"}`)
	edge := func(local bool, m *Metrics) http.Handler {
		s := New(Config{Local: local, RequestsPerMinute: -1, Logger: slog.New(slog.NewTextHandler(new(safeBuffer), nil)), Metrics: m})
		s.Echo().GET("/v1/agents/:id", func(c echo.Context) error { return Raw(c, http.StatusOK, body) }, s.Addresses().Guard)
		return s.Handler()
	}
	bare := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h["X-Request-Id"] = []string{"0123456789abcdef"}
		h["X-Content-Type-Options"] = noSniff
		h["Content-Type"] = jsonType
		w.Write(body)
	})
	for name, h := range map[string]http.Handler{
		"edge": edge(false, nil), "measured": edge(false, NewMetrics("bench")), "local": edge(true, NewMetrics("bench")), "bare": bare,
	} {
		b.Run(name, func(b *testing.B) {
			r := httptest.NewRequest("GET", "http://localhost/v1/agents/am_0123456789abcdef", nil)
			w := &discardResponse{h: make(http.Header, 8)}
			b.ReportAllocs()
			for b.Loop() {
				clear(w.h)
				h.ServeHTTP(w, r)
			}
		})
	}
}
