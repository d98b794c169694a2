package directory

import (
	"context"
	"math"
	"time"

	"github.com/agentmesh/agentmesh/node/httpapi"
)

// counters are what the directory counts of itself.
type counters struct {
	passed, stored, turnedAway *httpapi.Counter // messages for mailboxes
	proven, missed             *httpapi.Counter // endpoints that were asked
}

// measure makes the directory's metrics.
func (r *Registry) measure(m *httpapi.Metrics) {
	const mailName, mailHelp = "relay_messages_total", "Messages for mailboxes, by what became of them: passed to a connected agent, stored, or refused."
	const askName, askHelp = "endpoints_asked_total", "Endpoints that were asked for their card, by outcome."
	r.counters = counters{
		passed:     m.Counter(mailName, mailHelp, "outcome", "passed"),
		stored:     m.Counter(mailName, mailHelp, "outcome", "stored"),
		turnedAway: m.Counter(mailName, mailHelp, "outcome", "refused"),
		proven:     m.Counter(askName, askHelp, "outcome", "proven"),
		missed:     m.Counter(askName, askHelp, "outcome", "missed"),
	}
	m.Gauge("cards", "Live cards in the directory, at most some seconds old.", gauge(func(ctx context.Context) (float64, error) {
		n, err := r.agents(ctx, clock())
		return float64(n), err
	}))
	m.Gauge("relay_connected", "Owners of mailboxes whose agents hold their connection.", func() float64 { return float64(r.desks.connected()) })
	m.Gauge("relay_waiting_messages", "Messages that wait in all mailboxes; 100000 is full.", gauge(func(ctx context.Context) (float64, error) {
		all, _, err := r.waiting(ctx)
		return float64(all.n), err
	}))
	m.Gauge("relay_waiting_bytes", "Bytes of the messages that wait in all mailboxes; 4 GiB is full.", gauge(func(ctx context.Context) (float64, error) {
		all, _, err := r.waiting(ctx)
		return float64(all.size), err
	}))
	m.Gauge("endpoints_waiting", "Cards whose endpoint waits to be asked.", func() float64 { return float64(r.lineup.len()) })
	m.LimiterFunc("registrations-of-address", r.hourly.Refused)
	m.LimiterFunc("reports-of-address", r.reporters.Refused)
	m.LimiterFunc("credential-failures-of-address", r.failures.Refused)
}

// gauge makes a gauge of what the store knows: NaN where it does not answer.
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
