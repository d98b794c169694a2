package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// countAdmission adds an admitted message to the sums of the audit log. A held message has its own line there instead.
func (a *acceptance) countAdmission(out bridge.Outcome) {
	if !out.Duplicate && !out.Held {
		a.n.audit.Count(acl.AuditEntry{At: a.now, Kind: acl.AuditAdmitted, Subject: a.in.Principal, Rule: rules.AdmittedBy(a.state)})
	}
}

// countRefusal adds a refusal to the sums of the audit log, but not a fault of the node itself.
func (n *Node) countRefusal(principal, rule string, err error) {
	e, ok := errors.AsType[*wire.Error](err)
	if !ok || e.Status >= http.StatusInternalServerError {
		return
	}
	n.audit.Count(acl.AuditEntry{At: time.Now(), Kind: acl.AuditRefused, Subject: principal, Rule: rule, Note: e.Message})
}

// countUnproven counts a refusal in lines 3 to 8 of the receive table. It names the sender only if the owner wrote the
// name on the block list: any other name may be forged.
func (n *Node) countUnproven(in bridge.Inbound, err error) {
	if errors.Is(err, wire.ErrNotAllowed) {
		n.countRefusal(in.Principal, "peer="+string(acl.Blocked), err)
		return
	}
	n.countRefusal("", codeOf(err), err)
}

func codeOf(err error) string {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return string(e.Code)
	}
	return "error"
}

const keyPolicy = "policy" // in nsState: the digest of the policy at the last start

// AuditPolicy writes an audit line if the policy differs from that of the last start. Call it once the bridges are
// connected, because the policy includes their access modes and hold rules.
func (n *Node) AuditPolicy(ctx context.Context) error {
	now, policy, links := time.Now(), n.policy(), make(map[string]acl.Mode)
	n.bridges.modes.Range(func(link, mode any) bool {
		links[link.(string)] = mode.(acl.Mode)
		return true
	})
	tree, err := wire.ValueOf(struct {
		Access   acl.Policy
		Outgoing OutboundPolicy
		Links    map[string]acl.Mode
	}{policy, n.cfg.Outbound, links})
	if err != nil {
		return fmt.Errorf("encode policy: %w", err)
	}
	digest := hexOf(signing.Digest(tree))
	old, err := n.store.Records().Get(ctx, nsState, keyPolicy, now)
	switch {
	case err == nil && bytes.Equal(old.Body, []byte(digest)):
		return nil
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return err
	}
	entry := acl.AuditEntry{
		At: now, Kind: acl.AuditPolicy, By: "config", Digest: digest,
		Rule: fmt.Sprintf("access.mode=%s outgoing.mode=%s", n.mode(), n.cfg.Outbound.mode()),
		Note: fmt.Sprintf("%d allowed, %d blocked, %d hold rules", len(policy.Allow), len(policy.Block), len(policy.Hold)),
	}
	return n.saveState(ctx, keyPolicy, []byte(digest), now, n.audit.Change(entry))
}

// refusal is a refused message, with its row in the error table.
type refusal struct {
	owner.Refusal
	row string
}

// refusals keeps the newest refusals in memory. Refusals of the same sender for the same reason are merged if the
// sender is proven. For unproven senders, all refusals for the same reason are merged, so that forgers cannot push out
// the refusals of proven senders.
type refusals struct {
	mu   sync.Mutex
	list []refusal // oldest first
	news waiting.Signal
}

const maxRefusals = 64

func (r *refusals) add(in bridge.Inbound, why *wire.Error, now time.Time) {
	entry := refusal{row: why.Row(), Refusal: owner.Refusal{
		At: now, Times: 1, Code: why.Code, Status: why.Status, Answer: why.Message,
		From: wire.OneLine(in.Principal, 128), Proven: bridge.IsProof(in.Verified), Intent: wire.Intent(wire.OneLine(string(in.Intent), 128)),
	}}
	if cause := errors.Unwrap(why); cause != nil {
		entry.Why = wire.OneLine(cause.Error(), 300)
	}
	r.mu.Lock()
	at := slices.IndexFunc(r.list, func(old refusal) bool {
		return old.row == entry.row && old.Proven == entry.Proven && (!entry.Proven || old.From == entry.From)
	})
	switch {
	case at >= 0:
		entry.Times += r.list[at].Times
		r.list = slices.Delete(r.list, at, at+1)
	case len(r.list) >= maxRefusals:
		r.list = slices.Delete(r.list, 0, 1)
	}
	r.list = append(r.list, entry)
	r.mu.Unlock()
	r.news.Broadcast()
}

func (r *refusals) newest() []owner.Refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]owner.Refusal, 0, len(r.list))
	for _, entry := range slices.Backward(r.list) {
		list = append(list, entry.Refusal)
	}
	return list
}

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
	bounds     map[string]*httpapi.Counter    // questions at a bound on turns, by their rule
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
	for _, outcome := range []string{string(owner.SendDelivered), string(owner.SendUnverified), string(owner.SendFailed), string(owner.SendUnknown), outcomePostponed} {
		t.deliveries[outcome] = m.Counter("deliveries_total", "Attempts to deliver an outbox entry, by outcome.", "outcome", outcome)
	}
	t.bounds, n.turns.taken = map[string]*httpapi.Counter{}, map[rules.Bound]*httpapi.Counter{}
	for _, b := range rules.Bounds {
		n.turns.taken[b] = m.Counter("turns_total", "Turns of the agent without its owner, by each bound that counts them.", "bound", string(b))
		t.bounds[b.Rule()] = m.Counter("turn_questions_total", "Questions to the owner at a bound on turns.", "bound", string(b))
	}
	n.counters = t
	for _, ns := range n.work.Namespaces() {
		m.StoreGauge("work_waiting", "Records that wait to be worked on, by queue; at most 10,000 are counted.", func(ctx context.Context) (float64, error) {
			waiting, err := n.work.Waiting(ctx, ns)
			return float64(waiting), err
		}, "queue", ns)
		m.Gauge("work_running", "Records that are being worked on, by queue.",
			func() float64 { return float64(n.work.Running(ns)) }, "queue", ns)
		m.StoreGauge("work_late_seconds", "How long the first due record has waited beyond its time, by queue.", func(ctx context.Context) (float64, error) {
			late, err := n.work.Late(ctx, ns)
			return late.Seconds(), err
		}, "queue", ns)
	}
	const hooks = "Hooks that run, and hooks that wait for their turn."
	m.Gauge("hooks", hooks, func() float64 { running, _ := n.runs.Load(""); return float64(running) }, "state", "running")
	m.Gauge("hooks", hooks, func() float64 { _, waiting := n.runs.Load(""); return float64(waiting) }, "state", "waiting")
	m.StoreGauge("asks_open", "Questions that wait for the owner; at most 1000 are counted.", func(ctx context.Context) (float64, error) {
		open, err := OwnerAPI{n}.CountApprovals(ctx, statusCap)
		return float64(open), err
	})
	for _, limit := range acl.MeterLimits() {
		m.LimiterFunc("messages-"+limit, func() uint64 { return n.meter.Refusals(limit) })
	}
}

// countBound counts a question at a bound on turns when the unit is committed.
func (n *Node) countBound(u *conversations.Unit, ask acl.Ask) {
	if c := n.counters.bounds[ask.Rule]; c != nil && ask.Behind == "" {
		u.Then(c.Inc)
	}
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
	if outcome != string(owner.SendDelivered) && outcome != outcomePostponed {
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
