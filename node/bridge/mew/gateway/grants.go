package gateway

import (
	"crypto/rand"
	"slices"
	"strconv"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
)

func refuseUnknownParticipant() *envelope.Refusal {
	return envelope.RefuseWith(404, "participant_not_found", "There is no such participant in the space")
}

func refuseTooComplex() *envelope.Refusal {
	return envelope.RefuseShape("the capabilities are too complex to compare")
}

func (s *Space) findRecipient(p *submission) (*member, *envelope.Refusal) {
	id := p.Payload.GetStr("recipient")
	if id == "" {
		return nil, envelope.RefuseShape("payload.recipient must be a participant id")
	}
	m := s.members.find(id)
	if m == nil {
		return nil, refuseUnknownParticipant() // MEW-23
	}
	return m, nil
}

// grant adds capabilities to the recipient. The granter must hold all of them (MEW-21 to MEW-25).
func (s *Space) grant(p *submission) *envelope.Refusal {
	m, fault := s.findRecipient(p)
	if fault != nil {
		return fault
	}
	list, _ := p.Payload.Get("capabilities")
	caps, err := capability.ParseList(list)
	if err != nil {
		return envelope.RefuseShape(err.Error())
	}
	if len(caps) == 0 {
		return envelope.RefuseShape("payload.capabilities is empty")
	}
	bases, fault := s.findBases(p, caps)
	if fault != nil {
		s.auditRefusal(p.by, p.Kind, m.name, fault.Reason)
		return fault
	}
	if len(m.held)+len(caps) > capability.MaxHeld {
		return envelope.RefuseShape("the participant would hold more than " + strconv.Itoa(capability.MaxHeld) + " capabilities")
	}
	g := &grant{Key: rand.Text(), ID: p.ID, By: p.by.name, At: time.Now().UTC(), Caps: encodeAll(caps), RestsOn: bases, caps: caps}
	e := s.newEdit()
	rec := e.record(m)
	rec.Grants = append(rec.Grants, g)
	if fault := e.commit(s.auditEntry(p.by, p.Kind, m.name, "granted")); fault != nil {
		return fault
	}
	p.afterSend = append(p.afterSend, func() { s.out.tellRights(m) })
	return nil
}

// findBases finds, for each of caps, a capability of the sender that contains it, and returns its key. That capability
// is the base on which a grant rests: the grant ends with it. findBases returns a refusal if the sender does not hold
// all of caps (MEW-24). It prefers the sender's own capabilities to those that others granted.
func (s *Space) findBases(p *submission, caps []capability.Capability) ([]string, *envelope.Refusal) {
	bases, b := make([]string, len(caps)), capability.NewComparisonBudget()
	for i := range caps {
		if p.by == s.members.owner { // the owner holds every capability
			bases[i] = "operator"
			continue
		}
		at := slices.IndexFunc(p.by.held, func(h heldCapability) bool { return h.cap.Contains(&caps[i], b) })
		if b.Spent() {
			return nil, refuseTooComplex()
		}
		if at < 0 {
			return nil, envelope.RefuseCapability(p.by.id, p.Kind, p.by.shown)
		}
		bases[i] = p.by.held[at].key()
	}
	return bases, nil
}

// revoke takes capabilities away from a participant. The submission names them by the id of their grant or by patterns.
// revoke also takes away all capabilities that rested on them (MEW-25, MEW-26).
func (s *Space) revoke(p *submission) *envelope.Refusal {
	m, fault := s.findRecipient(p)
	if fault == nil {
		fault = s.protectOwner(m)
	}
	if fault != nil {
		return fault
	}
	id := p.Payload.GetStr("grant_id")
	list, byPattern := p.Payload.Get("capabilities")
	var patterns []*capability.Capability
	if byPattern {
		caps, err := capability.ParseList(list)
		if err != nil {
			return envelope.RefuseShape(err.Error())
		}
		for i := range caps {
			patterns = append(patterns, &caps[i])
		}
	}
	if id == "" && len(patterns) == 0 {
		return envelope.RefuseShape("payload needs a grant_id or capabilities")
	}
	e, b := s.newEdit(), capability.NewComparisonBudget()
	isNamed := func(h heldCapability) bool {
		return id != "" && h.grant != nil && h.grant.ID == id || capability.FirstContaining(patterns, h.cap, b) != nil
	}
	note := s.revokeMatching(e, m, isNamed)
	wider := countWider(slices.DeleteFunc(slices.Clone(m.held), isNamed), patterns, b)
	if b.Spent() {
		return refuseTooComplex()
	}
	if wider > 0 {
		note += ", " + strconv.Itoa(wider) + " wider kept"
	}
	if fault := e.commit(s.auditEntry(p.by, p.Kind, m.name, note)); fault != nil {
		return fault
	}
	p.afterSend = append(p.afterSend, func() {
		for _, m := range e.order {
			s.out.tellRights(m)
		}
	})
	return nil
}

// countWider counts the capabilities in list that contain one of the patterns. A revocation by these patterns does not
// take them away (MEW-26).
func countWider(list []heldCapability, patterns []*capability.Capability, b *capability.Budget) int {
	n := 0
	for _, h := range list {
		if slices.ContainsFunc(patterns, func(p *capability.Capability) bool { return h.cap.Contains(p, b) }) {
			n++
		}
	}
	return n
}

// revokeMatching takes from m the capabilities for which matches returns true, and from all participants the
// capabilities that rested on them. It returns a note for the audit log.
func (s *Space) revokeMatching(e *edit, m *member, matches func(heldCapability) bool) (note string) {
	type loss struct {
		by  string // name of the participant that lost the capability
		key string // key of the capability, which a grant may name as its base
	}
	var losses []loss
	lose := func(m *member, matches func(h heldCapability) bool) {
		rec := e.record(m)
		own := m.ownUnder(rec)
		for i := range own {
			h := heldCapability{cap: &own[i]}
			if !slices.Contains(rec.RevokedRules, own[i].Rule()) && matches(h) {
				rec.RevokedRules = append(rec.RevokedRules, own[i].Rule())
				losses = append(losses, loss{m.name, h.key()})
			}
		}
		var kept []*grant
		for _, g := range rec.Grants {
			remaining := g.filter(func(i int) bool {
				h := heldCapability{cap: &g.caps[i], grant: g}
				if matches(h) {
					losses = append(losses, loss{m.name, h.key()})
					return false
				}
				return true
			})
			if remaining != nil {
				kept = append(kept, remaining)
			}
		}
		rec.Grants = kept
	}
	lose(m, matches)
	direct := len(losses)
	for n := 0; n < len(losses); n++ {
		lost := losses[n]
		for _, other := range s.members.byName {
			restedOnLost := func(h heldCapability) bool { return h.grant != nil && h.grant.By == lost.by && restsOn(h, lost.key) }
			if slices.ContainsFunc(e.current(other).Grants, func(g *grant) bool { return g.By == lost.by && slices.Contains(g.RestsOn, lost.key) }) {
				lose(other, restedOnLost)
			}
		}
	}
	return "revoked " + strconv.Itoa(direct) + ", with " + strconv.Itoa(len(losses)-direct) + " that rested on them"
}

// restsOn reports whether a granted capability rests on the granter's capability with this key.
func restsOn(h heldCapability, key string) bool {
	for i := range h.grant.caps {
		if &h.grant.caps[i] == h.cap { // h.cap points into the list of the grant
			return h.grant.RestsOn[i] == key
		}
	}
	return false
}
