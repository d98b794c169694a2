package mew

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

// The bounds on streams; a space forgets them when it ends (MEW-Q5).
const (
	maxStreams     = 4096
	maxOwnStreams  = 256
	ownerMayBeAway = 5 * time.Minute // MEW-52

	// Bytes that the descriptions of streams take in a welcome (MEW-Q4): of one, of all of an owner, of all.
	maxStreamFields = 64 << 10
	maxOwnFields    = 256 << 10
	maxAllFields    = 512 << 10
)

// stream is an open stream (MEW-43 to MEW-52). Participants are kept as such: ids change when they reconnect.
type stream struct {
	id        string
	owner     *member
	writers   []*member // beside the owner
	target    []*member // nil: everybody
	request   wire.Value
	size      int // bytes of its description when it was opened
	requestID string
	openID    string
	created   time.Time
	orphaned  time.Time // when the owner left; zero while it is here
}

func (st *stream) mayWrite(m *member) bool { return st.owner == m || slices.Contains(st.writers, m) }

func (st *stream) writerIDs() wire.Value {
	ids := []string{st.owner.runtime}
	for _, m := range st.writers {
		ids = append(ids, m.runtime)
	}
	return wire.Texts(ids)
}

func (st *stream) targetIDs() wire.Value {
	ids := make([]string, len(st.target))
	for i, m := range st.target {
		ids[i] = m.runtime
	}
	return wire.Texts(ids)
}

// openStream answers a request with a stream (MEW-43, MEW-45).
func (s *Space) openStream(p *post) *envelope.Refusal {
	target, fault := s.targets(p.Payload)
	if fault != nil {
		return fault
	}
	if len(p.Payload.JSON()) > maxStreamFields {
		return envelope.RefuseShape("the payload of a stream/request is larger than " + strconv.Itoa(maxStreamFields) + " bytes")
	}
	st := &stream{owner: p.by, target: target, request: p.Payload, requestID: p.ID, created: time.Now()}
	st.size = len(st.describe().JSON())
	if fault := s.checkRoom(st.owner, st); fault != nil {
		return fault
	}
	st.id = s.nextStreamID()
	if !p.by.present() {
		st.orphaned = st.created
	}
	s.streams[st.id] = st
	payload := wire.Obj(wire.TextField("stream_id", st.id), wire.TextField("encoding", "text"), wire.TextField("owner", p.by.runtime),
		wire.Field("authorized_writers", st.writerIDs()))
	if target != nil {
		payload = payload.With("target", st.targetIDs())
	}
	open := envelope.Outgoing{From: envelope.FromStream, Kind: envelope.KindStreamOpen, To: []string{p.by.runtime}, Correlation: []string{p.ID}, Payload: payload}
	p.before = append(p.before, open)
	p.opened = st
	p.status, p.extra = "stream_opened", []wire.Member{wire.TextField("stream_id", st.id)}
	return nil
}

// checkRoom refuses to let m own st if m, or the space, has too many other streams or their descriptions would be too long
// (MEW-Q4).
func (s *Space) checkRoom(m *member, st *stream) *envelope.Refusal {
	all, allSize, own, ownSize := 0, st.size, 0, st.size
	for _, other := range s.streams {
		if other == st {
			continue
		}
		all++
		allSize += other.size
		if other.owner == m {
			own++
			ownSize += other.size
		}
	}
	switch {
	case all >= maxStreams || own >= maxOwnStreams:
		return envelope.RefuseStream(400, "invalid_operation", "Too many streams are open")
	case ownSize > maxOwnFields || allSize > maxAllFields:
		return envelope.RefuseStream(400, "invalid_operation", "The open streams have too much to say: close one, or describe this one with fewer words")
	}
	return nil
}

const streamPrefix = "stream-"

// nextStreamID returns an id that no participant announced.
func (s *Space) nextStreamID() string {
	for {
		s.lastNo++
		if id := streamPrefix + strconv.Itoa(s.lastNo); s.announced[id] == nil {
			return id
		}
	}
}

// gaveOut reports whether the gateway gave out a stream id, now or earlier.
func (s *Space) gaveOut(id string) bool {
	n, ok := streamNo(id)
	return ok && n <= s.lastNo && s.announced[id] == nil
}

// streamNo returns the number in an id of the form that the gateway gives out.
func streamNo(id string) (n int, ok bool) {
	rest, ok := strings.CutPrefix(id, streamPrefix)
	n, err := strconv.Atoi(rest)
	return n, ok && err == nil && 0 < n && n <= math.MaxInt32 && strconv.Itoa(n) == rest
}

// announceStream takes note of a stream that a participant of a drop-in space opens by itself (MEW-8). The gateway only
// keeps its id apart from those that it gives out: it carries no frames of such a stream. An id of another form needs no
// note, because the gateway never gives it out.
func (s *Space) announceStream(p *post) *envelope.Refusal {
	id := p.Payload.GetStr("stream_id")
	if id == "" || len(id) > envelope.MaxID {
		return envelope.RefuseShape("payload.stream_id must be a text of 1 to " + strconv.Itoa(envelope.MaxID) + " bytes")
	}
	if s.gaveOut(id) {
		return envelope.RefuseStream(403, "unauthorized", "The gateway gave this stream id out")
	}
	if _, mayGiveOut := streamNo(id); !mayGiveOut || s.announced[id] != nil {
		return nil
	}
	own := 0
	for _, m := range s.announced {
		if m == p.by {
			own++
		}
	}
	if own >= maxOwnStreams || len(s.announced) >= maxStreams {
		return envelope.RefuseStream(400, "invalid_operation", "Too many stream ids were announced")
	}
	s.announced[strings.Clone(id)] = p.by
	return nil
}

// targets resolves the target of a request: nil for everybody (MEW-45).
func (s *Space) targets(payload wire.Value) ([]*member, *envelope.Refusal) {
	v, ok := payload.Get("target")
	if !ok || v.IsNull() || v.Kind() == wire.Array && v.Len() == 0 {
		return nil, nil
	}
	ids, ok := envelope.ParseIDs(v)
	if !ok {
		return nil, envelope.RefuseShape("target must be an array of participant ids")
	}
	var out []*member
	var missing []string
	for _, id := range ids {
		m := s.find(id)
		switch {
		case m == nil || !m.present():
			missing = append(missing, id)
		case !slices.Contains(out, m):
			out = append(out, m)
		}
	}
	if len(missing) > 0 {
		return nil, envelope.RefuseTargets(missing)
	}
	return out, nil
}

// splitFrame takes a stream frame apart: #stream#data (spec 3.10.3). A message that does not begin with # or has no
// second one is none.
func splitFrame(data []byte) (id string, ok bool) {
	if len(data) == 0 || data[0] != '#' {
		return "", false
	}
	end := bytes.IndexByte(data[1:], '#')
	if end < 0 {
		return "", false
	}
	return string(data[1 : 1+end]), true
}

// frame passes a stream frame on, byte for byte and in its own type (MEW-46, MEW-47).
func (s *Space) frame(m *member, id string, typ websocket.Type, data []byte) {
	f := websocket.Of(typ, data)
	s.mu.Lock()
	defer s.unlock()
	if fault := s.judgeFrame(m, id, typ, data); fault != nil {
		s.tell(m, fault.Envelope(m.runtime, ""))
		return
	}
	st := s.streams[id]
	for _, seat := range s.seats {
		if seat.conn == nil || st.target != nil && !slices.Contains(st.target, seat.m) {
			continue
		}
		if err := seat.conn.Send(f); err != nil {
			s.slow = append(s.slow, seat.session)
		}
	}
}

func (s *Space) judgeFrame(m *member, id string, typ websocket.Type, data []byte) *envelope.Refusal {
	if s.rates != nil {
		if wait, ok := s.rates.Take(m.name, time.Now()); !ok {
			return envelope.RefuseRate(wait)
		}
	}
	if fault := s.mayAct(m, time.Now(), rule{}); fault != nil {
		return fault
	}
	if st := s.streams[id]; st == nil || !st.mayWrite(m) {
		return envelope.RefuseWriter(envelope.ToPrintable(id, envelope.MaxID))
	}
	if typ == websocket.TextType && !utf8.Valid(data) {
		return envelope.RefuseSyntax("a text frame must be UTF-8") // it would end every receiver's connection
	}
	return nil
}

// closeStream ends a stream that is named by its id or, in correlation_id, by its request or its open (MEW-48).
func (s *Space) closeStream(p *post) *envelope.Refusal {
	var found *stream
	if id := p.Payload.GetStr("stream_id"); id != "" {
		if s.dropIn && !s.gaveOut(id) {
			return nil // it is between participants
		}
		found = s.streams[id]
	} else {
		for _, st := range s.streams {
			if slices.Contains(p.Correlation, st.openID) || slices.Contains(p.Correlation, st.requestID) && st.owner == p.by {
				found = st
				break
			}
			if slices.Contains(p.Correlation, st.requestID) && (found == nil || st.created.After(found.created)) {
				found = st // ids of requests may repeat: the newest
			}
		}
	}
	if found == nil {
		return envelope.RefuseStream(404, "stream_not_found", "There is no such stream")
	}
	if !found.mayWrite(p.by) && !slices.Contains(found.target, p.by) {
		return envelope.RefuseStream(403, "unauthorized", "Only the owner, a writer or a target closes a stream")
	}
	delete(s.streams, found.id)
	return nil
}

// streamOf finds the stream of an order that only its owner gives (MEW-49).
func (s *Space) streamOf(p *post) (*stream, *envelope.Refusal) {
	p.silent = true
	st := s.streams[p.Payload.GetStr("stream_id")]
	if st == nil {
		return nil, envelope.RefuseStream(404, "stream_not_found", "There is no such stream")
	}
	if st.owner != p.by {
		return nil, envelope.RefuseStream(403, "unauthorized", "Only the owner of the stream may do this")
	}
	return st, nil
}

// inSpace finds a participant that is here.
func (s *Space) inSpace(id string) (*member, *envelope.Refusal) {
	if m := s.find(id); m != nil && m.present() {
		return m, nil
	}
	return nil, envelope.RefuseStream(404, "participant_not_found", "There is no such participant in the space")
}

func (s *Space) grantWrite(p *post) *envelope.Refusal {
	st, fault := s.streamOf(p)
	if fault != nil {
		return fault
	}
	m, fault := s.inSpace(p.Payload.GetStr("participant_id"))
	if fault != nil {
		return fault
	}
	if !st.mayWrite(m) {
		st.writers = append(st.writers, m)
	}
	s.noteWriters(p, st, envelope.KindStreamGranted, "granted", wire.TextField("participant_id", m.runtime))
	return nil
}

func (s *Space) revokeWrite(p *post) *envelope.Refusal {
	st, fault := s.streamOf(p)
	if fault != nil {
		return fault
	}
	id := p.Payload.GetStr("participant_id")
	m := s.find(id)
	if m == st.owner {
		return envelope.RefuseStream(400, "invalid_operation", "The owner cannot give up writing")
	}
	if m != nil {
		st.writers = slices.DeleteFunc(st.writers, func(w *member) bool { return w == m })
		id = m.runtime
	}
	s.noteWriters(p, st, envelope.KindStreamRevoked, "revoked", wire.TextField("participant_id", envelope.ToPrintable(id, envelope.MaxID)))
	return nil
}

// transfer gives a stream to another owner. The old one writes no more (C7).
func (s *Space) transfer(p *post) *envelope.Refusal {
	st, fault := s.streamOf(p)
	if fault != nil {
		return fault
	}
	m, fault := s.inSpace(p.Payload.GetStr("new_owner"))
	if fault != nil {
		return fault
	}
	if fault := s.checkRoom(m, st); fault != nil {
		return fault
	}
	st.writers = slices.DeleteFunc(st.writers, func(w *member) bool { return w == m })
	st.owner, st.orphaned = m, time.Time{}
	s.noteWriters(p, st, envelope.KindStreamMoved, "transferred", wire.TextField("previous_owner", p.by.runtime), wire.TextField("new_owner", m.runtime))
	return nil
}

// noteWriters tells everybody of the order's outcome instead of the order, and HTTP the writers.
func (s *Space) noteWriters(p *post, st *stream, kind, status string, about ...wire.Member) {
	members := append([]wire.Member{wire.TextField("stream_id", st.id)}, about...)
	members = append(members, wire.Field("authorized_writers", st.writerIDs()))
	p.status, p.extra = status, []wire.Member{members[0]}
	if status == "transferred" {
		p.extra = append(p.extra, about...)
	}
	p.extra = append(p.extra, members[len(members)-1])
	if reason := p.Payload.GetStr("reason"); reason != "" {
		members = append(members, wire.TextField("reason", reason))
	}
	p.after = append(p.after, envelope.Outgoing{From: envelope.FromStream, Kind: kind, Correlation: []string{p.ID}, Payload: wire.Obj(members...)})
}

// streamsWithout takes a participant that left off the streams that it wrote to, and starts the time in which it
// may come back to its own (MEW-51, MEW-52).
func (s *Space) streamsWithout(m *member) {
	for _, st := range s.sortedStreams() {
		if st.owner == m {
			st.orphaned = time.Now()
			continue
		}
		if !slices.Contains(st.writers, m) {
			continue
		}
		st.writers = slices.DeleteFunc(st.writers, func(w *member) bool { return w == m })
		s.announce(envelope.Outgoing{From: envelope.FromStream, Kind: envelope.KindStreamRevoked, Payload: wire.Obj(wire.TextField("stream_id", st.id),
			wire.TextField("participant_id", m.runtime), wire.Field("authorized_writers", st.writerIDs()), wire.TextField("reason", "disconnected"))}, nil)
	}
}

// endOrphans closes the streams whose owner stayed away.
func (s *Space) endOrphans(now time.Time) {
	for _, st := range s.sortedStreams() {
		if st.orphaned.IsZero() {
			continue
		}
		if st.owner.present() {
			st.orphaned = time.Time{}
			continue
		}
		if now.Sub(st.orphaned) < ownerMayBeAway {
			continue
		}
		delete(s.streams, st.id)
		s.announce(envelope.Outgoing{From: envelope.FromStream, Kind: envelope.KindStreamClose, Correlation: []string{st.openID}, Payload: wire.Obj(
			wire.TextField("stream_id", st.id), wire.TextField("reason", "timeout"))}, nil)
	}
}

// sortedStreams lists the streams in the order in which they were opened.
func (s *Space) sortedStreams() []*stream {
	out := make([]*stream, 0, len(s.streams))
	for _, st := range s.streams {
		out = append(out, st)
	}
	slices.SortFunc(out, func(a, b *stream) int { return a.created.Compare(b.created) })
	return out
}

// activeStreams describes the streams to a participant that joins, and reports whether it left some out: writers who
// were added later can make the descriptions longer than a welcome has room for.
func (s *Space) activeStreams() (list wire.Value, cut bool) {
	var out []wire.Value
	size := 0
	for _, st := range s.sortedStreams() {
		v := st.describe()
		if size += len(v.JSON()); size > maxAllFields {
			return wire.Arr(out...), true
		}
		out = append(out, v)
	}
	return wire.Arr(out...), false
}

// describe returns the request of a stream as it was, then the fields that only the gateway sets (MEW-35).
func (st *stream) describe() wire.Value {
	v := st.request.Without("stream_id", "owner", "authorized_writers", "created")
	if st.target != nil {
		v = v.With("target", st.targetIDs())
	}
	return v.With("stream_id", wire.Text(st.id)).With("owner", wire.Text(st.owner.runtime)).
		With("authorized_writers", st.writerIDs()).With("created", wire.Text(envelope.FormatTime(st.created)))
}
