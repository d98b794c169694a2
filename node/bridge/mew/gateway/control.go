package gateway

import (
	"context"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
)

// pause stops those it is addressed to until its timeout, or until somebody else resumes them. Without to it is only
// passed on (MEW-37).
func (s *Space) pause(p *post) *envelope.Refusal {
	var until time.Time
	if v, ok := p.Payload.Get("timeout_seconds"); ok && !v.IsNull() {
		d, ok := envelope.ParseSeconds(v, longestPause)
		if _, isNumber := v.Num(); !ok || !isNumber {
			return envelope.RefuseShape("timeout_seconds must be a number above 0")
		}
		until = time.Now().Add(d)
	}
	for _, m := range s.members.addressed(p.Envelope.To) {
		if m == s.members.operator {
			continue
		}
		m.paused, m.pausedUntil = true, until
		s.auditDone(p, m.name, "paused")
	}
	return nil
}

const longestPause = 365 * 24 * time.Hour

// resume ends the pause of those it is addressed to. Nobody ends his own (MEW-37).
func (s *Space) resume(p *post) *envelope.Refusal {
	for _, m := range s.members.addressed(p.Envelope.To) {
		if m != p.by {
			m.paused = false
		}
	}
	return nil
}

// shutDown silences those it is addressed to until they join again (MEW-42).
func (s *Space) shutDown(p *post) *envelope.Refusal {
	for _, m := range s.members.addressed(p.Envelope.To) {
		if m == s.members.operator {
			continue // could not join again: it has no connection
		}
		m.down = true
		s.auditDone(p, m.name, "shut down")
	}
	return nil
}

// auditDone records an operation that changes nothing durable (MEW-31). It is done whether or not the line could be
// stored: who pauses somebody must not wait for a disk.
func (s *Space) auditDone(p *post, whom, result string) {
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	if err := s.gate.Audit.Add(ctx, s.auditEntry(p.by, p.Kind, whom, result)); err != nil {
		s.gate.Logger.Error("store an audit entry", "space", s.cfg.ID, "err", err)
	}
}

// maxProposals bounds what a space remembers of proposals (MEW-13).
const maxProposals = 10_000

// proposals remembers who proposed what, to refuse a withdrawal by somebody else.
type proposals struct {
	by    map[string][]string // names, by envelope id: ids may repeat
	order []proposal
}

type proposal struct {
	id string
	at time.Time
}

// remember takes note of who proposed p.
func (ps *proposals) remember(p *post) *envelope.Refusal {
	now := time.Now()
	ps.expire(now)
	if ps.by == nil {
		ps.by = make(map[string][]string)
	}
	names := ps.by[p.ID]
	if slices.Contains(names, p.by.name) {
		return nil
	}
	if len(ps.order) >= maxProposals {
		ps.drop(1)
	}
	ps.by[p.ID] = append(names, p.by.name)
	ps.order = append(ps.order, proposal{p.ID, now})
	return nil
}

// checkWithdraw refuses the withdrawal of what somebody else proposed (MEW-13).
func (ps *proposals) checkWithdraw(p *post) *envelope.Refusal {
	for _, id := range p.Correlation {
		if names := ps.by[id]; len(names) > 0 && !slices.Contains(names, p.by.name) {
			return envelope.RefuseName(403, "not_proposer")
		}
	}
	return nil
}

func (ps *proposals) expire(now time.Time) {
	old := 0
	for old < len(ps.order) && now.Sub(ps.order[old].at) > view.KeepProposals {
		old++
	}
	ps.drop(old)
}

func (ps *proposals) drop(n int) {
	for _, old := range ps.order[:n] {
		if names := ps.by[old.id]; len(names) > 1 {
			ps.by[old.id] = names[1:]
		} else {
			delete(ps.by, old.id)
		}
	}
	ps.order = slices.Delete(ps.order, 0, n)
}
