package mew

import (
	"context"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/wire"
)

// pause stops those it is addressed to until its timeout, or until somebody else resumes them. Without to it is only
// passed on (MEW-37).
func (s *Space) pause(p *post) *envelope.Refusal {
	var until time.Time
	if v, ok := p.Payload.Get("timeout_seconds"); ok && !v.IsNull() {
		d, ok := seconds(v)
		if !ok {
			return envelope.RefuseShape("timeout_seconds must be a number above 0")
		}
		until = time.Now().Add(d)
	}
	for _, m := range s.addressed(p) {
		if m == s.operator {
			continue
		}
		m.paused, m.pausedUntil = true, until
		s.auditDone(p, m.name, "paused")
	}
	return nil
}

const longestPause = 365 * 24 * time.Hour

func seconds(v wire.Value) (time.Duration, bool) {
	token, ok := v.Num()
	if !ok {
		return 0, false
	}
	f, err := strconv.ParseFloat(token, 64)
	if err != nil || f <= 0 || math.IsNaN(f) {
		return 0, false
	}
	if f >= longestPause.Seconds() {
		return longestPause, true
	}
	return time.Duration(f * float64(time.Second)), true
}

// addressed returns the known participants that an envelope is addressed to.
func (s *Space) addressed(p *post) []*member {
	var out []*member
	for _, id := range p.Envelope.To {
		if m := s.find(id); m != nil && !slices.Contains(out, m) {
			out = append(out, m)
		}
	}
	return out
}

// resume ends the pause of those it is addressed to. Nobody ends his own (MEW-37).
func (s *Space) resume(p *post) *envelope.Refusal {
	for _, m := range s.addressed(p) {
		if m != p.by {
			m.paused = false
		}
	}
	return nil
}

// shutDown silences those it is addressed to until they join again (MEW-42).
func (s *Space) shutDown(p *post) *envelope.Refusal {
	for _, m := range s.addressed(p) {
		if m == s.operator {
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
	if err := s.audit.Add(ctx, s.auditEntry(p.by, p.Kind, whom, result)); err != nil {
		s.log.Error("store an audit entry", "space", s.id, "err", err)
	}
}

// The bounds on what a space remembers of proposals (MEW-13).
const (
	maxProposals  = 10_000
	keepProposals = 24 * time.Hour
)

// proposals remembers who proposed what, to refuse a withdrawal by somebody else.
type proposals struct {
	by    map[string][]string // names, by envelope id: ids may repeat
	order []proposal
}

type proposal struct {
	id string
	at time.Time
}

func (s *Space) rememberProposal(p *post) *envelope.Refusal {
	now := time.Now()
	s.proposals.expire(now)
	if s.proposals.by == nil {
		s.proposals.by = make(map[string][]string)
	}
	names := s.proposals.by[p.ID]
	if slices.Contains(names, p.by.name) {
		return nil
	}
	if len(s.proposals.order) >= maxProposals {
		s.proposals.drop(1)
	}
	s.proposals.by[p.ID] = append(names, p.by.name)
	s.proposals.order = append(s.proposals.order, proposal{p.ID, now})
	return nil
}

func (s *Space) checkWithdraw(p *post) *envelope.Refusal {
	for _, id := range p.Correlation {
		if names := s.proposals.by[id]; len(names) > 0 && !slices.Contains(names, p.by.name) {
			return envelope.RefuseName(403, "not_proposer")
		}
	}
	return nil
}

func (ps *proposals) expire(now time.Time) {
	old := 0
	for old < len(ps.order) && now.Sub(ps.order[old].at) > keepProposals {
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
