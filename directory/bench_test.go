package directory

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/httpapi"
)

// discardResponse is a response writer that costs nothing.
type discardResponse struct{ h http.Header }

func (b *discardResponse) Header() http.Header         { return b.h }
func (b *discardResponse) Write(p []byte) (int, error) { return len(p), nil }
func (b *discardResponse) WriteHeader(int)             {}

// benchWorld is a directory in its usual configuration, with address limits and a log.
func benchWorld(b *testing.B, n int) *world {
	w := newWorld(b)
	w.edge = httpapi.New(httpapi.Config{
		RequestsPerMinute: 1 << 40,
		Logger:            slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	w.reg = New(Config{Store: w.store, BaseURL: testBase, Quotas: Quotas{PerToken: -1, PerHost: -1, PerHour: -1}, Addresses: w.edge.Addresses()})
	w.reg.Mount(w.edge.Echo())
	for i := range n {
		if _, err := w.reg.Register(b.Context(), Submission{Bearer: alice, Body: func() ([]byte, error) {
			return testCard(fmt.Sprintf("am_%06d", i)).JSON(), nil
		}}); err != nil {
			b.Fatal(err)
		}
	}
	return w
}

func benchGet(b *testing.B, h http.Handler, path string) {
	r := httptest.NewRequest("GET", path, nil)
	w := &discardResponse{h: make(http.Header, 16)}
	b.ReportAllocs()
	for b.Loop() {
		clear(w.h)
		h.ServeHTTP(w, r)
	}
}

func BenchmarkGetCard(b *testing.B) {
	benchGet(b, benchWorld(b, 1000).edge.Handler(), "/v1/agents/am_000500")
}

func BenchmarkList(b *testing.B) {
	w := benchWorld(b, 1000)
	for name, query := range map[string]string{"all": "", "capability": "?capability=scheduling", "q": "?q=agent", "one": "?q=am_000500"} {
		b.Run(name, func(b *testing.B) { benchGet(b, w.edge.Handler(), "/v1/agents"+query) })
	}
}

func BenchmarkRegister(b *testing.B) {
	w := benchWorld(b, 0)
	b.ReportAllocs()
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			id := fmt.Sprintf("am_%p_%d", pb, time.Now().UnixNano())
			if _, err := w.reg.Register(b.Context(), Submission{Bearer: alice, Body: func() ([]byte, error) {
				return testCard(id).JSON(), nil
			}}); err != nil {
				b.Error(err)
			}
		}
	})
}

// BenchmarkChanges measures a page of a hundred changes.
func BenchmarkChanges(b *testing.B) {
	benchGet(b, benchWorld(b, 1000).edge.Handler(), "/v1/changes")
}

// BenchmarkColdList measures list pages that nobody has asked for: more queries in turn than the cache keeps.
func BenchmarkColdList(b *testing.B) {
	w := benchWorld(b, 1000)
	h, out := w.edge.Handler(), &discardResponse{h: make(http.Header, 16)}
	var queries []*http.Request
	for i := range 200 {
		queries = append(queries, httptest.NewRequest("GET", fmt.Sprintf("/v1/agents?capability=scheduling&x=%d", i), nil))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		clear(out.h)
		h.ServeHTTP(out, queries[i%len(queries)])
	}
}
