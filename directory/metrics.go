package directory

import (
	"context"

	"github.com/agentmesh/agentmesh/directory/history"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// counters count the directory's work.
type counters struct {
	proven, missed *httpapi.Counter // probed endpoints
	days           *history.History
}

// addMetrics registers the directory's metrics.
func (r *Registry) addMetrics(m *httpapi.Metrics) {
	const askName, askHelp = "endpoints_asked_total", "Probes of agent endpoints, by outcome."
	r.counters = counters{
		proven: m.Counter(askName, askHelp, "outcome", "proven"),
		missed: m.Counter(askName, askHelp, "outcome", "missed"),
		days:   &history.History{},
	}
	m.StoreGauge("cards", "Live cards in the directory, as counted at most ten seconds ago.", func(ctx context.Context) (float64, error) {
		n, err := r.countAgents(ctx, wire.Now())
		return float64(n), err
	})
	m.Gauge("endpoints_waiting", "Cards whose endpoint waits to be probed.", func() float64 { return float64(r.probeQueue.Len()) })
	m.LimiterFunc("reports-of-address", r.reporters.Refusals)
}
