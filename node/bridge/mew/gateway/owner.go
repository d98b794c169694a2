package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
)

// OwnerName is the name of the owner in a hosted space. No participant may have it.
const OwnerName = "owner"

// AddNode adds the node of this process as a participant, and returns the token with which the node joins. It adds a
// number to the name if another participant has that name. Call AddNode before [Gateway.Run].
func (s *Space) AddNode(name string) (token string, err error) {
	s.mu.Lock()
	defer s.unlock()
	unused := name
	for n := 2; s.members.find(unused) != nil; n++ {
		unused = fmt.Sprintf("%s-%d", name, n)
	}
	var caps []capability.Capability
	for _, kind := range []string{"chat", "chat/*", "mcp/proposal", "participant/*"} {
		caps = append(caps, mustCapability(strconv.Quote(kind)))
	}
	s.members.node = s.members.add(unused, caps)
	token = credential.New("mew_")
	return token, s.accounts.Claim(token, s.members.node.record)
}

// protectOwner returns a refusal if m is the owner: no participant may kick the owner or revoke the owner's rights.
func (s *Space) protectOwner(m *member) *envelope.Refusal {
	if m == s.members.owner {
		return envelope.RefuseWith(403, "unauthorized", "The space belongs to its owner")
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
	for _, st := range s.streams.listByAge() {
		out.Streams = append(out.Streams, st.describe().JSON())
	}
	for _, m := range s.members.byName {
		p := view.Participant{
			Name: m.name, ID: m.id, Connected: m.isPresent(), Capabilities: []json.RawMessage{}, Invited: m.record.Invited,
			Paused: m.isPaused(time.Now()), Down: m.down, Barred: m.record.Barred,
			Own: m == s.members.node,
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
		for _, g := range m.record.Grants {
			p.Grants = append(p.Grants, view.Grant{ID: g.ID, By: g.By, At: g.At})
		}
		out.Participants = append(out.Participants, p)
	}
	slices.SortFunc(out.Participants, func(a, b view.Participant) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Watch starts a feed of the envelopes in the space. The caller must close it.
func (s *Space) Watch() *view.Feed { return s.out.feeds.Watch(view.FeedRoom) }

// Name returns the id of the owner in the space.
func (s *Space) Name() string { return OwnerName }

// Say sends an envelope as the owner, under the usual rules.
func (s *Space) Say(_ context.Context, data []byte) (view.Said, error) {
	s.mu.Lock()
	defer s.unlock()
	return s.say(data)
}

// say works like [Space.Say]. The caller holds s.mu.
func (s *Space) say(data []byte) (view.Said, error) {
	if s.members.owner == nil {
		return view.Said{}, view.NewRefusal(403, envelope.RefuseWithName(403, "unauthorized").Payload)
	}
	e, fault := envelope.Parse(data)
	got, fault := s.handle(s.members.owner, e, fault, "owner")
	if fault != nil {
		return view.Said{}, view.NewRefusal(fault.Status, fault.Payload)
	}
	return view.ReadSaid(got.body.GetStr("id"), got.body), nil
}

// Decide approves or rejects a pending proposal as the owner. To approve it, Decide sends the proposed request with the
// id of the proposal in correlation_id (MEW-11). To reject it, Decide sends the reason.
func (s *Space) Decide(_ context.Context, proposal string, approve bool, reason string) (said view.Said, err error) {
	s.mu.Lock()
	defer s.unlock() // held throughout, so that nobody else decides about the same proposal
	p, ok := s.board.Find(proposal)
	if !ok {
		return said, view.NewRefusal(404, envelope.RefuseWithName(404, "proposal_not_found").Payload)
	}
	d, err := p.Decision(OwnerName, approve, reason)
	if err != nil {
		return said, err
	}
	if said, err = s.say(d.JSON(OwnerName)); err == nil {
		s.board.Remove(p.Key)
	}
	return said, err
}
