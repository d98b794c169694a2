package gateway

import (
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

// delivery sends envelopes to the participants of a space and keeps them for polls. The lock of the space guards it.
type delivery struct {
	space     string
	journal   *Journal    // nil: no log
	receivers []*receiver // replaced, never changed
	slow      []*session  // connections that accept no more frames
	history   history
	changed   waiting.Signal // wakes the polls
	feeds     waiting.Feeds[[]byte]
	scratch   []byte // reused to encode envelopes
}

// receiver gets the envelopes for a participant: it is a connection or a file, the output log of the participant. It is
// immutable, because queued lines of the envelope log refer to it.
type receiver struct {
	m         *member
	id        string          // the id of m when the receiver was added
	conn      *websocket.Conn // nil for an output log
	session   *session        // the session of conn
	output    *lineFile       // nil for a connection
	transport string          // as the envelope log names it
}

// removeGone removes the receivers whose session or output log is no longer in the space, and output logs whose
// participant has another id now.
func (d *delivery) removeGone() {
	receivers := make([]*receiver, 0, len(d.receivers)+1)
	for _, old := range d.receivers { // keeps the order
		if old.conn != nil && old.m.session == old.session || old.output != nil && old.m.joinedByLog && old.id == old.m.id {
			receivers = append(receivers, old)
		}
	}
	d.receivers = receivers
}

// addReceiver adds the session and the output log of m, unless they are receivers already.
func (d *delivery) addReceiver(m *member) {
	d.removeGone()
	if m.session != nil && !slices.ContainsFunc(d.receivers, func(r *receiver) bool { return r.session == m.session }) {
		d.receivers = append(d.receivers[:len(d.receivers):len(d.receivers)], &receiver{m: m, id: m.id, conn: m.session.conn, session: m.session, transport: "websocket"})
	}
	if m.joinedByLog && !slices.ContainsFunc(d.receivers, func(r *receiver) bool { return r.m == m && r.output != nil }) {
		d.receivers = append(d.receivers[:len(d.receivers):len(d.receivers)], &receiver{m: m, id: m.id, output: m.output, transport: "virtual"})
	}
}

// send sends a frame to one receiver. If its connection accepts no more frames, send adds the session to d.slow.
func (d *delivery) send(r *receiver, f *websocket.Frame) {
	if r.output != nil {
		r.output.putLine(f.Payload())
	} else if err := r.conn.Send(f); err != nil {
		d.slow = append(d.slow, r.session)
	}
}

// sendFrame sends a stream frame to the connections of the targets, or to all connections if targets is nil.
func (d *delivery) sendFrame(f *websocket.Frame, targets []*member) {
	for _, r := range d.receivers {
		if r.conn != nil && (targets == nil || slices.Contains(targets, r.m)) {
			d.send(r, f)
		}
	}
}

// announce sends an envelope of the gateway to everybody, and returns its id.
func (d *delivery) announce(o envelope.Outgoing) (id string) { return d.announceExcept(nil, o) }

// announceExcept works like announce, but leaves out one member.
func (d *delivery) announceExcept(except *member, o envelope.Outgoing) (id string) {
	id = envelope.NewID()
	d.scratch = o.Append(d.scratch[:0], id, envelope.FormatTime(time.Now()))
	d.broadcastExcept(except, id, websocket.Text(d.scratch))
	return id
}

// announcePresence announces to everybody except one member that a participant joined, left or was invited (MEW-33).
func (d *delivery) announcePresence(event string, participant wire.Value, except *member, more ...wire.Member) {
	fields := append([]wire.Member{wire.TextField("event", event), {Key: "participant", Value: participant}}, more...)
	d.announceExcept(except, envelope.Outgoing{From: envelope.FromSystem, Kind: envelope.KindPresence, Payload: wire.Obj(fields...)})
}

// broadcast sends an envelope to every receiver, and adds it to the history (MEW-Q2).
func (d *delivery) broadcast(id string, f *websocket.Frame) { d.broadcastExcept(nil, id, f) }

// broadcastExcept works like broadcast, but leaves out the receivers of one member.
func (d *delivery) broadcastExcept(except *member, id string, f *websocket.Frame) {
	for _, r := range d.receivers {
		if r.m != except {
			d.send(r, f)
		}
	}
	d.history.add(d.history.nextTime(time.Now()), f.Payload(), except)
	d.journal.logDelivery(d.space, d.history.last, id, f.Payload(), d.receivers, except)
	d.changed.Broadcast()
	d.feeds.Tell(f.Payload())
}

// tell sends an envelope of the gateway to one participant: to its connection and its output log.
func (d *delivery) tell(m *member, o envelope.Outgoing) {
	if !m.isPresent() {
		return
	}
	id := envelope.NewID()
	f := websocket.Text(o.Append(nil, id, envelope.FormatTime(time.Now())))
	for _, r := range d.receivers {
		if r.m == m {
			d.send(r, f)
			d.journal.logDirect(d.space, id, o, r)
		}
	}
}

// Together with the bounds on streams, these bounds keep a welcome below a mebibyte (MEW-Q4).
const (
	maxWelcomeCaps   = 384 << 10 // bytes of participants; those that do not fit are listed without capabilities
	maxWelcomePeople = 448 << 10 // bytes of participants; those that do not fit are left out
)

// maxNested bounds the levels of a participant's capability or stream description. The envelope of the gateway around
// it adds at most five (MEW-1).
const maxNested = envelope.MaxDepth - 5

// tellRights tells a participant its capabilities after a change, with a welcome that lists no streams.
func (d *delivery) tellRights(m *member) { d.welcome(m, false) } // false: nothing is cut

// welcome tells a participant its id, its capabilities and who else is in the space (MEW-34). cut is true if extra is
// incomplete. The payload has the member "truncated" if anything is missing.
func (d *delivery) welcome(m *member, cut bool, extra ...wire.Member) {
	you := m.info()
	size := len(you.JSON())
	others := make([]wire.Value, 0, len(d.receivers))
	for _, r := range d.receivers {
		if r.m == m || r.conn == nil && r.m.session != nil { // r.m has another receiver, for its connection
			continue
		}
		info := r.m.info()
		if size+len(info.JSON()) > maxWelcomeCaps {
			info, cut = r.m.infoWith(wire.Arr()), true
		}
		if size += len(info.JSON()); size > maxWelcomePeople {
			break
		}
		others = append(others, info)
	}
	fields := append([]wire.Member{{Key: "you", Value: you}, {Key: "participants", Value: wire.Arr(others...)}}, extra...)
	if cut || m.cut {
		fields = append(fields, wire.Field("truncated", wire.Bool(true)))
	}
	d.tell(m, envelope.Outgoing{From: envelope.FromSystem, Kind: envelope.KindWelcome, To: []string{m.id}, Payload: wire.Obj(fields...)})
}
