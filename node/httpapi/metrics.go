package httpapi

import (
	"bytes"
	"fmt"
	"net/http"
	"runtime"
	"slices"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"
)

// Metrics is what one process measures of itself. The owner's listener serves it at /metrics, in the text format of
// Prometheus; the public one never does.
//
// A service asks for its counters, gauges and histograms when it is made and keeps them. Each call makes one series,
// with labels that are fixed then: nothing a stranger sends can become a label, a name or a further series (THREATS
// row 29). What can be read at any time (a queue, a size) is a func, called by a scrape and at no other time.
//
// Names are given without the prefix "agentmesh_". The series of one name have the same help and the same label keys.
// Making one twice, or under a name that is none, panics: it is a mistake of the program. Every name stands in
// docs/operations.md. The nil *Metrics makes series that count for nobody.
type Metrics struct {
	registry *prometheus.Registry
	public   *requests
	owner    *requests
}

const metricsPrefix = "agentmesh_"

// NewMetrics returns the metrics of a process of this version, with those of the runtime and of the operating
// system's process.
func NewMetrics(version string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	m.Gauge("build_info", "Always 1; the labels say what runs.", func() float64 { return 1 },
		"version", version, "go", runtime.Version())
	m.public = newRequests(m, "public", "")
	m.owner = newRequests(m, "owner", "any") // its routes are many, and one person asks
	return m
}

// Counter makes one series that only grows. labels are keys and values in turn.
func (m *Metrics) Counter(name, help string, labels ...string) *Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: metricsPrefix + name, Help: help, ConstLabels: pairs(labels)})
	m.register(c)
	return &Counter{c}
}

// CounterFunc makes one series that only grows and that read knows.
func (m *Metrics) CounterFunc(name, help string, read func() float64, labels ...string) {
	opts := prometheus.CounterOpts{Name: metricsPrefix + name, Help: help, ConstLabels: pairs(labels)}
	m.register(prometheus.NewCounterFunc(opts, read))
}

// Gauge makes one series that read knows: math.NaN where it cannot tell. It may be called by several scrapes at once.
func (m *Metrics) Gauge(name, help string, read func() float64, labels ...string) {
	opts := prometheus.GaugeOpts{Name: metricsPrefix + name, Help: help, ConstLabels: pairs(labels)}
	m.register(prometheus.NewGaugeFunc(opts, read))
}

// Histogram makes the series of one histogram with these upper bounds, in rising order.
func (m *Metrics) Histogram(name, help string, bounds []float64, labels ...string) *Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: metricsPrefix + name, Help: help, Buckets: bounds, ConstLabels: pairs(labels),
	})
	m.register(h)
	return &Histogram{h}
}

// Limiter makes the counter of what a limit of this name refused.
func (m *Metrics) Limiter(name string) *Counter {
	return m.Counter(limiterName, limiterHelp, "limiter", name)
}

// LimiterFunc is [Metrics.Limiter] for a limit that counts its refusals itself.
func (m *Metrics) LimiterFunc(name string, read func() uint64) {
	m.CounterFunc(limiterName, limiterHelp, func() float64 { return float64(read()) }, "limiter", name)
}

const (
	limiterName = "limiter_refusals_total"
	limiterHelp = "What limits refused, by limiter."
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

// Counter is one series that only grows. It is safe for concurrent use.
type Counter struct{ c prometheus.Counter }

// Inc adds one.
func (c *Counter) Inc() { c.c.Inc() }

// Add adds n, which is not negative.
func (c *Counter) Add(n float64) { c.c.Add(n) }

// Histogram counts values by size. It is safe for concurrent use.
type Histogram struct{ h prometheus.Histogram }

// Observe counts one value.
func (h *Histogram) Observe(v float64) { h.h.Observe(v) }

// serve answers a scrape. It reads everything first: half a scrape would look like a restart.
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
