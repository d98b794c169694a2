package gateway

import (
	"context"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
)

// pause pauses the addressed participants, except the space's owner, until the timeout, or until another participant
// resumes them. A pause without "to" is delivered but pauses nobody (MEW-37).
func (s *Space) pause(p *submission) *envelope.Refusal {
	var until time.Time
	if v, ok := p.Payload.Get("timeout_seconds"); ok && !v.IsNull() {
		d, ok := envelope.ParseSeconds(v, longestPause)
		if _, isNumber := v.Num(); !ok || !isNumber {
			return envelope.RefuseShape("timeout_seconds must be a number above 0")
		}
		until = time.Now().Add(d)
	}
	s.control(p, "paused", func(m *member) { m.paused, m.pausedUntil = true, until })
	return nil
}

const longestPause = 365 * 24 * time.Hour

// resume ends the pause of the addressed participants. A participant cannot end its own pause (MEW-37).
func (s *Space) resume(p *submission) *envelope.Refusal {
	for _, m := range s.members.findAll(p.Envelope.To) {
		if m != p.by {
			m.paused = false
		}
	}
	return nil
}

// shutDown silences the addressed participants until they join again (MEW-42).
func (s *Space) shutDown(p *submission) *envelope.Refusal {
	s.control(p, "shut down", func(m *member) { m.down = true })
	return nil
}

// control applies a pause or a shutdown to the addressed participants, and writes an audit entry for each (MEW-31). It
// leaves out the space's owner, who could not join again after a shutdown. If the audit log fails, control only logs
// the error, because a pause must not depend on a disk.
func (s *Space) control(p *submission, result string, apply func(*member)) {
	var entries []acl.AuditEntry
	for _, m := range s.members.findAll(p.Envelope.To) {
		if m != s.members.owner {
			apply(m)
			entries = append(entries, s.auditEntry(p.by, p.Kind, m.name, result))
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	if err := s.gatewayCfg.Audit.Add(ctx, entries...); err != nil {
		s.gatewayCfg.Logger.Error("audit entries not stored; what they describe has happened", "space", s.cfg.ID, "err", err)
	}
}

// maxProposals bounds the proposals that a space remembers (MEW-13).
const maxProposals = 10_000

// proposals remembers who made each proposal, so that no other participant can withdraw it.
type proposals struct {
	proposers map[string][]string // by envelope id; ids may repeat
	order     []proposal          // the oldest first
}

type proposal struct {
	id string
	at time.Time
}

// remember stores the proposer. It refuses nothing.
func (ps *proposals) remember(p *submission) *envelope.Refusal {
	now := time.Now()
	ps.expire(now)
	if ps.proposers == nil {
		ps.proposers = make(map[string][]string)
	}
	if slices.Contains(ps.proposers[p.ID], p.by.name) {
		return nil
	}
	if len(ps.order) >= maxProposals {
		ps.drop(1) // the oldest one, which may have the same id
	}
	ps.proposers[p.ID] = append(ps.proposers[p.ID], p.by.name)
	ps.order = append(ps.order, proposal{p.ID, now})
	return nil
}

// checkWithdraw refuses the withdrawal of a proposal that another participant made (MEW-13).
func (ps *proposals) checkWithdraw(p *submission) *envelope.Refusal {
	for _, id := range p.Correlation {
		if names := ps.proposers[id]; len(names) > 0 && !slices.Contains(names, p.by.name) {
			return envelope.RefuseWithName(403, "not_proposer")
		}
	}
	return nil
}

// expire forgets the proposals that are older than [view.KeepProposals].
func (ps *proposals) expire(now time.Time) {
	n := 0
	for n < len(ps.order) && now.Sub(ps.order[n].at) > view.KeepProposals {
		n++
	}
	ps.drop(n)
}

// drop forgets the oldest n proposals.
func (ps *proposals) drop(n int) {
	for _, old := range ps.order[:n] {
		if names := ps.proposers[old.id]; len(names) > 1 {
			ps.proposers[old.id] = names[1:]
		} else {
			delete(ps.proposers, old.id)
		}
	}
	ps.order = slices.Delete(ps.order, 0, n)
}
