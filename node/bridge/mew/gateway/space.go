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

// Space is one space: its participants, streams and history, and the one order of its envelopes (MEW-Q1). Nothing of
// it is shared with another space (MEW-20).
type Space struct {
	cfg    SpaceConfig // without the participants, whose tokens nobody keeps
	gate   *Config     // of the gateway
	tokens *tokens
	rates  *rate.Buckets // nil: no limit

	mu        sync.Mutex // guards what follows
	members   members
	out       delivery
	streams   streams
	board     view.Board
	proposals proposals
	stopping  bool
}

// post is an envelope on its way through the space.
type post struct {
	envelope.Envelope
	by        *member
	transport string
	at        time.Time
	to        []string // e.to with names resolved

	// What the act of its kind decides.
	silent bool                // the order itself is not broadcast
	before []envelope.Outgoing // broadcast before the envelope
	after  []envelope.Outgoing // broadcast after it
	then   []func()            // runs when all is sent
	status string              // of the HTTP answer, "accepted" where empty
	extra  []wire.Member       // of the HTTP answer
	code   int                 // of the HTTP answer, 200 where 0
	direct *envelope.Outgoing  // to the sender alone
	opened *stream             // by it: gets the id of its stream/open
}

// receipt is what HTTP answers for an envelope.
type receipt struct {
	code int
	body wire.Value
}

// receive judges, logs and sends one envelope of m (MEW-56).
func (s *Space) receive(m *member, data []byte, transport string) (receipt, *envelope.Refusal) {
	e, fault := envelope.Parse(data)
	s.mu.Lock()
	defer s.unlock()
	return s.handle(m, e, fault, transport)
}

// unlock settles what sending left behind, and lets the next one in.
func (s *Space) unlock() {
	for len(s.out.slow) > 0 {
		slow := s.out.slow
		s.out.slow = nil
		for _, ses := range slow {
			s.leaveLocked(ses)
		}
	}
	s.mu.Unlock()
}

func (s *Space) handle(m *member, e envelope.Envelope, fault *envelope.Refusal, transport string) (receipt, *envelope.Refusal) {
	p := &post{Envelope: e, by: m, transport: transport, at: s.out.history.tick(time.Now())}
	if fault == nil {
		fault = s.judge(p)
	}
	if fault != nil {
		s.refused(p, fault)
		return receipt{}, fault
	}
	s.send(p)
	body := wire.Obj(wire.TextField("id", p.ID), wire.TextField("status", cmp.Or(p.status, "accepted")))
	for _, m := range p.extra {
		body = body.With(m.Key, m.Value)
	}
	body = body.With("timestamp", wire.Text(envelope.FormatTime(p.at)))
	if p.code == 0 {
		p.code = 200
	}
	return receipt{p.code, body}, nil
}

// judge checks an envelope in the order of docs/bridges/mew.md and lets its kind act.
func (s *Space) judge(p *post) *envelope.Refusal {
	if p.HasFrom && p.From != p.by.name && p.From != p.by.runtime { // MEW-53, MEW-J6
		return envelope.RefuseWith(403, "identity_mismatch", "from must be "+p.by.runtime)
	}
	r := envelope.RuleOf(p.Kind)
	if r.Reserved && !(r.DropIn && s.cfg.DropIn) { // MEW-54
		return envelope.RefuseReserved(p.Kind)
	}
	if s.rates != nil {
		if wait, ok := s.rates.Take(p.by.name, time.Now()); !ok {
			return envelope.RefuseRate(wait)
		}
	}
	if fault := s.mayAct(p.by, r); fault != nil {
		return fault
	}
	p.fill()
	if fault := s.allowed(p); fault != nil {
		return fault
	}
	if r.Kept {
		p.Detach()
	}
	switch {
	case r.Correlated && len(p.Correlation) == 0:
		return envelope.RefuseShape(p.Kind + " needs a correlation_id")
	case r.Context && p.Context == "":
		return envelope.RefuseShape(p.Kind + " needs the context that its sequence began with")
	}
	p.to = slices.Clone(p.Envelope.To)
	for i, id := range p.to {
		if m := s.members.find(id); m != nil {
			p.to[i] = m.runtime
		}
	}
	if act := acts[p.Kind]; act != nil {
		return act(s, p)
	}
	return nil
}

// fill sets what the sender left out (MEW-3, MEW-J6).
func (p *post) fill() {
	p.From = p.by.runtime
	if p.ID == "" {
		p.ID = envelope.NewID()
	}
	if p.Time == "" {
		p.Time = envelope.FormatTime(p.at)
	}
}

// mayAct holds back who is paused or shut down (MEW-37, MEW-42).
func (s *Space) mayAct(m *member, r envelope.Rule) *envelope.Refusal {
	switch {
	case m.down && !r.Shutdown:
		return envelope.RefuseName(403, "participant_shutdown")
	case !r.Paused && m.isPaused(time.Now()):
		return envelope.RefusePaused(m.pausedUntil)
	}
	return nil
}

// allowed asks the capabilities of the sender and logs the decision.
func (s *Space) allowed(p *post) *envelope.Refusal {
	to := make([]capability.Addressee, len(p.Envelope.To))
	for i, id := range p.Envelope.To {
		to[i] = capability.Addressee{Name: id, Runtime: id}
		if m := s.members.find(id); m != nil {
			to[i] = capability.Addressee{Name: m.name, Runtime: m.runtime}
		}
	}
	match := capability.FirstAllowing(p.by.caps, p.Kind, to, p.Payload)
	s.gate.Journal.decided(s.cfg.ID, p, match)
	if match == nil {
		s.auditRefused(p.by, "capability_violation", "", "refused") // MEW-36: nobody else is told
		return envelope.RefuseCapability(p.by.runtime, p.Kind, p.by.shown)
	}
	return nil
}

// maxRefusalLines bounds the refusals of one participant that the log of a minute shows at level info.
const maxRefusalLines = 20

// refused tells the sender, and the history (MEW-36, MEW-H2).
func (s *Space) refused(p *post, r *envelope.Refusal) {
	s.gate.Journal.received(s.cfg.ID, p, nil, r.Reason)
	level := slog.LevelInfo
	if often(&p.by.refusals, maxRefusalLines) {
		level = slog.LevelDebug
	}
	s.gate.Logger.Log(context.Background(), level, "envelope refused", "space", s.cfg.ID, "participant", p.by.name, "kind", envelope.ToPrintable(p.Kind, envelope.MaxKind), "reason", r.Reason)
	s.out.tell(p.by, r.Envelope(p.by.runtime, p.ID))
}

// send delivers an accepted envelope and what goes with it.
func (s *Space) send(p *post) {
	s.out.scratch = p.AppendStamped(s.out.scratch[:0], p.to)
	f := websocket.Text(s.out.scratch)
	s.gate.Journal.received(s.cfg.ID, p, f.Payload(), "")
	s.board.See(&p.Envelope, p.at)
	for _, o := range p.before {
		if id := s.out.announce(o, nil); p.opened != nil {
			p.opened.openID = id
		}
	}
	if !p.silent {
		s.out.broadcast(p.ID, f, nil)
	}
	for _, o := range p.after {
		s.out.announce(o, nil)
	}
	if p.direct != nil {
		s.out.tell(p.by, *p.direct)
	}
	for _, f := range p.then {
		f()
	}
}

// announceAll sends envelopes of the gateway to everybody.
func (s *Space) announceAll(list []envelope.Outgoing) {
	for _, o := range list {
		s.out.announce(o, nil)
	}
}

// tick does what time brings: streams whose owner stays away end (MEW-52).
func (s *Space) tick(now time.Time) {
	s.mu.Lock()
	defer s.unlock()
	s.announceAll(s.streams.endOrphans(now))
	s.proposals.expire(now)
	s.board.Expire(now)
}
