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

// The outcomes of received messages in logs and metrics.
const (
	outcomeAccepted = "accepted"
	outcomeHeld     = "held"
	outcomeRepeated = "repeated"
	outcomeRefused  = "refused"
)

// outcomePostponed is the outcome of an attempt if another one will follow. The other outcomes of attempts are the
// final states of outbox entries.
const outcomePostponed = "put_off"

// counters are the metrics of the node's decisions.
type counters struct {
	accepted   map[string]*httpapi.Counter    // messages that were not refused, by outcome
	refused    map[wire.Code]*httpapi.Counter // refused messages, by error code
	deliveries map[string]*httpapi.Counter    // delivery attempts, by outcome
}

func (n *Node) registerMetrics(m *httpapi.Metrics) {
	t := counters{
		accepted: map[string]*httpapi.Counter{}, refused: map[wire.Code]*httpapi.Counter{}, deliveries: map[string]*httpapi.Counter{},
	}
	messageCounter := func(outcome string, code wire.Code) *httpapi.Counter {
		return m.Counter("messages_total", "Messages that were received and read, by outcome; code is set for refused ones.",
			"outcome", outcome, "code", string(code))
	}
	for _, outcome := range []string{outcomeAccepted, outcomeHeld, outcomeRepeated} {
		t.accepted[outcome] = messageCounter(outcome, "")
	}
	for _, row := range wire.Table() {
		if t.refused[row.Code] == nil {
			t.refused[row.Code] = messageCounter(outcomeRefused, row.Code)
		}
	}
	for _, outcome := range []string{string(SendDelivered), string(SendUnverified), string(SendFailed), string(SendUnknown), outcomePostponed} {
		t.deliveries[outcome] = m.Counter("deliveries_total", "Attempts to deliver an outbox entry, by outcome.", "outcome", outcome)
	}
	n.counters = t
	for _, state := range []string{"queued", "delivering"} {
		m.Gauge("outbox_letters", "Entries in the outbox: all that are queued, and those that are being delivered now.",
			func() float64 { return float64(n.outbox.Counts()[state]) }, "state", state)
	}
	const hooks = "Hooks that run, and hooks that wait for their turn."
	m.Gauge("hooks", hooks, func() float64 { running, _ := n.runs.Load(""); return float64(running) }, "state", "running")
	m.Gauge("hooks", hooks, func() float64 { _, waiting := n.runs.Load(""); return float64(waiting) }, "state", "waiting")
	m.Gauge("asks_open", "Questions that wait for the owner; at most 1000 are counted.", OwnerAPI{n}.countOpenAsks)
	for _, limit := range acl.MeterLimits() {
		m.LimiterFunc("messages-"+limit, func() uint64 { return n.meter.Refusals(limit) })
	}
}

// countOpenAsks returns the number of open questions, at most statusCap, or NaN if the store fails.
func (o OwnerAPI) countOpenAsks() float64 {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	open, err := o.CountApprovals(ctx, statusCap)
	if err != nil {
		return math.NaN()
	}
	return float64(open)
}

// logMessage counts a received message and logs it in one line. After an error in lines 3 to 8 of the receive table
// (docs/protocol.md), the sender is only what the message claims. Repeats and rate-limited messages are logged at debug
// level.
func (n *Node) logMessage(ctx context.Context, in bridge.Inbound, out bridge.Outcome, err error) {
	level, outcome := slog.LevelInfo, outcomeAccepted
	refusal, refused := errors.AsType[*wire.Error](err)
	switch {
	case err != nil:
		outcome = outcomeRefused
		if !refused {
			refusal = wire.ErrInternal.Because(err)
		}
		n.counters.refused[refusal.Code].Inc()
		n.refusals.add(in, refusal, time.Now())
		level = refusalLevel(refusal)
	case out.Duplicate:
		level, outcome = slog.LevelDebug, outcomeRepeated
	case out.Held:
		outcome = outcomeHeld
	}
	if err == nil {
		n.counters.accepted[outcome].Inc()
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

// logDelivery counts an attempt to deliver and logs it in one line. cause, if any, is why the attempt failed.
func (n *Node) logDelivery(e OutboxEntry, outcome, cause string) {
	n.counters.deliveries[outcome].Inc()
	level := slog.LevelInfo
	if outcome != string(SendDelivered) && outcome != outcomePostponed {
		level = slog.LevelWarn
	}
	attrs := []slog.Attr{
		slog.String("outcome", outcome), slog.String(entryLogKey, e.ID), slog.String("peer", string(e.To)),
		slog.String("message_id", string(e.First)), slog.String("conversation_id", string(e.Conversation)),
		slog.Int("attempt", e.Attempts),
	}
	if outcome == outcomePostponed {
		attrs = append(attrs, slog.Time("next", e.Due))
	}
	if cause != "" {
		attrs = append(attrs, slog.String("cause", wire.OneLine(cause, 300)))
	}
	n.log.LogAttrs(context.Background(), level, "delivery", attrs...)
}

func (n *Node) logDecision(ask acl.Ask) {
	n.log.LogAttrs(context.Background(), slog.LevelInfo, "decision",
		slog.String("ask", ask.ID), slog.String("kind", ask.Kind), slog.String("peer", wire.OneLine(ask.Subject, 256)),
		slog.String("choice", string(ask.Choice)), slog.String("by", wire.OneLine(ask.By, 64)))
}
