package mew

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
	byHeader  bool // welcomed for its header
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
	if fault := s.mayBe(m, runtime); fault != nil {
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
	s.rename(m, runtime)
	m.session, m.down = ses, false
	ses.since = time.Now()
	s.seatFor(m)
	s.welcome(m)
	s.log.Info("participant joined", "space", s.id, "participant", m.name, "id", runtime, "connection", ses.id, "replaced", old != nil)
	if old == nil && !m.virtualOn {
		s.presence(m, "join")
	}
	return nil
}

// mayBe says what is wrong with a runtime id for m.
func (s *Space) mayBe(m *member, id string) *envelope.Refusal {
	if !envelope.IsName(id) {
		return envelope.RefuseUnauthorized("The participant id cannot be used")
	}
	if other := s.find(id); other != nil && other != m {
		return envelope.RefuseUnauthorized("The participant id belongs to another participant")
	}
	return nil
}

// rename gives m another runtime id.
func (s *Space) rename(m *member, runtime string) {
	if m.runtime != m.name {
		delete(s.byID, m.runtime)
	}
	m.runtime = runtime
	if runtime != m.name {
		s.byID[runtime] = m
	}
}

// rejoin answers a repeated join of a connection that is in (MEW-J2).
func (s *Space) rejoin(ses *session) {
	s.mu.Lock()
	defer s.unlock()
	switch {
	case ses.m.session != ses:
	case often(&ses.rejoins, maxRejoins):
		s.tell(ses.m, envelope.RefuseRate(time.Minute).Envelope(ses.m.runtime, ""))
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
	s.log.Info("participant left", "space", s.id, "participant", m.name, "id", id, "connection", ses.id)
	s.reseat()
	if !m.virtualOn {
		s.announce(envelope.Outgoing{From: envelope.FromSystem, Kind: envelope.KindPresence, Payload: wire.Obj(
			wire.TextField("event", "leave"), wire.Field("participant", wire.Obj(wire.TextField("id", id))))}, m)
		s.streamsWithout(m)
		s.board.left(id)
	}
	s.rename(m, m.name)
	if m.virtualOn { // its log goes on under the name
		s.seatFor(m)
	}
}

// presence says that somebody came (MEW-33).
func (s *Space) presence(m *member, event string) {
	s.announce(envelope.Outgoing{From: envelope.FromSystem, Kind: envelope.KindPresence, Payload: wire.Obj(
		wire.TextField("event", event), wire.Field("participant", m.info()))}, m)
}

// The bounds of a welcome (MEW-Q4), which with the streams keep it below a mebibyte.
const (
	maxWelcomeCaps   = 384 << 10 // bytes of participants with their capabilities, the own entry first
	maxWelcomePeople = 448 << 10 // bytes of participants, from then on without capabilities
)

// welcome tells a participant that joins who it is, what it may do, who else is there and what streams run (MEW-34).
func (s *Space) welcome(m *member) {
	streams, cut := s.activeStreams()
	s.sendWelcome(m, cut, wire.Field("active_streams", streams))
}

// refresh tells a participant what it may do now. The streams have not changed with its rights.
func (s *Space) refresh(m *member) { s.sendWelcome(m, false) }

// sendWelcome adds "truncated" if something did not fit.
func (s *Space) sendWelcome(m *member, cut bool, more ...wire.Member) {
	you := m.info()
	size := len(you.JSON())
	others := make([]wire.Value, 0, len(s.seats))
	for _, st := range s.seats {
		if st.m == m || st.conn == nil && st.m.session != nil {
			continue
		}
		info := st.m.info()
		if size+len(info.JSON()) > maxWelcomeCaps {
			info, cut = st.m.infoWith(wire.Arr()), true
		}
		if size += len(info.JSON()); size > maxWelcomePeople {
			break
		}
		others = append(others, info)
	}
	members := append([]wire.Member{{Key: "you", Value: you}, {Key: "participants", Value: wire.Arr(others...)}}, more...)
	if cut || m.cut {
		members = append(members, wire.Field("truncated", wire.Bool(true)))
	}
	s.tell(m, envelope.Outgoing{From: envelope.FromSystem, Kind: envelope.KindWelcome, To: []string{m.runtime}, Payload: wire.Obj(members...)})
}

// connectVirtual lets an output log take part (MEW-D6).
func (s *Space) connectVirtual(m *member) {
	if m.output == nil || m.virtualOn {
		return
	}
	m.virtualOn = true
	s.seatFor(m)
	s.welcome(m)
}
