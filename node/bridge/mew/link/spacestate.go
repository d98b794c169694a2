package link

import (
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
	"github.com/agentmesh/agentmesh/node/wire"
)

// spaceState is what a link knows of a space. The lock of the membership guards it.
type spaceState struct {
	me        string // our runtime id
	caps      []*capability.Capability
	shown     []wire.Value          // our capabilities as they were written
	people    map[string]wire.Value // what each may do
	spoke     map[string]struct{}   // who spoke and is on no list: a gateway's operator, HTTP clients
	capsBytes int                   // of people
	streams   []wire.Value
	board     view.Board
}

// person takes note of a participant and what it may do.
func (s *spaceState) person(id string, caps wire.Value) {
	if id == "" || id == s.me || len(id) > envelope.MaxName {
		return
	}
	if _, known := s.people[id]; !known && len(s.people) >= maxPeople {
		return
	}
	s.forget(id)
	if n := len(caps.JSON()); s.capsBytes+n > maxCapsBytes {
		caps = wire.Arr() // who it is counts; what it may do is only shown
	}
	caps = envelope.DetachValue(caps)
	s.people[strings.Clone(id)] = caps
	s.capsBytes += len(caps.JSON())
}

func (s *spaceState) forget(id string) {
	if caps, known := s.people[id]; known {
		s.capsBytes -= len(caps.JSON())
		delete(s.people, id)
	}
}

// presence keeps track of who is there.
func (s *spaceState) presence(e *envelope.Envelope) {
	who, _ := e.Payload.Get("participant")
	id := who.GetStr("id")
	switch e.Payload.GetStr("event") {
	case "join":
		caps, _ := who.Get("capabilities")
		s.person(id, caps)
	case "leave":
		s.forget(id)
		delete(s.spoke, id)
		s.board.Leave(id)
	}
}

// stream keeps track of which streams there are. Nothing else of them is kept.
func (s *spaceState) stream(e *envelope.Envelope) {
	id := e.Payload.GetStr("stream_id")
	switch e.Kind {
	case "stream/open":
		if e.From == envelope.FromStream && id != "" {
			s.openStream(e.Payload)
		}
	case "stream/close":
		s.streams = slices.DeleteFunc(s.streams, func(v wire.Value) bool { return id != "" && v.GetStr("stream_id") == id })
	}
}

func (s *spaceState) openStream(v wire.Value) {
	if len(s.streams) >= maxShown {
		return
	}
	if len(v.JSON()) > maxShownBytes {
		v = wire.Obj(wire.TextField("stream_id", v.GetStr("stream_id")), wire.TextField("owner", v.GetStr("owner")))
	}
	s.streams = append(s.streams, envelope.DetachValue(v))
}

// may reports whether our capabilities in the space allow an envelope (MEW-L4).
func (s *spaceState) may(d envelope.Draft) bool {
	to := make([]capability.Addressee, len(d.To))
	for i, id := range d.To {
		to[i] = capability.Addressee{Name: id, Runtime: id}
	}
	return capability.FirstAllowing(s.caps, d.Kind, to, d.Payload) != nil
}
