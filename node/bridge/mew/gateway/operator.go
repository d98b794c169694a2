package gateway

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
)

// OperatorName is who the owner is in a space that is hosted here. Nobody else may be called so.
const OperatorName = "owner"

// operate gives a hosted space its owner: a participant without a connection that may everything and give anything.
func (s *Space) operate() {
	s.members.operator = s.members.add(OperatorName, []capability.Capability{mustCapability(`{"kind":"*"}`)})
}

// sparing refuses what would take the space from its owner: nobody in it, whatever he holds, puts the owner out or
// takes its rights, and so its name.
func (s *Space) sparing(m *member) *envelope.Refusal {
	if m == s.members.operator {
		return envelope.RefuseWith(403, "unauthorized", "The space is the owner's")
	}
	return nil
}

// View returns the space as its owner sees it.
func (s *Space) View() view.Space {
	s.mu.Lock()
	defer s.unlock()
	out := view.Space{
		ID: s.cfg.ID, Name: s.cfg.Name, Participants: []view.Participant{}, Streams: []json.RawMessage{},
		Proposals: s.board.ListProposals(), Reasoning: s.board.ListReasoning(),
	}
	for _, st := range s.streams.sorted() {
		out.Streams = append(out.Streams, st.describe().JSON())
	}
	for _, m := range s.members.byName {
		p := view.Participant{
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
			p.Grants = append(p.Grants, view.Grant{ID: g.ID, By: g.By, At: g.At})
		}
		out.Participants = append(out.Participants, p)
	}
	slices.SortFunc(out.Participants, func(a, b view.Participant) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Watch starts a feed of what passes. It must be closed.
func (s *Space) Watch() *view.Feed { return s.out.feeds.Watch() }

// Name returns the id under which the owner acts in the space.
func (s *Space) Name() string { return OperatorName }

// Say sends an envelope as the owner, under the rules for everybody, and returns what HTTP would answer.
func (s *Space) Say(_ context.Context, data []byte) (status int, body []byte, err error) {
	if s.members.operator == nil {
		return 0, nil, view.NewRefusal(403, envelope.RefuseName(403, "unauthorized").Payload)
	}
	got, fault := s.receive(s.members.operator, data, "owner")
	if fault != nil {
		return 0, nil, view.NewRefusal(fault.Status, fault.Payload)
	}
	return got.code, got.body.JSON(), nil
}

// Decide approves or rejects a pending proposal, named by its key, as the owner: approving sends the request with the
// proposal in correlation_id (MEW-11), rejecting a reason.
func (s *Space) Decide(ctx context.Context, proposal string, approve bool, reason string) (status int, body []byte, err error) {
	s.mu.Lock()
	p, ok := s.board.Find(proposal)
	s.unlock()
	if !ok {
		return 0, nil, view.NewRefusal(404, envelope.RefuseName(404, "proposal_not_found").Payload)
	}
	d, err := p.Decision("", approve, reason)
	if err != nil {
		return 0, nil, err
	}
	status, body, err = s.Say(ctx, d.JSON(OperatorName))
	if err == nil {
		s.mu.Lock()
		s.board.Settle(p.Key)
		s.unlock()
	}
	return status, body, err
}
