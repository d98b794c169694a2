package mew

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
)

// OperatorName is who the owner is in a space that is hosted here. Nobody else may be called so.
const OperatorName = "owner"

// operate gives a hosted space its owner: a participant without a connection that may everything and give anything.
func (s *Space) operate() {
	s.operator = s.add(OperatorName, []capability.Capability{mustCapability(`{"kind":"*"}`)})
}

// sparing refuses what would take the space from its owner: nobody in it, whatever he holds, puts the owner out or
// takes its rights, and so its name.
func (s *Space) sparing(m *member) *envelope.Refusal {
	if m == s.operator {
		return envelope.RefuseWith(403, "unauthorized", "The space is the owner's")
	}
	return nil
}

// SpaceStatus is a space as its owner sees it. Names and capabilities are the words of others.
type SpaceStatus struct {
	ID           string              `json:"id"`
	Name         string              `json:"name,omitempty"`
	Participants []ParticipantStatus `json:"participants"`
	Streams      []json.RawMessage   `json:"streams"`
	Proposals    []PendingProposal   `json:"proposals"`
	Reasoning    []Reasoning         `json:"reasoning"`
}

// ParticipantStatus is one participant of a space.
type ParticipantStatus struct {
	Name         string            `json:"name"`
	ID           string            `json:"id"` // runtime
	Connected    bool              `json:"connected"`
	Connection   string            `json:"connection_id,omitempty"`
	Since        time.Time         `json:"since,omitzero"` // connected
	Capabilities []json.RawMessage `json:"capabilities"`
	Grants       []GrantStatus     `json:"grants,omitempty"`
	Invited      bool              `json:"invited,omitempty"`
	Paused       bool              `json:"paused,omitempty"`
	PausedUntil  time.Time         `json:"paused_until,omitzero"`
	Down         bool              `json:"shut_down,omitempty"`
	Barred       bool              `json:"barred,omitempty"`
}

// GrantStatus is a grant that a participant holds.
type GrantStatus struct {
	ID string    `json:"id"`
	By string    `json:"by"`
	At time.Time `json:"at"`
}

// Status returns the state of the space.
func (s *Space) Status() SpaceStatus {
	s.mu.Lock()
	defer s.unlock()
	out := SpaceStatus{
		ID: s.id, Name: s.title, Participants: []ParticipantStatus{}, Streams: []json.RawMessage{},
		Proposals: append([]PendingProposal{}, s.board.proposals...), Reasoning: append([]Reasoning{}, s.board.reasoning...),
	}
	for _, st := range s.sortedStreams() {
		out.Streams = append(out.Streams, st.describe().JSON())
	}
	for _, m := range s.members {
		p := ParticipantStatus{
			Name: m.name, ID: m.runtime, Connected: m.present(), Capabilities: []json.RawMessage{}, Invited: m.lasting.Invited,
			Paused: m.isPaused(time.Now()), Down: m.down, Barred: m.lasting.Barred,
		}
		if p.Paused {
			p.PausedUntil = m.pausedUntil
		}
		if m.session != nil {
			p.Connection, p.Since = m.session.id, m.session.since
		}
		for v := range m.shown.Elems() {
			p.Capabilities = append(p.Capabilities, v.JSON())
		}
		for _, g := range m.lasting.Grants {
			p.Grants = append(p.Grants, GrantStatus{g.ID, g.By, g.At})
		}
		out.Participants = append(out.Participants, p)
	}
	slices.SortFunc(out.Participants, func(a, b ParticipantStatus) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return out
}

// Refused is why the gateway did not take an envelope of the owner.
type Refused struct {
	Status int
	Body   []byte // the payload of system/error
}

func (r *Refused) Error() string {
	return "the space refused the envelope: " + envelope.ToPrintable(string(r.Body), 300)
}

// Say sends an envelope as the owner, under the rules for everybody, and returns what HTTP would answer. A refusal
// is a *[Refused].
func (s *Space) Say(data []byte) (status int, body []byte, err error) {
	if s.operator == nil {
		return 0, nil, &Refused{Status: 403, Body: envelope.RefuseName(403, "unauthorized").Payload.JSON()}
	}
	got, fault := s.receive(s.operator, data, "owner")
	if fault != nil {
		return 0, nil, &Refused{fault.Status, fault.Payload.JSON()}
	}
	return got.code, got.body.JSON(), nil
}

// Decide approves or rejects a pending proposal, named by its key, as the owner: approving sends the request with the
// proposal in correlation_id (MEW-11), rejecting a reason.
func (s *Space) Decide(proposal string, approve bool, reason string) (status int, body []byte, err error) {
	s.mu.Lock()
	p, ok := s.board.proposal(proposal)
	s.unlock()
	if !ok {
		return 0, nil, &Refused{404, envelope.RefuseName(404, "proposal_not_found").Payload.JSON()}
	}
	e, err := p.decision("", approve, reason)
	if err != nil {
		return 0, nil, err
	}
	status, body, err = s.Say(e.text(OperatorName))
	if err == nil {
		s.mu.Lock()
		s.board.settle(p.Key)
		s.unlock()
	}
	return status, body, err
}
