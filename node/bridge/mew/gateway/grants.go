package gateway

import (
	"crypto/rand"
	"slices"
	"strconv"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
)

func refuseRecipient() *envelope.Refusal {
	return envelope.RefuseWith(404, "participant_not_found", "There is no such participant in the space")
}

// refuseComparison is for capabilities that are within their bounds and still too much to compare.
func refuseComparison() *envelope.Refusal {
	return envelope.RefuseShape("the capabilities are too many to compare")
}

// recipient finds whom a grant or a revocation is about.
func (s *Space) recipient(p *post) (*member, *envelope.Refusal) {
	id := p.Payload.GetStr("recipient")
	if id == "" {
		return nil, envelope.RefuseShape("payload.recipient must be a participant id")
	}
	m := s.members.find(id)
	if m == nil {
		return nil, refuseRecipient() // MEW-23
	}
	return m, nil
}

// grant adds to what the recipient holds: nothing that the granter does not hold (MEW-21 to MEW-25).
func (s *Space) grant(p *post) *envelope.Refusal {
	m, fault := s.recipient(p)
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
	rests, fault := s.mayGive(p, caps)
	if fault != nil {
		s.auditRefused(p.by, p.Kind, m.name, fault.Reason)
		return fault
	}
	if len(m.held)+len(caps) > capability.MaxHeld {
		return envelope.RefuseShape("the participant would hold more than " + strconv.Itoa(capability.MaxHeld) + " capabilities")
	}
	g := &grant{Key: rand.Text(), ID: p.ID, By: p.by.name, At: time.Now().UTC(), Caps: rawOf(caps), Rest: rests, caps: caps}
	e := s.edit()
	l := e.of(m)
	l.Grants = append(l.Grants, g)
	if fault := e.commit(s.auditEntry(p.by, p.Kind, m.name, "granted")); fault != nil {
		return fault
	}
	p.then = append(p.then, func() { s.out.welcome(m, false) })
	return nil
}

// mayGive says what of the giver's each capability rests on, or refuses (MEW-24). What is the giver's own comes first.
func (s *Space) mayGive(p *post, caps []capability.Capability) ([]string, *envelope.Refusal) {
	rests, b := make([]string, len(caps)), capability.NewComparison()
	for i := range caps {
		if p.by == s.members.operator { // the space is the owner's
			rests[i] = "operator"
			continue
		}
		at := slices.IndexFunc(p.by.held, func(h held) bool { return h.cap.Contains(&caps[i], b) })
		if b.Spent() {
			return nil, refuseComparison()
		}
		if at < 0 {
			return nil, envelope.RefuseCapability(p.by.runtime, p.Kind, p.by.shown)
		}
		rests[i] = p.by.held[at].key()
	}
	return rests, nil
}

// revoke takes capabilities away, by the id of their grant or by pattern; what rested on them ends too (MEW-25,
// MEW-26).
func (s *Space) revoke(p *post) *envelope.Refusal {
	m, fault := s.recipient(p)
	if fault == nil {
		fault = s.sparing(m)
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
	e, b := s.edit(), capability.NewComparison()
	note := s.strip(e, m, func(h held) bool {
		return id != "" && h.grant != nil && h.grant.ID == id || capability.FirstContaining(patterns, h.cap, b) != nil
	})
	wider := countWider(m.held, patterns, b)
	if b.Spent() {
		return refuseComparison()
	}
	if wider > 0 {
		note += ", " + strconv.Itoa(wider) + " wider kept"
	}
	if fault := e.commit(s.auditEntry(p.by, p.Kind, m.name, note)); fault != nil {
		return fault
	}
	changed := slices.Clone(e.order)
	p.then = append(p.then, func() {
		for _, m := range changed {
			s.out.welcome(m, false)
		}
		if !slices.Contains(changed, m) {
			s.out.welcome(m, false)
		}
	})
	return nil
}

// countWider counts what is kept although it allows something that a pattern names (MEW-26).
func countWider(list []held, patterns []*capability.Capability, b *capability.Budget) int {
	n := 0
	for _, h := range list {
		if capability.FirstContaining(patterns, h.cap, b) == nil && slices.ContainsFunc(patterns, func(p *capability.Capability) bool { return h.cap.Contains(p, b) }) {
			n++
		}
	}
	return n
}

// strip takes away what gone names of m's, and then, from whoever, what rested on that.
func (s *Space) strip(e *edit, m *member, gone func(held) bool) (note string) {
	type loss struct {
		by   string // the name of who lost it
		rest string // what of it grants may rest on
	}
	var losses []loss
	lose := func(m *member, gone func(h held) bool) {
		l := e.of(m)
		own := m.own
		if l.Invited {
			own = l.own
		}
		for i := range own {
			h := held{cap: &own[i]}
			if !slices.Contains(l.Masks, own[i].Rule()) && gone(h) {
				l.Masks = append(l.Masks, own[i].Rule())
				losses = append(losses, loss{m.name, h.key()})
			}
		}
		var kept []*grant
		for _, g := range l.Grants {
			left := g.without(func(i int) bool {
				h := held{cap: &g.caps[i], grant: g}
				if gone(h) {
					losses = append(losses, loss{m.name, h.key()})
					return false
				}
				return true
			})
			if left != nil {
				kept = append(kept, left)
			}
		}
		l.Grants = kept
	}
	lose(m, gone)
	direct := len(losses)
	for n := 0; n < len(losses); n++ {
		lost := losses[n]
		for _, other := range s.members.byName {
			rested := func(h held) bool { return h.grant != nil && h.grant.By == lost.by && restsOn(h, lost.rest) }
			if slices.ContainsFunc(e.see(other).Grants, func(g *grant) bool { return g.By == lost.by && slices.Contains(g.Rest, lost.rest) }) {
				lose(other, rested)
			}
		}
	}
	return "revoked " + strconv.Itoa(direct) + ", with " + strconv.Itoa(len(losses)-direct) + " that rested on them"
}

// restsOn says whether this capability of a grant rests on a thing of the granter's.
func restsOn(h held, rest string) bool {
	for i := range h.grant.caps {
		if &h.grant.caps[i] == h.cap {
			return h.grant.Rest[i] == rest
		}
	}
	return false
}
