package gateway

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

// session is one live connection (MEW-61).
type session struct {
	conn      *websocket.Conn
	id        string // connection_id
	since     time.Time
	space     *Space
	m         *member
	tokenHash string
	rejoins   []time.Time // of the last minute
}

// The bounds of a minute: a welcome names everybody in the space and all that they may, for a join of a few bytes.
const (
	maxTakeovers = 6 // MEW-J5
	maxRejoins   = 20
)

// often counts an event, and says whether there were too many of them in the last minute.
func often(events *[]time.Time, most int) bool {
	now := time.Now()
	*events = slices.DeleteFunc(*events, func(t time.Time) bool { return now.Sub(t) > time.Minute })
	if len(*events) >= most {
		return true
	}
	*events = append(*events, now)
	return false
}

// join lets a connection in under the runtime id that it asked for, or its name (MEW-J4).
func (s *Space) join(ses *session, asked string) *envelope.Refusal {
	s.mu.Lock()
	defer s.unlock()
	m := ses.m
	if s.stopping {
		return &envelope.Refusal{Close: websocket.CodeGoingAway, From: envelope.FromSystem, Payload: wire.Obj(wire.TextField("error", "going_down"))}
	}
	if m.lasting.Barred || slices.Contains(m.lasting.Dead, ses.tokenHash) {
		return envelope.RefuseUnauthorized("Authentication failed")
	}
	runtime := strings.Clone(cmp.Or(asked, m.name))
	if fault := s.members.check(m, runtime); fault != nil {
		return fault
	}
	old := m.session
	if old != nil {
		if often(&m.takeovers, maxTakeovers) {
			r := envelope.RefuseRate(time.Minute)
			r.Close = envelope.CloseTakeovers
			return r
		}
		old.conn.Close(envelope.CloseReplaced, "replaced by a newer connection")
	}
	s.members.rename(m, runtime)
	m.session, m.down = ses, false
	ses.since = time.Now()
	s.out.seat(m)
	s.welcome(m)
	s.gate.Logger.Info("participant joined", "space", s.cfg.ID, "participant", m.name, "id", runtime, "connection", ses.id, "replaced", old != nil)
	if old == nil && !m.virtualOn {
		s.out.announcePresence("join", m.info(), m)
	}
	return nil
}

// rejoin answers a repeated join of a connection that is in (MEW-J2).
func (s *Space) rejoin(ses *session) {
	s.mu.Lock()
	defer s.unlock()
	switch {
	case ses.m.session != ses:
	case often(&ses.rejoins, maxRejoins):
		s.out.tell(ses.m, envelope.RefuseRate(time.Minute).Envelope(ses.m.runtime, ""))
	default:
		s.welcome(ses.m)
	}
}

// leave ends a connection's part in the space. One that was replaced has none any more (MEW-J5).
func (s *Space) leave(ses *session) {
	s.mu.Lock()
	defer s.unlock()
	s.leaveLocked(ses)
}

func (s *Space) leaveLocked(ses *session) {
	m := ses.m
	if m.session != ses {
		return
	}
	m.session = nil
	id := m.runtime
	s.gate.Logger.Info("participant left", "space", s.cfg.ID, "participant", m.name, "id", id, "connection", ses.id)
	s.out.reseat()
	if !m.virtualOn {
		s.announceLeave(m)
		s.board.Leave(id)
	}
	s.members.rename(m, m.name)
	if m.virtualOn { // its log goes on under the name
		s.out.seat(m)
	}
}

// announceLeave says that a participant left, and what of its part in streams ended with it.
func (s *Space) announceLeave(m *member) {
	s.out.announcePresence("leave", wire.Obj(wire.TextField("id", m.runtime)), m)
	s.announceAll(s.streams.leave(m))
}

// welcome tells a participant that joins who it is, what it may do, who else is there and what streams run (MEW-34).
func (s *Space) welcome(m *member) {
	streams, cut := s.streams.list()
	s.out.welcome(m, cut, wire.Field("active_streams", streams))
}

// connectVirtual lets an output log take part (MEW-D6).
func (s *Space) connectVirtual(m *member) {
	if m.output == nil || m.virtualOn {
		return
	}
	m.virtualOn = true
	s.out.seat(m)
	s.welcome(m)
}
