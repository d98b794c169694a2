package gateway

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

// session is one live connection (MEW-61).
type session struct {
	conn    *websocket.Conn
	id      string    // the connection id
	since   time.Time // when it joined
	space   *Space    // set, with m and key, once the client has shown a valid token
	m       *member
	key     credential.Hash // of the token
	rejoins []time.Time     // times of the repeated joins in the last minute
}

// These bound joins per minute, because a join of a few bytes makes the gateway send a welcome that describes everybody
// in the space.
const (
	maxTakeovers = 6 // MEW-J5
	maxRejoins   = 20
)

// exceedsRate reports whether the limit of events in a minute is reached. If not, it counts another event.
func exceedsRate(events *[]time.Time, limit int) bool {
	now := time.Now()
	*events = slices.DeleteFunc(*events, func(t time.Time) bool { return now.Sub(t) > time.Minute })
	if len(*events) >= limit {
		return true
	}
	*events = append(*events, now)
	return false
}

// join adds a connection under the requested id or, if that is empty, under its member's name (MEW-J4).
func (s *Space) join(ses *session, requestedID string) *envelope.Refusal {
	s.mu.Lock()
	defer s.unlock()
	m := ses.m
	if s.stopping {
		return &envelope.Refusal{Close: websocket.CodeGoingAway, From: envelope.FromSystem, Payload: wire.Obj(wire.TextField("error", "going_down"))}
	}
	if !m.admits(ses.key) {
		return envelope.RefuseToken("Authentication failed")
	}
	id := strings.Clone(cmp.Or(requestedID, m.name))
	if fault := s.members.checkID(m, id); fault != nil {
		return fault
	}
	old := m.session
	if old != nil {
		if exceedsRate(&m.takeovers, maxTakeovers) {
			r := envelope.RefuseRate(time.Minute)
			r.Close = envelope.CloseTooManyTakeovers
			return r
		}
		old.conn.Close(envelope.CloseReplaced, "replaced by a newer connection")
	}
	oldID := m.id
	s.members.rename(m, id)
	m.session, m.down = ses, false
	ses.since = time.Now()
	s.out.addReceiver(m)
	s.welcome(m)
	s.gatewayCfg.Logger.Info("participant joined", "space", s.cfg.ID, "participant", m.name, "id", id, "connection", ses.id, "replaced", old != nil)
	if m.joinedByLog || old != nil && oldID == id {
		return nil
	}
	if old != nil { // the others know the participant by its old id
		s.out.announcePresence("leave", wire.Obj(wire.TextField("id", oldID)), m)
		s.board.Leave(oldID)
	}
	s.out.announcePresence("join", m.info(), m)
	return nil
}

// rejoin answers a join on a connection that has joined already (MEW-J2).
func (s *Space) rejoin(ses *session) {
	s.mu.Lock()
	defer s.unlock()
	switch {
	case ses.m.session != ses: // replaced or kicked, and being closed
	case exceedsRate(&ses.rejoins, maxRejoins):
		s.out.tell(ses.m, envelope.RefuseRate(time.Minute).Envelope(ses.m.id, ""))
	default:
		s.welcome(ses.m)
	}
}

// leave ends the session of a connection in the space. It does nothing for a connection that was replaced (MEW-J5).
func (s *Space) leave(ses *session) {
	s.mu.Lock()
	defer s.unlock()
	s.endSession(ses)
}

// endSession works like [Space.leave]. The caller holds s.mu.
func (s *Space) endSession(ses *session) {
	m := ses.m
	if m.session != ses {
		return
	}
	m.session = nil
	id := m.id
	s.gatewayCfg.Logger.Info("participant left", "space", s.cfg.ID, "participant", m.name, "id", id, "connection", ses.id)
	s.out.removeGone()
	if !m.joinedByLog {
		s.announceLeave(m)
		s.board.Leave(id)
	}
	s.members.rename(m, m.name)
	if m.joinedByLog { // the participant stays in the space through its output log, under its name
		s.out.addReceiver(m)
	}
}

// announceLeave announces that a participant left, and the changes of streams that follow from it.
func (s *Space) announceLeave(m *member) {
	s.out.announcePresence("leave", wire.Obj(wire.TextField("id", m.id)), m)
	s.announceAll(s.streams.leave(m))
}

// welcome sends a joining participant its id, its capabilities, the other participants and the open streams (MEW-34).
func (s *Space) welcome(m *member) {
	streams, cut := s.streams.list()
	s.out.welcome(m, cut, wire.Field("active_streams", streams))
}

// joinByLog brings a participant into the space through its output log, a file that gets its envelopes, instead of a
// connection. It does not announce the participant to the others (MEW-D6).
func (s *Space) joinByLog(m *member) {
	if m.output == nil || m.joinedByLog {
		return
	}
	m.joinedByLog = true
	s.out.addReceiver(m)
	s.welcome(m)
}
