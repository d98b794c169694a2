package gateway

import (
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

// delivery is who gets what is sent in a space, and who reads it later. The lock of the space guards it.
type delivery struct {
	space   string
	journal *Journal   // nil: none
	seats   []*seat    // replaced, never changed
	slow    []*session // overflowed while something was sent
	history history
	polls   polls
	feeds   view.Feeds
	scratch []byte
}

// seat is a place to which envelopes go. It is immutable: log lines are made of it later.
type seat struct {
	m       *member
	id      string          // runtime
	conn    *websocket.Conn // nil for an output log
	session *session        // of conn
	output  *lineFile       // nil for a connection
	how     string          // transport, for the history
}

// reseat drops the seats of those who left.
func (d *delivery) reseat() {
	seats := make([]*seat, 0, len(d.seats)+1)
	for _, old := range d.seats { // those who were there keep their places
		if old.conn != nil && old.m.session == old.session || old.output != nil && old.m.virtualOn && old.id == old.m.runtime {
			seats = append(seats, old)
		}
	}
	d.seats = seats
}

// seat gives a member that came a place.
func (d *delivery) seat(m *member) {
	d.reseat()
	if m.session != nil && !slices.ContainsFunc(d.seats, func(st *seat) bool { return st.session == m.session }) {
		d.seats = append(d.seats[:len(d.seats):len(d.seats)], &seat{m: m, id: m.runtime, conn: m.session.conn, session: m.session, how: "websocket"})
	}
	if m.virtualOn && !slices.ContainsFunc(d.seats, func(st *seat) bool { return st.m == m && st.output != nil }) {
		d.seats = append(d.seats[:len(d.seats):len(d.seats)], &seat{m: m, id: m.runtime, output: m.output, how: "virtual"})
	}
}

// send puts a frame into the queue of a seat.
func (d *delivery) send(st *seat, f *websocket.Frame) {
	if st.output != nil {
		st.output.putLine(f.Payload())
	} else if err := st.conn.Send(f); err != nil {
		d.slow = append(d.slow, st.session)
	}
}

// pass sends a stream frame to a list of members, or to everybody if the list is nil.
func (d *delivery) pass(f *websocket.Frame, to []*member) {
	for _, st := range d.seats {
		if st.conn != nil && (to == nil || slices.Contains(to, st.m)) {
			d.send(st, f)
		}
	}
}

// announce sends an envelope of the gateway to everybody but except.
func (d *delivery) announce(o envelope.Outgoing, except *member) (id string) {
	id = envelope.NewID()
	d.scratch = o.Append(d.scratch[:0], id, envelope.FormatTime(time.Now()))
	d.broadcast(id, websocket.Text(d.scratch), except)
	return id
}

// announcePresence says that a participant came, left or was invited (MEW-33).
func (d *delivery) announcePresence(event string, who wire.Value, except *member, more ...wire.Member) {
	members := append([]wire.Member{wire.TextField("event", event), {Key: "participant", Value: who}}, more...)
	d.announce(envelope.Outgoing{From: envelope.FromSystem, Kind: envelope.KindPresence, Payload: wire.Obj(members...)}, except)
}

// broadcast sends one envelope to every seat and into the history. It was encoded once (MEW-Q2).
func (d *delivery) broadcast(id string, f *websocket.Frame, except *member) {
	for _, st := range d.seats {
		if st.m != except {
			d.send(st, f)
		}
	}
	d.history.add(d.history.tick(time.Now()), f.Payload(), except)
	d.journal.delivered(d.space, d.history.last, id, f.Payload(), d.seats, except)
	d.polls.wake()
	d.feeds.Tell(f.Payload())
}

// tell sends an envelope of the gateway to one participant: its connection and its log.
func (d *delivery) tell(m *member, o envelope.Outgoing) {
	if !m.present() {
		return
	}
	id := envelope.NewID()
	f := websocket.Text(o.Append(nil, id, envelope.FormatTime(time.Now())))
	for _, st := range d.seats {
		if st.m == m {
			d.send(st, f)
			d.journal.told(d.space, id, o, st)
		}
	}
}

// The bounds of a welcome (MEW-Q4), which with the streams keep it below a mebibyte.
const (
	maxWelcomeCaps   = 384 << 10 // bytes of participants with their capabilities, the own entry first
	maxWelcomePeople = 448 << 10 // bytes of participants, from then on without capabilities
)

// welcome tells a participant who it is, what it may do and who else is there (MEW-34). It adds "truncated" if something
// did not fit; cut means that something of more did not.
func (d *delivery) welcome(m *member, cut bool, more ...wire.Member) {
	you := m.info()
	size := len(you.JSON())
	others := make([]wire.Value, 0, len(d.seats))
	for _, st := range d.seats {
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
	d.tell(m, envelope.Outgoing{From: envelope.FromSystem, Kind: envelope.KindWelcome, To: []string{m.runtime}, Payload: wire.Obj(members...)})
}
