package httpapi

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/labstack/echo/v4"
)

// Metrics are the metrics of one process. The owner's listener serves them at /metrics in the Prometheus text format;
// the public listener does not.
//
// A service creates its counters, gauges and histograms once and keeps them. Each call creates one series with fixed
// labels. Nothing that a stranger sends becomes a label, a name or another series (THREATS row 29). A value that can
// be read at any time (a queue, a size) is passed as a func, which only a scrape calls.
//
// Callers give names without the prefix "agentmesh_". All series of one name have the same help and the same label
// keys. Creating a series twice, or with an invalid name, is a programming error and panics. docs/operations.md lists
// every name. A nil *Metrics creates series that nobody reads.
type Metrics struct {
	public *requests
	owner  *requests

	mu       sync.Mutex
	families map[string]*family // by name
}

// family has the series of one name.
type family struct {
	kind, help string
	series     *metrics.Set
}

const metricsPrefix = "agentmesh_"

// NewMetrics returns the metrics of a process of this version, with those of the Go runtime and the operating system.
func NewMetrics(version string) *Metrics {
	m := &Metrics{families: make(map[string]*family)}
	m.Gauge("build_info", "Always 1; the labels name the running version.", func() float64 { return 1 },
		"version", version, "go", runtime.Version())
	m.public = newRequests(m, "public", "")
	m.owner = newRequests(m, "owner", "any") // one series for all routes, because there are many routes and one user
	return m
}

// Counter creates one series that only grows. labels alternates keys and values.
func (m *Metrics) Counter(name, help string, labels ...string) *Counter {
	set, series := m.family("counter", name, help, labels)
	return &Counter{set.NewFloatCounter(series)}
}

// Gauge creates one series. Each scrape calls read, and scrapes may overlap. read returns math.NaN for an unknown
// value.
func (m *Metrics) Gauge(name, help string, read func() float64, labels ...string) {
	set, series := m.family("gauge", name, help, labels)
	set.NewGauge(series, read)
}

// StoreGauge creates a gauge with a read function that asks a store. The gauge is NaN if the store does not answer.
func (m *Metrics) StoreGauge(name, help string, read func(context.Context) (float64, error), labels ...string) {
	m.Gauge(name, help, func() float64 {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		v, err := read(ctx)
		if err != nil {
			return math.NaN()
		}
		return v
	}, labels...)
}

// Histogram creates one histogram with these upper bounds, in ascending order.
func (m *Metrics) Histogram(name, help string, bounds []float64, labels ...string) *Histogram {
	set, series := m.family("histogram", name, help, labels)
	return &Histogram{set.NewPrometheusHistogramExt(series, bounds)}
}

// Limiter creates the counter of the refusals of a limit.
func (m *Metrics) Limiter(name string) *Counter {
	return m.Counter(limiterName, limiterHelp, "limiter", name)
}

// LimiterFunc is [Metrics.Limiter] for a limit that counts its own refusals. Each scrape calls read.
func (m *Metrics) LimiterFunc(name string, read func() uint64) {
	set, series := m.family("counter", limiterName, limiterHelp, []string{"limiter", name})
	set.NewGauge(series, func() float64 { return float64(read()) })
}

const (
	limiterName = "limiter_refusals_total"
	limiterHelp = "Refusals by limits, by limiter."
)

func (m *Metrics) publicRequests() *requests {
	if m == nil {
		return nil
	}
	return m.public
}

func (m *Metrics) ownerRequests() *requests {
	if m == nil {
		return nil
	}
	return m.owner
}

// family returns the set of the series of a name, and the series with the given labels.
func (m *Metrics) family(kind, name, help string, labels []string) (set *metrics.Set, series string) {
	if len(labels)%2 != 0 {
		panic(fmt.Sprintf("httpapi: labels %q are not keys and values", labels))
	}
	var pairs []string
	for pair := range slices.Chunk(labels, 2) {
		pairs = append(pairs, fmt.Sprintf("%s=%q", pair[0], pair[1]))
	}
	name = metricsPrefix + name
	if series = name; len(pairs) > 0 {
		slices.Sort(pairs)
		series += "{" + strings.Join(pairs, ",") + "}"
	}
	if m == nil {
		return metrics.NewSet(), series
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.families[name]
	if f == nil {
		f = &family{kind, help, metrics.NewSet()}
		m.families[name] = f
	}
	if f.kind != kind || f.help != help {
		panic(fmt.Sprintf("httpapi: %s is a %s with another help", name, f.kind))
	}
	return f.series, series
}

// Counter is a series that only grows. It is safe for concurrent use.
type Counter struct{ c *metrics.FloatCounter }

// Inc adds one.
func (c *Counter) Inc() { c.c.Add(1) }

// Histogram counts values by size. It is safe for concurrent use.
type Histogram struct{ h *metrics.PrometheusHistogram }

// Observe counts one value.
func (h *Histogram) Observe(v float64) { h.h.Update(v) }

// serve answers a scrape.
func (m *Metrics) serve(c echo.Context) error {
	m.mu.Lock()
	families := maps.Clone(m.families)
	m.mu.Unlock()
	var text bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(families)) {
		f := families[name]
		fmt.Fprintf(&text, "# HELP %s %s\n# TYPE %s %s\n", name, f.help, name, f.kind)
		f.series.WritePrometheus(&text)
	}
	metrics.WriteProcessMetrics(&text)
	return c.Blob(http.StatusOK, "text/plain; version=0.0.4; charset=utf-8", text.Bytes())
}
