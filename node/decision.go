package node

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// What became of a message, in logs and metrics.
const (
	outcomeAccepted = "accepted"
	outcomeHeld     = "held"
	outcomeRepeated = "repeated"
	outcomeRefused  = "refused"
)

// putOff is the outcome of an attempt after which the letter waits for the next one; the others are states of letters.
const putOff = "put_off"

// tally counts what the node decides.
type tally struct {
	taken      map[string]*httpapi.Counter    // messages by outcome, but for refused ones
	refused    map[wire.Code]*httpapi.Counter // messages
	deliveries map[string]*httpapi.Counter    // attempts by outcome
}

// measure makes the node's metrics.
func (n *Node) measure(m *httpapi.Metrics) {
	t := tally{
		taken: map[string]*httpapi.Counter{}, refused: map[wire.Code]*httpapi.Counter{}, deliveries: map[string]*httpapi.Counter{},
	}
	message := func(outcome string, code wire.Code) *httpapi.Counter {
		return m.Counter("messages_total", "Messages that came in and were read, by what became of them; code where one was refused.",
			"outcome", outcome, "code", string(code))
	}
	for _, outcome := range []string{outcomeAccepted, outcomeHeld, outcomeRepeated} {
		t.taken[outcome] = message(outcome, "")
	}
	for _, row := range wire.Table() {
		if t.refused[row.Code] == nil {
			t.refused[row.Code] = message(outcomeRefused, row.Code)
		}
	}
	for _, outcome := range []string{string(SendDelivered), string(SendUnverified), string(SendFailed), string(SendUnknown), putOff} {
		t.deliveries[outcome] = m.Counter("deliveries_total", "Attempts to deliver a letter of the outbox, by outcome.", "outcome", outcome)
	}
	n.tally = t
	for _, state := range []string{"queued", "delivering"} {
		m.Gauge("outbox_letters", "Letters in the outbox: all that wait or are on their way, and those on their way.",
			func() float64 { return float64(n.outbox.Counts()[state]) }, "state", state)
	}
	const hooks = "Hooks at work, and hooks that wait for their turn."
	m.Gauge("hooks", hooks, func() float64 { return float64(len(n.runs.slots)) }, "state", "running")
	m.Gauge("hooks", hooks, func() float64 { return float64(max(0, len(n.runs.room)-len(n.runs.slots))) }, "state", "waiting")
	m.Gauge("asks_open", "Questions that wait for the owner; at most 1000 are counted.", n.openAsks)
	for _, limit := range acl.MeterLimits() {
		m.LimiterFunc("messages-"+limit, func() uint64 { return n.meter.Refusals(limit) })
	}
}

func (n *Node) openAsks() float64 {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	open, err := count(statusCap, func(after string, limit int) (int, string, error) {
		page, next, err := n.asks.List(ctx, acl.AskFilter{State: acl.AskPending}, after, limit, time.Now())
		return len(page), next, err
	})
	if err != nil {
		return math.NaN()
	}
	return float64(open)
}

// decided counts a message and writes its one line. in holds what was learned of the message before it was refused: its
// sender is proven where no signature was found wanting. Floods and repeats are lines of level debug, as in the edge.
func (n *Node) decided(ctx context.Context, in bridge.Inbound, out bridge.Outcome, err error) {
	level, outcome := slog.LevelInfo, outcomeAccepted
	refusal, refused := errors.AsType[*wire.Error](err)
	switch {
	case err != nil:
		outcome = outcomeRefused
		if !refused {
			refusal = wire.ErrInternal.Because(err)
		}
		n.tally.refused[refusal.Code].Inc()
		n.refusals.add(in, refusal, time.Now())
		level = refusalLevel(refusal)
	case out.Duplicate:
		level, outcome = slog.LevelDebug, outcomeRepeated
	case out.Held:
		outcome = outcomeHeld
	}
	if err == nil {
		n.tally.taken[outcome].Inc()
	}
	if !n.log.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{slog.String("outcome", outcome)}
	if in.MessageID != "" {
		attrs = append(attrs,
			slog.String("peer", string(in.Peer)), slog.String("message_id", string(in.MessageID)),
			slog.String("conversation_id", string(in.ConvID)), slog.String("intent", wire.OneLine(string(in.Intent), 128)))
	}
	if in.Address != "" {
		attrs = append(attrs, slog.String("address", wire.OneLine(in.Address, 256)))
	}
	if out.Ask != "" {
		attrs = append(attrs, slog.String("ask", out.Ask))
	}
	if refusal != nil {
		attrs = append(attrs, slog.String("refused", refusal.Row()))
		if cause := errors.Unwrap(refusal); cause != nil {
			attrs = append(attrs, slog.String("cause", wire.OneLine(cause.Error(), 300)))
		}
	}
	n.log.LogAttrs(ctx, level, "message", attrs...)
}

func refusalLevel(e *wire.Error) slog.Level {
	switch e.Status {
	case http.StatusTooManyRequests:
		return slog.LevelDebug
	case http.StatusServiceUnavailable:
		return slog.LevelWarn
	case http.StatusInternalServerError:
		return slog.LevelError
	}
	return slog.LevelInfo
}

// attempted counts an attempt to deliver and writes its one line. cause is why it did not succeed, "" where it did.
func (n *Node) attempted(l Letter, outcome, cause string) {
	n.tally.deliveries[outcome].Inc()
	level := slog.LevelInfo
	if outcome != string(SendDelivered) && outcome != putOff {
		level = slog.LevelWarn
	}
	attrs := []slog.Attr{
		slog.String("outcome", outcome), slog.String("letter", l.ID), slog.String("peer", string(l.To)),
		slog.String("message_id", string(l.First)), slog.String("conversation_id", string(l.Conversation)),
		slog.Int("attempt", l.Attempts),
	}
	if outcome == putOff {
		attrs = append(attrs, slog.Time("next", l.Due))
	}
	if cause != "" {
		attrs = append(attrs, slog.String("cause", wire.OneLine(cause, 300)))
	}
	n.log.LogAttrs(context.Background(), level, "delivery", attrs...)
}

// answered writes the line of a decision of the owner.
func (n *Node) answered(ask acl.Ask) {
	n.log.LogAttrs(context.Background(), slog.LevelInfo, "decision",
		slog.String("ask", ask.ID), slog.String("kind", ask.Kind), slog.String("peer", wire.OneLine(ask.Subject, 256)),
		slog.String("choice", string(ask.Choice)), slog.String("by", wire.OneLine(ask.By, 64)))
}
