package httpapi

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"net/http"
	"runtime"
	"slices"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"
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
	registry *prometheus.Registry
	public   *requests
	owner    *requests
}

const metricsPrefix = "agentmesh_"

// NewMetrics returns the metrics of a process of this version, with those of the Go runtime and the operating system.
func NewMetrics(version string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	m.Gauge("build_info", "Always 1; the labels name the running version.", func() float64 { return 1 },
		"version", version, "go", runtime.Version())
	m.public = newRequests(m, "public", "")
	m.owner = newRequests(m, "owner", "any") // one series for all routes, because there are many routes and one user
	return m
}

// Counter creates one series that only grows. labels alternates keys and values.
func (m *Metrics) Counter(name, help string, labels ...string) *Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: metricsPrefix + name, Help: help, ConstLabels: pairs(labels)})
	m.register(c)
	return &Counter{c}
}

// Gauge creates one series. Each scrape calls read, and scrapes may overlap. read returns math.NaN for an unknown
// value.
func (m *Metrics) Gauge(name, help string, read func() float64, labels ...string) {
	opts := prometheus.GaugeOpts{Name: metricsPrefix + name, Help: help, ConstLabels: pairs(labels)}
	m.register(prometheus.NewGaugeFunc(opts, read))
}

// StoreGauge creates a gauge with a read function that asks a store. The gauge is NaN if the store does not answer.
func (m *Metrics) StoreGauge(name, help string, read func(context.Context) (float64, error)) {
	m.Gauge(name, help, func() float64 {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		v, err := read(ctx)
		if err != nil {
			return math.NaN()
		}
		return v
	})
}

// Histogram creates one histogram with these upper bounds, in ascending order.
func (m *Metrics) Histogram(name, help string, bounds []float64, labels ...string) *Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: metricsPrefix + name, Help: help, Buckets: bounds, ConstLabels: pairs(labels),
	})
	m.register(h)
	return &Histogram{h}
}

// Limiter creates the counter of the refusals of a limit.
func (m *Metrics) Limiter(name string) *Counter {
	return m.Counter(limiterName, limiterHelp, "limiter", name)
}

// LimiterFunc is [Metrics.Limiter] for a limit that counts its own refusals. Each scrape calls read.
func (m *Metrics) LimiterFunc(name string, read func() uint64) {
	opts := prometheus.CounterOpts{Name: metricsPrefix + limiterName, Help: limiterHelp, ConstLabels: prometheus.Labels{"limiter": name}}
	m.register(prometheus.NewCounterFunc(opts, func() float64 { return float64(read()) }))
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

func (m *Metrics) register(c prometheus.Collector) {
	if m != nil {
		m.registry.MustRegister(c)
	}
}

func pairs(labels []string) prometheus.Labels {
	if len(labels)%2 != 0 {
		panic(fmt.Sprintf("httpapi: labels %q are not keys and values", labels))
	}
	out := make(prometheus.Labels, len(labels)/2)
	for pair := range slices.Chunk(labels, 2) {
		out[pair[0]] = pair[1]
	}
	return out
}

// Counter is a series that only grows. It is safe for concurrent use.
type Counter struct{ c prometheus.Counter }

// Inc adds one.
func (c *Counter) Inc() { c.c.Inc() }

// Add adds n, which must not be negative.
func (c *Counter) Add(n float64) { c.c.Add(n) }

// Histogram counts values by size. It is safe for concurrent use.
type Histogram struct{ h prometheus.Histogram }

// Observe counts one value.
func (h *Histogram) Observe(v float64) { h.h.Observe(v) }

// serve answers a scrape. It gathers everything first, because half a scrape would look like a restart.
func (m *Metrics) serve(c echo.Context) error {
	families, err := m.registry.Gather()
	if err != nil {
		return fmt.Errorf("gather metrics: %w", err)
	}
	var buf bytes.Buffer
	format := expfmt.NewFormat(expfmt.TypeTextPlain)
	enc := expfmt.NewEncoder(&buf, format)
	for _, family := range families {
		if err := enc.Encode(family); err != nil {
			return fmt.Errorf("write metrics: %w", err)
		}
	}
	return c.Blob(http.StatusOK, string(format), buf.Bytes())
}
