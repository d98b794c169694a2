package mew

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Space is one space: its participants, streams and history, and the one order of its envelopes (MEW-Q1). Nothing of
// it is shared with another space (MEW-20).
type Space struct {
	id, title    string
	dropIn       bool // mcp/response is implicit (MEW-D7)
	inviteSubset bool // inviters give only what they hold (MEW-27)
	defaults     []capability.Capability
	publicURL    string // of the gateway: ws(s)://host, without a path
	records      store.Records
	audit        *acl.Audit
	tokens       *tokens
	journal      *Journal // nil: none
	invited      func(Invitation) store.Change
	rates        *rate.Buckets // nil: no limit
	log          *slog.Logger

	mu        sync.Mutex
	members   map[string]*member // by name
	byID      map[string]*member // by runtime id, of those whose id is not their name
	seats     []*seat            // who gets what is sent; replaced, never changed
	slow      []*session         // overflowed while something was sent
	streams   map[string]*stream
	lastNo    int                // of the streams
	announced map[string]*member // ids of streams that participants announced themselves, and who did
	operator  *member            // the owner; nil in a drop-in space
	board     board
	proposals proposals
	history   history
	watch     watchers
	stopping  bool
	scratch   []byte
}

// seat is a place to which envelopes go. It is immutable: log lines are made of it later.
type seat struct {
	m       *member
	id      string          // runtime
	conn    *websocket.Conn // nil for an output log
	session *session        // of conn
	output  *virtual        // nil for a connection
	how     string          // transport, for the history
}

// maxMembers bounds the participants of a space.
const maxMembers = 20_000

func (s *Space) add(name string, own []capability.Capability) *member {
	m := &member{name: name, runtime: name, own: own, lasting: &lasting{Space: s.id, Name: name}}
	m.recompute(s.dropIn)
	s.members[name] = m
	return m
}

// find resolves a name or a runtime id (MEW-22, MEW-J7).
func (s *Space) find(id string) *member {
	if m := s.members[id]; m != nil {
		return m
	}
	return s.byID[id]
}

// resolved returns the runtime id of whatever a participant was called.
func (s *Space) resolved(id string) string {
	if m := s.find(id); m != nil {
		return m.runtime
	}
	return id
}

// reseat rebuilds the list of who gets envelopes.
func (s *Space) reseat() {
	seats := make([]*seat, 0, len(s.seats)+1)
	for _, old := range s.seats { // those who were there keep their places
		if old.conn != nil && old.m.session == old.session || old.output != nil && old.m.virtualOn && old.id == old.m.runtime {
			seats = append(seats, old)
		}
	}
	s.seats = seats
}

// seatFor gives a member that came a place.
func (s *Space) seatFor(m *member) {
	s.reseat()
	if m.session != nil && !slices.ContainsFunc(s.seats, func(st *seat) bool { return st.session == m.session && st.session != nil }) {
		s.seats = append(s.seats[:len(s.seats):len(s.seats)], &seat{m: m, id: m.runtime, conn: m.session.conn, session: m.session, how: "websocket"})
	}
	if m.virtualOn && !slices.ContainsFunc(s.seats, func(st *seat) bool { return st.m == m && st.output != nil }) {
		s.seats = append(s.seats[:len(s.seats):len(s.seats)], &seat{m: m, id: m.runtime, output: m.output, how: "virtual"})
	}
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
	for len(s.slow) > 0 {
		slow := s.slow
		s.slow = nil
		for _, ses := range slow {
			s.leaveLocked(ses)
		}
	}
	s.mu.Unlock()
}

func (s *Space) handle(m *member, e envelope.Envelope, fault *envelope.Refusal, transport string) (receipt, *envelope.Refusal) {
	p := &post{Envelope: e, by: m, transport: transport, at: s.history.tick(time.Now())}
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
	r := ruleOf(p.Kind)
	if r.reserved && !(r.dropIn && s.dropIn) { // MEW-54
		return envelope.RefuseReserved(p.Kind)
	}
	if s.rates != nil {
		if wait, ok := s.rates.Take(p.by.name, time.Now()); !ok {
			return envelope.RefuseRate(wait)
		}
	}
	if fault := s.mayAct(p.by, p.at, r); fault != nil {
		return fault
	}
	p.fill()
	if fault := s.allowed(p); fault != nil {
		return fault
	}
	if r.kept {
		p.Detach()
	}
	switch {
	case r.correlated && len(p.Correlation) == 0:
		return envelope.RefuseShape(p.Kind + " needs a correlation_id")
	case r.context && p.Context == "":
		return envelope.RefuseShape(p.Kind + " needs the context that its sequence began with")
	}
	p.to = make([]string, len(p.Envelope.To))
	for i, id := range p.Envelope.To {
		p.to[i] = s.resolved(id)
	}
	if r.act == nil {
		return nil
	}
	return r.act(s, p)
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
func (s *Space) mayAct(m *member, now time.Time, r rule) *envelope.Refusal {
	switch {
	case m.down && !r.shutdown:
		return envelope.RefuseName(403, "participant_shutdown")
	case !r.paused && m.isPaused(time.Now()):
		return envelope.RefusePaused(m.pausedUntil)
	}
	return nil
}

// allowed asks the capabilities of the sender and logs the decision.
func (s *Space) allowed(p *post) *envelope.Refusal {
	to := make([]capability.Addressee, len(p.Envelope.To))
	for i, id := range p.Envelope.To {
		to[i] = capability.Addressee{Name: id, Runtime: id}
		if m := s.find(id); m != nil {
			to[i] = capability.Addressee{Name: m.name, Runtime: m.runtime}
		}
	}
	match := capability.FirstAllowing(p.by.caps, p.Kind, to, p.Payload)
	s.journal.decided(s.id, p, match)
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
	s.journal.rejected(s, p, r)
	level := slog.LevelInfo
	if often(&p.by.refusals, maxRefusalLines) {
		level = slog.LevelDebug
	}
	s.log.Log(context.Background(), level, "envelope refused", "space", s.id, "participant", p.by.name, "kind", envelope.ToPrintable(p.Kind, envelope.MaxKind), "reason", r.Reason)
	s.tell(p.by, r.Envelope(p.by.runtime, p.ID))
}

// send delivers an accepted envelope and what goes with it.
func (s *Space) send(p *post) {
	s.scratch = p.AppendStamped(s.scratch[:0], p.to)
	f := websocket.Text(s.scratch)
	s.journal.received(s, p, f.Payload())
	s.board.see(&p.Envelope, p.at)
	for _, o := range p.before {
		if id := s.announce(o, nil); p.opened != nil {
			p.opened.openID = id
		}
	}
	if !p.silent {
		s.broadcast(p.ID, f, nil)
	}
	for _, o := range p.after {
		s.announce(o, nil)
	}
	if p.direct != nil {
		s.tell(p.by, *p.direct)
	}
	for _, f := range p.then {
		f()
	}
}

// announce sends an envelope of the gateway to everybody but except.
func (s *Space) announce(o envelope.Outgoing, except *member) (id string) {
	id = envelope.NewID()
	s.scratch = o.Append(s.scratch[:0], id, envelope.FormatTime(time.Now()))
	s.broadcast(id, websocket.Text(s.scratch), except)
	return id
}

// broadcast sends one envelope to every seat and into the history. It was encoded once (MEW-Q2).
func (s *Space) broadcast(id string, f *websocket.Frame, except *member) {
	seats := s.seats
	for _, st := range seats {
		if st.m == except {
			continue
		}
		if st.output != nil {
			st.output.write(f.Payload())
		} else if err := st.conn.Send(f); err != nil {
			s.slow = append(s.slow, st.session)
		}
	}
	s.history.add(s.history.tick(time.Now()), f.Payload(), except)
	s.journal.delivered(s, id, f.Payload(), seats, except)
	s.watch.wake(f.Payload())
}

// tell sends an envelope of the gateway to one participant: its connection and its log.
func (s *Space) tell(m *member, o envelope.Outgoing) {
	if m.session == nil && !m.virtualOn {
		return
	}
	id := envelope.NewID()
	raw := o.Append(nil, id, envelope.FormatTime(time.Now()))
	f := websocket.Text(raw)
	for _, st := range s.seats {
		if st.m != m {
			continue
		}
		if st.output != nil {
			st.output.write(raw)
		} else if err := st.conn.Send(f); err != nil {
			s.slow = append(s.slow, st.session)
		}
		s.journal.told(s, id, o, st)
	}
}

// tick does what time brings: streams whose owner stays away end (MEW-52).
func (s *Space) tick(now time.Time) {
	s.mu.Lock()
	defer s.unlock()
	s.endOrphans(now)
	s.proposals.expire(now)
	s.board.expire(now)
}
