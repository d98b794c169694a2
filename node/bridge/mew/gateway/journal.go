package gateway

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Journal writes the two JSONL logs of a drop-in gateway: the envelope log (MEW-D8), and the decision log, which records
// the capability that allowed an envelope (MEW-D9). A nil Journal writes nothing.
type Journal struct {
	envelopes *lineFile // nil: off
	decisions *lineFile // nil: off
}

const rotateAt = 64 << 20 // bytes

// NewJournal returns a journal that writes the selected logs below dir, or nil if none is selected.
func NewJournal(dir string, envelopes, decisions bool, log *slog.Logger) *Journal {
	j := &Journal{}
	file := func(on bool, name string) *lineFile {
		if !on {
			return nil
		}
		f := newLineFile(filepath.Join(dir, name), log)
		f.rotateSize, f.appendDropped = rotateAt, appendDropped
		return f
	}
	j.envelopes, j.decisions = file(envelopes, "envelope-history.jsonl"), file(decisions, "capability-decisions.jsonl")
	if j.envelopes == nil && j.decisions == nil {
		return nil
	}
	return j
}

// appendDropped appends a line that reports n dropped lines.
func appendDropped(dst []byte, n int) []byte {
	dst = append(dst, `{"timestamp":"`...)
	dst = append(dst, envelope.FormatTime(time.Now())...)
	dst = append(dst, `","event":"dropped","metadata":{"lines":`...)
	return append(append(dst, strconv.Itoa(n)...), "}}\n"...)
}

func (j *Journal) run(ctx context.Context) {
	if j == nil {
		return
	}
	var all sync.WaitGroup
	for _, f := range []*lineFile{j.envelopes, j.decisions} {
		if f != nil {
			all.Go(func() { f.run(ctx) })
		}
	}
	all.Wait()
}

func (j *Journal) logsEnvelopes() bool { return j != nil && j.envelopes != nil }

// event is an entry of the envelope log. It becomes one line for each of its receivers, except those of one member.
type event struct {
	at        time.Time
	name      string // received, delivered, rejected
	id        string
	envelope  []byte
	space     string
	direction string      // inbound, outbound
	receivers []*receiver // of an inbound envelope: only its sender
	except    *member     // gets no line; may be nil
	reason    string      // why the envelope was rejected
}

// write is the [lineEntry] of the event. It calls spill after each line, to write the lines in parts.
func (e *event) write(dst []byte, spill func([]byte) []byte) []byte {
	head := append(make([]byte, 0, len(e.envelope)+160), `{"timestamp":"`...)
	head = append(head, envelope.FormatTime(e.at)...)
	head = append(head, `","event":"`...)
	head = append(head, e.name...)
	head = append(head, '"')
	if e.id != "" {
		head = append(head, `,"id":`...)
		head = wire.AppendString(head, e.id)
	}
	if len(e.envelope) > 0 {
		head = append(head, `,"envelope":`...)
		head = append(head, e.envelope...)
	}
	head = append(head, `,"participant":`...)
	tail := append(make([]byte, 0, 128), `,"space_id":`...)
	tail = wire.AppendString(tail, e.space)
	tail = append(tail, `,"direction":"`...)
	tail = append(tail, e.direction...)
	tail = append(tail, `","transport":"`...)
	for _, r := range e.receivers {
		if r.m == e.except {
			continue
		}
		dst = append(dst, head...)
		dst = wire.AppendString(dst, r.id)
		dst = append(dst, tail...)
		dst = append(dst, r.transport...)
		dst = append(dst, '"')
		if e.reason != "" {
			dst = append(dst, `,"metadata":{"reason":`...)
			dst = append(wire.AppendString(dst, e.reason), '}')
		}
		dst = spill(append(dst, "}\n"...))
	}
	return dst
}

func (j *Journal) put(e *event) {
	j.envelopes.put(len(e.receivers), len(e.envelope)+128, e.write)
}

// logInbound logs an accepted envelope in the form in which it is delivered. If reason is not empty, it logs a refused
// envelope, with the fields that the gateway could read.
func (j *Journal) logInbound(space string, p *submission, raw []byte, reason string) {
	if !j.logsEnvelopes() {
		return
	}
	sender := &receiver{m: p.by, id: p.by.id, transport: p.transport}
	e := &event{at: p.at, name: "received", id: p.ID, envelope: raw, space: space, direction: "inbound", receivers: []*receiver{sender}, reason: reason}
	if reason != "" {
		e.name = "rejected"
		if _, isJoin := readJoin(p.Tree); !isJoin && p.Tree.Kind() == wire.Object { // not a join, which contains a token (MEW-D10)
			e.envelope = p.Tree.JSON()
		}
	}
	j.put(e)
}

func (j *Journal) logDelivery(space string, at time.Time, id string, raw []byte, receivers []*receiver, except *member) {
	if !j.logsEnvelopes() || len(receivers) == 0 {
		return
	}
	j.put(&event{
		at: at, name: "delivered", id: id, envelope: raw, space: space, direction: "outbound", receivers: receivers, except: except,
	})
}

// logDirect logs an envelope for one participant, with a placeholder instead of a token (MEW-D10).
func (j *Journal) logDirect(space string, id string, o envelope.Outgoing, r *receiver) {
	if !j.logsEnvelopes() {
		return
	}
	if _, ok := o.Payload.Get("token"); ok && o.Kind == envelope.KindInviteAck {
		o.Payload = o.Payload.With("token", wire.Text("[redacted]"))
	}
	now := time.Now()
	j.put(&event{
		at: now, name: "delivered", id: id, envelope: o.Append(nil, id, envelope.FormatTime(now)), space: space,
		direction: "outbound", receivers: []*receiver{r},
	})
}

// decisionSize is roughly the memory that a decision takes, in bytes.
const decisionSize = 512

// decision is one line of the decision log.
type decision struct {
	at        time.Time
	id        string
	sender    string // its id in the space
	space     string
	kind      string
	match     heldCapability // the capability that allowed the envelope; zero if allowed is false
	allowed   bool
	granted   wire.Value // the capabilities of the sender
	transport string
	related   []string // correlation_id
}

// write is the [lineEntry] of the decision.
func (d *decision) write(dst []byte, _ func([]byte) []byte) []byte {
	fields := []wire.Member{
		wire.TextField("timestamp", envelope.FormatTime(d.at)), wire.TextField("event", "capability_check"), wire.TextField("envelope_id", d.id), wire.TextField("participant", d.sender),
		wire.TextField("space_id", d.space), wire.TextField("result", "denied"), wire.TextField("required_capability", d.kind),
	}
	if d.allowed {
		fields[5] = wire.TextField("result", "allowed") // instead of "denied"
		fields = append(fields, wire.Field("matched_capability", d.match.cap.Value()), wire.TextField("matched_source", d.match.source()))
	}
	meta := []wire.Member{wire.TextField("source", "gateway"), wire.TextField("transport", d.transport)}
	if len(d.related) > 0 {
		meta = append(meta, wire.Field("correlation_id", wire.Texts(d.related)))
	}
	fields = append(fields, wire.Field("granted_capabilities", d.granted), wire.Field("metadata", wire.Obj(meta...)))
	return append(wire.Obj(fields...).AppendJSON(dst), '\n')
}

// logDecision logs which capability allowed an envelope, or that no capability did.
func (j *Journal) logDecision(space string, p *submission, match *capability.Capability) {
	if j == nil || j.decisions == nil {
		return
	}
	d := &decision{ // with copies of texts, so that a queued decision does not keep the whole envelope in memory
		at: p.at, id: strings.Clone(p.ID), sender: p.by.id, space: space, kind: strings.Clone(p.Kind), allowed: match != nil,
		granted: p.by.shown, transport: p.transport, related: envelope.CloneTexts(p.Correlation),
	}
	if at := slices.Index(p.by.caps, match); at >= 0 {
		d.match = p.by.held[at]
	}
	j.decisions.put(1, decisionSize, d.write)
}
