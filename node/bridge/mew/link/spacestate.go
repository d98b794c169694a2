package link

import (
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
	"github.com/agentmesh/agentmesh/node/wire"
)

// spaceState is what a link knows about a space. The lock of the membership guards it.
type spaceState struct {
	me           string // id of this node in the space
	caps         []*capability.Capability
	rawCaps      []wire.Value          // the same as caps, as the gateway wrote them
	participants map[string]wire.Value // the capabilities of each other participant
	unlisted     map[string]struct{}   // senders that the gateway does not list: its operator, HTTP clients
	capsBytes    int                   // size of the capabilities in participants
	streams      []wire.Value
	board        view.Board
}

// addParticipant stores a participant and reports whether it is new.
func (s *spaceState) addParticipant(id string, caps wire.Value) (isNew bool) {
	if id == "" || id == s.me || len(id) > envelope.MaxName {
		return false
	}
	_, known := s.participants[id]
	if !known && len(s.participants) >= maxParticipants {
		return false
	}
	s.forget(id)
	if n := len(caps.JSON()); s.capsBytes+n > maxCapsBytes {
		caps = wire.Arr() // these capabilities are only displayed, so they may be missing
	}
	caps = envelope.DetachValue(caps)
	s.participants[strings.Clone(id)] = caps
	s.capsBytes += len(caps.JSON())
	return !known
}

func (s *spaceState) forget(id string) {
	if caps, known := s.participants[id]; known {
		s.capsBytes -= len(caps.JSON())
		delete(s.participants, id)
	}
}

// addUnlisted records a sender that the gateway does not list. It returns false if the sender is listed, or known
// already.
func (s *spaceState) addUnlisted(id string) bool {
	_, listed := s.participants[id]
	_, known := s.unlisted[id]
	if listed || known || id == s.me || len(s.unlisted) >= maxParticipants || len(id) > envelope.MaxName {
		return false
	}
	s.unlisted[strings.Clone(id)] = struct{}{}
	return true
}

// handlePresence updates the participants. If a new participant has joined, it returns the id; otherwise "".
func (s *spaceState) handlePresence(e *envelope.Envelope) (newcomer string) {
	participant, _ := e.Payload.Get("participant")
	id := participant.GetStr("id")
	switch e.Payload.GetStr("event") {
	case "join":
		caps, _ := participant.Get("capabilities")
		if s.addParticipant(id, caps) {
			return id
		}
	case "leave":
		s.forget(id)
		delete(s.unlisted, id)
		s.board.Leave(id)
	}
	return ""
}

// handleStream updates the list of streams. The link stores nothing else about them.
func (s *spaceState) handleStream(e *envelope.Envelope) {
	id := e.Payload.GetStr("stream_id")
	switch {
	case id == "":
	case e.Kind == envelope.KindStreamClose:
		s.streams = slices.DeleteFunc(s.streams, func(v wire.Value) bool { return v.GetStr("stream_id") == id })
	case e.From != envelope.FromStream:
	case e.Kind == envelope.KindStreamOpen:
		s.openStream(e.Payload)
	default: // a notice about the owner or the writers
		at := slices.IndexFunc(s.streams, func(v wire.Value) bool { return v.GetStr("stream_id") == id })
		writers, ok := e.Payload.Get("authorized_writers")
		if at < 0 || !ok {
			return
		}
		v := s.streams[at].With("authorized_writers", writers)
		if owner := e.Payload.GetStr("new_owner"); owner != "" {
			v = v.With("owner", wire.Text(owner))
		}
		s.streams[at] = describeStream(v)
	}
}

// openStream adds a stream to the list.
func (s *spaceState) openStream(v wire.Value) {
	if len(s.streams) < maxStreams {
		s.streams = append(s.streams, describeStream(v))
	}
}

// describeStream returns the description of a stream or, if it is too large, one with only the id and the owner.
func describeStream(v wire.Value) wire.Value {
	if len(v.JSON()) > maxStreamBytes {
		v = wire.Obj(wire.TextField("stream_id", v.GetStr("stream_id")), wire.TextField("owner", v.GetStr("owner")))
	}
	return envelope.DetachValue(v)
}

// allows reports whether the capabilities of this node in the space allow an envelope (MEW-L4).
func (s *spaceState) allows(d envelope.Draft) bool {
	to := make([]capability.Addressee, len(d.To))
	for i, id := range d.To {
		to[i] = capability.Addressee{Name: id, ID: id}
	}
	return capability.FirstAllowing(s.caps, d.Kind, to, d.Payload) != nil
}
