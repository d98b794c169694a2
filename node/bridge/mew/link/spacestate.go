package link

import (
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
	rawCaps      []wire.Value        // the same as caps, as the gateway wrote them
	participants map[string]struct{} // the other participants
	unlisted     map[string]struct{} // senders that the gateway does not list: its operator, HTTP clients
	board        view.Board
}

// addParticipant stores a participant and reports whether it is new.
func (s *spaceState) addParticipant(id string) (isNew bool) {
	_, known := s.participants[id]
	if id == "" || id == s.me || len(id) > envelope.MaxName || known || len(s.participants) >= maxParticipants {
		return false
	}
	s.participants[strings.Clone(id)] = struct{}{}
	return true
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
		if s.addParticipant(id) {
			return id
		}
	case "leave":
		delete(s.participants, id)
		delete(s.unlisted, id)
		s.board.Leave(id)
	}
	return ""
}

// allows reports whether the capabilities of this node in the space allow an envelope (MEW-L4).
func (s *spaceState) allows(d envelope.Draft) bool {
	to := make([]capability.Addressee, len(d.To))
	for i, id := range d.To {
		to[i] = capability.Addressee{Name: id, ID: id}
	}
	return capability.FirstAllowing(s.caps, d.Kind, to, d.Payload) != nil
}
