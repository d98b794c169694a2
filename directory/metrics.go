package directory

import (
	"context"
	"math"
	"time"

	"github.com/agentmesh/agentmesh/directory/history"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// counters count the directory's work.
type counters struct {
	passed, stored, turnedAway *httpapi.Counter // messages for mailboxes
	proven, missed             *httpapi.Counter // probed endpoints
	days                       *history.History
}

// addMetrics registers the directory's metrics.
func (r *Registry) addMetrics(m *httpapi.Metrics) {
	const mailName, mailHelp = "relay_messages_total", "Messages for mailboxes, by outcome: passed to a connected agent, stored, or refused."
	const askName, askHelp = "endpoints_asked_total", "Probes of agent endpoints, by outcome."
	r.counters = counters{
		passed:     m.Counter(mailName, mailHelp, "outcome", "passed"),
		stored:     m.Counter(mailName, mailHelp, "outcome", "stored"),
		turnedAway: m.Counter(mailName, mailHelp, "outcome", "refused"),
		proven:     m.Counter(askName, askHelp, "outcome", "proven"),
		missed:     m.Counter(askName, askHelp, "outcome", "missed"),
		days:       &history.History{},
	}
	m.Gauge("cards", "Live cards in the directory, as counted at most ten seconds ago.", gauge(func(ctx context.Context) (float64, error) {
		n, err := r.countAgents(ctx, wire.Now())
		return float64(n), err
	}))
	m.Gauge("relay_connected", "Owners of mailboxes whose agents are connected.", func() float64 { return float64(r.connections.Count()) })
	m.Gauge("relay_waiting_messages", "Messages that wait in all mailboxes; the limit is 100000.", gauge(func(ctx context.Context) (float64, error) {
		all, _, err := r.mailTotal(ctx)
		return float64(all.N), err
	}))
	m.Gauge("relay_waiting_bytes", "Bytes of the messages that wait in all mailboxes; the limit is 4 GiB.", gauge(func(ctx context.Context) (float64, error) {
		all, _, err := r.mailTotal(ctx)
		return float64(all.Size), err
	}))
	m.Gauge("endpoints_waiting", "Cards whose endpoint waits to be probed.", func() float64 { return float64(r.probeQueue.Len()) })
	m.LimiterFunc("reports-of-address", r.reporters.Refusals)
}

// gauge returns a function that reads a number from the store. The function returns NaN if the store does not answer.
func gauge(from func(context.Context) (float64, error)) func() float64 {
	return func() float64 {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		v, err := from(ctx)
		if err != nil {
			return math.NaN()
		}
		return v
	}
}
