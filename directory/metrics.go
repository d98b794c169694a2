package directory

import (
	"context"
	"math"
	"time"

	"github.com/agentmesh/agentmesh/node/httpapi"
)

// Measure makes the directory's metrics. It is for set-up, once.
func (r *Registry) Measure(m *httpapi.Metrics) {
	m.Gauge("cards", "Live cards in the directory, at most some seconds old.", func() float64 {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		n, err := r.agents(ctx, clock())
		if err != nil {
			return math.NaN()
		}
		return float64(n)
	})
	m.LimiterFunc("registrations-of-address", r.hourly.Refused)
	m.LimiterFunc("reports-of-address", r.reporters.Refused)
	m.LimiterFunc("credential-failures-of-address", r.failures.Refused)
}
