package gateway

import (
	"bytes"
	"maps"
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

// Bounds on the streams of a space. Streams are only in memory and end with the process (MEW-Q5).
const (
	maxStreams       = 4096
	maxMemberStreams = 256             // streams of one participant
	maxOwnerAbsence  = 5 * time.Minute // MEW-52

	// maxDescription and the next two constants bound the descriptions of streams in a welcome, in bytes (MEW-Q4).
	maxDescription       = 64 << 10  // of one stream
	maxOwnerDescriptions = 256 << 10 // of all streams of one owner
	maxAllDescriptions   = 512 << 10 // of all streams of a space
)

// stream is an open stream (MEW-43 to MEW-52). Its fields point to members instead of storing their ids, because a
// member may have another id after it reconnects.
type stream struct {
	id         string
	owner      *member
	writers    []*member  // participants that may write besides the owner
	target     []*member  // nil: everybody
	request    wire.Value // payload of the stream/request
	size       int        // bytes of its description when it was opened
	requestID  string     // id of the stream/request
	openID     string     // id of the gateway's stream/open
	created    time.Time
	orphanedAt time.Time // when the owner left; zero while the owner is present
}

// streams holds the streams of a space. The lock of the space guards it.
type streams struct {
	members    *members
	open       map[string]*stream   // by id
	lastNumber int                  // the number in the last stream id that the gateway issued
	announced  map[string]announced // by stream id: the streams that participants announced and have not closed
}

type announced struct {
	by     *member
	openID string // id of its stream/open
}

func (st *stream) canWrite(m *member) bool { return st.owner == m || slices.Contains(st.writers, m) }

func idsOf(list ...*member) wire.Value {
	ids := make([]string, len(list))
	for i, m := range list {
		ids[i] = m.id
	}
	return wire.Texts(ids)
}

// writerIDs lists everybody who may write, the owner first.
func (st *stream) writerIDs() wire.Value {
	return idsOf(append([]*member{st.owner}, st.writers...)...)
}

// request opens a stream for a stream/request (MEW-43, MEW-45).
func (ss *streams) request(p *submission) *envelope.Refusal {
	target, fault := ss.findTargets(p.Payload)
	if fault != nil {
		return fault
	}
	if len(p.Payload.JSON()) > maxDescription || envelope.Depth(p.Payload) > maxNested {
		return envelope.RefuseShape("the payload of a stream/request is larger than " + strconv.Itoa(maxDescription) + " bytes or nested deeper than " + strconv.Itoa(maxNested) + " levels")
	}
	st := &stream{owner: p.by, target: target, request: p.Payload, requestID: p.ID, created: time.Now()}
	st.size = len(st.describe().JSON())
	if fault := ss.checkLimits(st.owner, st); fault != nil {
		return fault
	}
	st.id = ss.nextID()
	if !p.by.isPresent() {
		st.orphanedAt = st.created
	}
	ss.open[st.id] = st
	payload := wire.Obj(wire.TextField("stream_id", st.id), wire.TextField("encoding", "text"), wire.TextField("owner", p.by.id),
		wire.Field("authorized_writers", st.writerIDs()))
	if target != nil {
		payload = payload.With("target", idsOf(st.target...))
	}
	open := envelope.Outgoing{From: envelope.FromStream, Kind: envelope.KindStreamOpen, To: []string{p.by.id}, Correlation: []string{p.ID}, Payload: payload}
	p.before = append(p.before, open)
	p.opened = st
	p.status, p.extra = "stream_opened", []wire.Member{wire.TextField("stream_id", st.id)}
	return nil
}

// checkLimits returns a refusal if m cannot become the owner of st: m or the space already has the maximum number of
// other streams, or the descriptions of these streams and of st would be too long together (MEW-Q4).
func (ss *streams) checkLimits(m *member, st *stream) *envelope.Refusal {
	all, allSize, own, ownSize := 0, st.size, 0, st.size
	for _, other := range ss.open {
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
	case all >= maxStreams || own >= maxMemberStreams:
		return envelope.RefuseStream(400, "invalid_operation", "Too many streams are open")
	case ownSize > maxOwnerDescriptions || allSize > maxAllDescriptions:
		return envelope.RefuseStream(400, "invalid_operation", "The descriptions of the open streams are too long: close a stream, or shorten this description")
	}
	return nil
}

const streamPrefix = "stream-"

// nextID issues a new stream id that no participant has announced.
func (ss *streams) nextID() string {
	for {
		ss.lastNumber++
		if id := streamPrefix + strconv.Itoa(ss.lastNumber); ss.announced[id].by == nil {
			return id
		}
	}
}

// isIssued reports whether the gateway has issued a stream id, for an open or a closed stream. It also reports true for
// an id that the gateway skipped, once the participant that announced the id has closed its stream.
func (ss *streams) isIssued(id string) bool {
	n, ok := streamNumber(id)
	return ok && n <= ss.lastNumber && ss.announced[id].by == nil
}

// streamNumber returns the number in a stream id. ok is false for an id that the gateway would not issue.
func streamNumber(id string) (n int, ok bool) {
	rest, ok := strings.CutPrefix(id, streamPrefix)
	n, err := strconv.Atoi(rest)
	return n, ok && err == nil && 0 < n && n <= math.MaxInt32 && strconv.Itoa(n) == rest
}

// announce handles the stream/open of a participant, which only a drop-in space allows (MEW-8). It refuses an id that
// the gateway has issued. If the gateway could issue the id later, announce reserves it. The gateway carries no frames
// of such a stream.
func (ss *streams) announce(p *submission) *envelope.Refusal {
	id := p.Payload.GetStr("stream_id")
	if id == "" || len(id) > envelope.MaxID {
		return envelope.RefuseShape("payload.stream_id must be a string of 1 to " + strconv.Itoa(envelope.MaxID) + " bytes")
	}
	if ss.isIssued(id) {
		return envelope.RefuseStream(403, "unauthorized", "The gateway issued this stream id")
	}
	if _, canIssue := streamNumber(id); !canIssue || ss.announced[id].by != nil {
		return nil
	}
	count := 0 // ids that this participant has announced
	for _, a := range ss.announced {
		if a.by == p.by {
			count++
		}
	}
	if count >= maxMemberStreams || len(ss.announced) >= maxStreams {
		return envelope.RefuseStream(400, "invalid_operation", "Too many announced streams are open: close one")
	}
	ss.announced[strings.Clone(id)] = announced{p.by, p.ID}
	return nil
}

// findTargets returns the participants that a stream/request targets, or nil if the stream is for everybody (MEW-45).
func (ss *streams) findTargets(payload wire.Value) ([]*member, *envelope.Refusal) {
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
		m := ss.members.find(id)
		switch {
		case m == nil || !m.isPresent():
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

// frameStreamID returns the stream id of a frame of the form #id#data (spec 3.10.3). ok is false for any other message.
func frameStreamID(data []byte) (id string, ok bool) {
	rest, ok := bytes.CutPrefix(data, []byte{'#'})
	head, _, found := bytes.Cut(rest, []byte{'#'})
	if !ok || !found {
		return "", false
	}
	return string(head), true
}

// handleFrame delivers a stream frame with unchanged bytes and the same WebSocket message type (MEW-46, MEW-47).
func (s *Space) handleFrame(ses *session, id string, typ websocket.Type, data []byte) {
	f, m := websocket.Of(typ, data), ses.m
	s.mu.Lock()
	defer s.unlock()
	if m.session != ses {
		return // the session was replaced or kicked, and is being closed
	}
	if fault := s.checkFrame(m, id, typ, data); fault != nil {
		s.out.tell(m, fault.Envelope(m.id, ""))
		return
	}
	s.out.sendFrame(f, s.streams.open[id].target)
}

// checkFrame returns a refusal if m may not send a frame of the stream with this id now. The caller holds s.mu.
func (s *Space) checkFrame(m *member, id string, typ websocket.Type, data []byte) *envelope.Refusal {
	if fault := s.checkRate(m); fault != nil {
		return fault
	}
	if fault := s.checkState(m, envelope.Rule{}); fault != nil { // no frames while m is paused or shut down
		return fault
	}
	if st := s.streams.open[id]; st == nil || !st.canWrite(m) {
		return envelope.RefuseWriter(envelope.ToPrintable(id, envelope.MaxID))
	}
	if typ == websocket.TextType && !utf8.Valid(data) {
		return envelope.RefuseSyntax("a text frame must be UTF-8") // invalid UTF-8 would end every receiver's connection
	}
	return nil
}

// close closes a stream. The envelope names the stream by its stream_id or, in correlation_id, by the id of its
// stream/request or stream/open (MEW-48).
func (ss *streams) close(p *submission) *envelope.Refusal {
	var found *stream
	if id := p.Payload.GetStr("stream_id"); id != "" {
		if ss.members.dropIn && !ss.isIssued(id) {
			if ss.announced[id].by == p.by {
				delete(ss.announced, id)
			}
			return nil // not a stream of the gateway, which has nothing else to close
		}
		found = ss.open[id]
	} else {
		isOwn := func(st *stream) bool { return st.owner == p.by }
		for _, st := range ss.open {
			if slices.Contains(p.Correlation, st.openID) {
				found = st
				break
			}
			if !slices.Contains(p.Correlation, st.requestID) {
				continue
			}
			// Request ids may repeat: take the newest stream of the sender, or else of anybody.
			if found == nil || isOwn(st) && !isOwn(found) || isOwn(st) == isOwn(found) && st.created.After(found.created) {
				found = st
			}
		}
	}
	switch {
	case found == nil && ss.members.dropIn && p.Payload.GetStr("stream_id") == "": // a stream that a participant announced
		maps.DeleteFunc(ss.announced, func(_ string, a announced) bool {
			return a.by == p.by && slices.Contains(p.Correlation, a.openID)
		})
		return nil
	case found == nil:
		return envelope.RefuseStream(404, "stream_not_found", "There is no such stream")
	}
	if !found.canWrite(p.by) && !slices.Contains(found.target, p.by) {
		return envelope.RefuseStream(403, "unauthorized", "Only the owner, a writer or a target may close a stream")
	}
	delete(ss.open, found.id)
	return nil
}

// findOwn returns the stream that an envelope names, or a refusal if the sender of the envelope does not own that stream
// (MEW-49). It marks the envelope as silent: the gateway announces the result instead of the envelope.
func (ss *streams) findOwn(p *submission) (*stream, *envelope.Refusal) {
	p.silent = true
	st := ss.open[p.Payload.GetStr("stream_id")]
	if st == nil {
		return nil, envelope.RefuseStream(404, "stream_not_found", "There is no such stream")
	}
	if st.owner != p.by {
		return nil, envelope.RefuseStream(403, "unauthorized", "Only the owner of the stream may do this")
	}
	return st, nil
}

// findPresent returns the participant with an id, or a refusal if it is not in the space now.
func (ss *streams) findPresent(id string) (*member, *envelope.Refusal) {
	if m := ss.members.find(id); m != nil && m.isPresent() {
		return m, nil
	}
	return nil, envelope.RefuseStream(404, "participant_not_found", "There is no such participant in the space")
}

// grantWrite lets a participant write to a stream.
func (ss *streams) grantWrite(p *submission) *envelope.Refusal {
	st, fault := ss.findOwn(p)
	if fault != nil {
		return fault
	}
	m, fault := ss.findPresent(p.Payload.GetStr("participant_id"))
	if fault != nil {
		return fault
	}
	if !st.canWrite(m) {
		st.writers = append(st.writers, m)
	}
	announceWriters(p, st, envelope.KindStreamGranted, "granted", wire.TextField("participant_id", m.id))
	return nil
}

// revokeWrite takes the right to write from a participant, which may have left the space.
func (ss *streams) revokeWrite(p *submission) *envelope.Refusal {
	st, fault := ss.findOwn(p)
	if fault != nil {
		return fault
	}
	id := p.Payload.GetStr("participant_id")
	m := ss.members.find(id)
	if m == st.owner {
		return envelope.RefuseStream(400, "invalid_operation", "The owner's right to write cannot be revoked")
	}
	if m != nil {
		st.writers = slices.DeleteFunc(st.writers, func(w *member) bool { return w == m })
		id = m.id
	}
	announceWriters(p, st, envelope.KindStreamRevoked, "revoked", wire.TextField("participant_id", envelope.ToPrintable(id, envelope.MaxID)))
	return nil
}

// transfer gives a stream to another owner. The previous owner may no longer write.
func (ss *streams) transfer(p *submission) *envelope.Refusal {
	st, fault := ss.findOwn(p)
	if fault != nil {
		return fault
	}
	m, fault := ss.findPresent(p.Payload.GetStr("new_owner"))
	if fault != nil {
		return fault
	}
	if fault := ss.checkLimits(m, st); fault != nil {
		return fault
	}
	st.writers = slices.DeleteFunc(st.writers, func(w *member) bool { return w == m })
	st.owner, st.orphanedAt = m, time.Time{}
	announceWriters(p, st, envelope.KindStreamMoved, "transferred", wire.TextField("previous_owner", p.by.id), wire.TextField("new_owner", m.id))
	return nil
}

// announceWriters announces who may write now, instead of the submitted envelope. The HTTP answer also lists the writers
// and, after a transfer, the details.
func announceWriters(p *submission, st *stream, kind, status string, details ...wire.Member) {
	id, writers := wire.TextField("stream_id", st.id), wire.Field("authorized_writers", st.writerIDs())
	fields := append(append([]wire.Member{id}, details...), writers)
	p.status, p.extra = status, []wire.Member{id}
	if status == "transferred" {
		p.extra = append(p.extra, details...)
	}
	p.extra = append(p.extra, writers)
	if reason := p.Payload.GetStr("reason"); reason != "" {
		fields = append(fields, wire.TextField("reason", reason))
	}
	p.after = append(p.after, envelope.Outgoing{From: envelope.FromStream, Kind: kind, Correlation: []string{p.ID}, Payload: wire.Obj(fields...)})
}

// leave handles the departure of m (MEW-51, MEW-52). m loses the right to write to the streams of others. Its own
// streams stay open for maxOwnerAbsence. leave returns the envelopes to announce.
func (ss *streams) leave(m *member) (announcements []envelope.Outgoing) {
	for _, st := range ss.listByAge() {
		if st.owner == m {
			st.orphanedAt = time.Now()
		} else if slices.Contains(st.writers, m) {
			st.writers = slices.DeleteFunc(st.writers, func(w *member) bool { return w == m })
			announcements = append(announcements, envelope.Outgoing{From: envelope.FromStream, Kind: envelope.KindStreamRevoked, Payload: wire.Obj(wire.TextField("stream_id", st.id),
				wire.TextField("participant_id", m.id), wire.Field("authorized_writers", st.writerIDs()), wire.TextField("reason", "disconnected"))})
		}
	}
	return announcements
}

// endOrphans closes the streams whose owner has been away for maxOwnerAbsence. It returns the envelopes to announce.
func (ss *streams) endOrphans(now time.Time) (announcements []envelope.Outgoing) {
	for _, st := range ss.listByAge() {
		switch {
		case st.orphanedAt.IsZero():
		case st.owner.isPresent():
			st.orphanedAt = time.Time{}
		case now.Sub(st.orphanedAt) >= maxOwnerAbsence:
			delete(ss.open, st.id)
			announcements = append(announcements, envelope.Outgoing{From: envelope.FromStream, Kind: envelope.KindStreamClose, Correlation: []string{st.openID}, Payload: wire.Obj(
				wire.TextField("stream_id", st.id), wire.TextField("reason", "timeout"))})
		}
	}
	return announcements
}

// listByAge lists the streams in the order in which they were opened.
func (ss *streams) listByAge() []*stream {
	return slices.SortedFunc(maps.Values(ss.open), func(a, b *stream) int { return a.created.Compare(b.created) })
}

// list returns the descriptions of the streams, for the welcome of a joining participant. cut reports whether some are
// missing: the descriptions, which checkLimits bounded when the streams were opened, grow when writers are added.
func (ss *streams) list() (list wire.Value, cut bool) {
	var out []wire.Value
	size := 0
	for _, st := range ss.listByAge() {
		v := st.describe()
		if size += len(v.JSON()); size > maxAllDescriptions {
			return wire.Arr(out...), true
		}
		out = append(out, v)
	}
	return wire.Arr(out...), false
}

// describe returns the payload of the stream/request with the fields that only the gateway sets (MEW-35).
func (st *stream) describe() wire.Value {
	v := st.request.Without("stream_id", "owner", "authorized_writers", "created")
	if st.target != nil {
		v = v.With("target", idsOf(st.target...))
	}
	return v.With("stream_id", wire.Text(st.id)).With("owner", wire.Text(st.owner.id)).
		With("authorized_writers", st.writerIDs()).With("created", wire.Text(envelope.FormatTime(st.created)))
}
