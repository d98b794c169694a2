package gateway

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Space is one space, with its participants, streams and history. Its lock gives all envelopes one order (MEW-Q1).
// Nothing passes between spaces (MEW-20).
type Space struct {
	cfg        SpaceConfig // without the participants, because of their tokens
	gatewayCfg *Config
	accounts   *accounts
	rates      *rate.Buckets // nil: no limit

	mu        sync.Mutex // guards the following fields
	members   members
	out       delivery
	streams   streams
	board     view.Board
	proposals proposals
	stopping  bool
}

// submission is an envelope of a participant while the space handles it.
type submission struct {
	envelope.Envelope
	by        *member // the sender
	transport string  // websocket, http or owner
	at        time.Time
	to        []string // Envelope.To with each name replaced by the participant's current id

	// The function in actions for the envelope's kind sets the following fields.
	silent    bool                // the envelope is not broadcast
	before    []envelope.Outgoing // broadcast before the envelope
	after     []envelope.Outgoing // broadcast after it
	afterSend []func()            // run after all envelopes are sent
	status    string              // status in the HTTP answer; empty means "accepted"
	extra     []wire.Member       // further members of the HTTP answer
	code      int                 // status code of the HTTP answer; 0 means 200
	direct    *envelope.Outgoing  // sent only to the sender
	opened    *stream             // the stream that the envelope opened; send stores the id of the stream/open in it
}

// httpAnswer is the HTTP answer to an envelope.
type httpAnswer struct {
	code int
	body wire.Value
}

// unlock ends the sessions of connections that accept no more frames, and unlocks the space.
func (s *Space) unlock() {
	for len(s.out.slow) > 0 {
		slow := s.out.slow
		s.out.slow = nil
		for _, ses := range slow {
			s.endSession(ses)
		}
	}
	s.mu.Unlock()
}

// handle checks an envelope of m, and then sends or refuses it. If the envelope could not be parsed, fault is the
// refusal; otherwise nil. The caller holds s.mu.
func (s *Space) handle(m *member, e envelope.Envelope, fault *envelope.Refusal, transport string) (httpAnswer, *envelope.Refusal) {
	p := &submission{Envelope: e, by: m, transport: transport, at: s.out.history.nextTime(time.Now())}
	if refusal := s.checkRate(m); refusal != nil {
		fault = refusal
	} else if fault == nil {
		fault = s.judge(p)
	}
	if fault != nil {
		s.reportRefusal(p, fault)
		return httpAnswer{}, fault
	}
	s.send(p)
	body := wire.Obj(wire.TextField("id", p.ID), wire.TextField("status", cmp.Or(p.status, "accepted")))
	for _, field := range p.extra {
		body = body.With(field.Key, field.Value)
	}
	body = body.With("timestamp", wire.Text(envelope.FormatTime(p.at)))
	return httpAnswer{cmp.Or(p.code, 200), body}, nil
}

// checkRate counts an envelope or frame of m, and refuses it if m has sent too many.
func (s *Space) checkRate(m *member) *envelope.Refusal {
	if wait, ok := s.rates.Take(m.name, time.Now()); !ok {
		return envelope.RefuseRate(wait)
	}
	return nil
}

// judge checks an envelope and runs the action of its kind. The order of the checks decides which fault is reported.
func (s *Space) judge(p *submission) *envelope.Refusal {
	if p.HasFrom && p.From != p.by.name && p.From != p.by.id { // MEW-53, MEW-J6
		return envelope.RefuseWith(403, "identity_mismatch", "from must be "+p.by.id)
	}
	r := envelope.RuleOf(p.Kind)
	if r.GatewayOnly && !(r.UnlessDropIn && s.cfg.DropIn) { // MEW-54
		return envelope.RefuseReservedKind(p.Kind)
	}
	if fault := s.checkState(p.by, r); fault != nil {
		return fault
	}
	p.fill()
	if fault := s.checkCapabilities(p); fault != nil {
		return fault
	}
	if r.Remembered {
		p.Detach()
	}
	switch {
	case s.cfg.DropIn: // the reference checks neither, and its clients write the context into the payload
	case r.NeedsCorrelation && len(p.Correlation) == 0:
		return envelope.RefuseShape(p.Kind + " needs a correlation_id")
	case r.NeedsContext && p.Context == "":
		return envelope.RefuseShape(p.Kind + " needs the id of its reasoning/start as context")
	}
	p.to = slices.Clone(p.Envelope.To)
	for i, id := range p.to {
		if m := s.members.find(id); m != nil {
			p.to[i] = m.id
		}
	}
	if act := actions[p.Kind]; act != nil {
		return act(s, p)
	}
	return nil
}

// fill sets the sender, and the fields that the sender left out (MEW-3, MEW-J6).
func (p *submission) fill() {
	p.From = p.by.id
	if p.ID == "" {
		p.ID = envelope.NewID()
	}
	if p.Time == "" {
		p.Time = envelope.FormatTime(p.at)
	}
}

// checkState refuses an envelope of a participant that is paused or shut down, unless the rule r of its kind allows it
// (MEW-37, MEW-42).
func (s *Space) checkState(m *member, r envelope.Rule) *envelope.Refusal {
	switch {
	case m.down && !r.AfterShutdown:
		return envelope.RefuseWithName(403, "participant_shutdown")
	case !r.WhilePaused && m.isPaused(time.Now()):
		return envelope.RefuseDuringPause(m.pausedUntil)
	}
	return nil
}

// checkCapabilities refuses an envelope that no capability of the sender allows, and logs the decision.
func (s *Space) checkCapabilities(p *submission) *envelope.Refusal {
	to := make([]capability.Addressee, len(p.Envelope.To))
	for i, id := range p.Envelope.To {
		to[i] = capability.Addressee{Name: id, ID: id}
		if m := s.members.find(id); m != nil {
			to[i] = capability.Addressee{Name: m.name, ID: m.id}
		}
	}
	match := capability.FirstAllowing(p.by.caps, p.Kind, to, p.Payload)
	s.gatewayCfg.Journal.logDecision(s.cfg.ID, p, match)
	if match == nil {
		s.auditRefusal(p.by, "capability_violation", "", "refused")
		return envelope.RefuseCapability(p.by.id, p.Kind, p.by.shown)
	}
	return nil
}

// maxRefusalLines bounds the refusals of one participant that are logged at level info, per minute.
const maxRefusalLines = 20

// reportRefusal reports a refusal in the logs and to the sender. Nobody else in the space learns of it (MEW-36, MEW-H2).
func (s *Space) reportRefusal(p *submission, r *envelope.Refusal) {
	s.gatewayCfg.Journal.logInbound(s.cfg.ID, p, nil, r.Reason)
	level := slog.LevelInfo
	if exceedsRate(&p.by.refusals, maxRefusalLines) {
		level = slog.LevelDebug
	}
	s.gatewayCfg.Logger.Log(context.Background(), level, "envelope refused", "space", s.cfg.ID, "participant", p.by.name, "kind", envelope.ToPrintable(p.Kind, envelope.MaxKind), "reason", r.Reason)
	s.out.tell(p.by, r.Envelope(p.by.id, p.ID))
}

// send delivers an accepted envelope with the envelopes that its action added.
func (s *Space) send(p *submission) {
	s.out.scratch = p.AppendDelivery(s.out.scratch[:0], p.to)
	f := websocket.Text(s.out.scratch)
	s.gatewayCfg.Journal.logInbound(s.cfg.ID, p, f.Payload(), "")
	s.board.Observe(&p.Envelope, p.at)
	for _, o := range p.before {
		if id := s.out.announce(o); p.opened != nil {
			p.opened.openID = id
		}
	}
	if !p.silent {
		s.out.broadcast(p.ID, f)
	}
	s.announceAll(p.after)
	if p.direct != nil {
		s.out.tell(p.by, *p.direct)
	}
	for _, f := range p.afterSend {
		f()
	}
}

func (s *Space) announceAll(list []envelope.Outgoing) {
	for _, o := range list {
		s.out.announce(o)
	}
}

// tick removes what has expired: streams whose owner stays away (MEW-52), old proposals and old reasoning.
func (s *Space) tick(now time.Time) {
	s.mu.Lock()
	defer s.unlock()
	s.announceAll(s.streams.endOrphans(now))
	s.proposals.expire(now)
	s.board.Expire(now)
}
