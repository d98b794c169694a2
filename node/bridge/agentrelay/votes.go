package agentrelay

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// nsVotes holds proposals and how they were voted on.
const nsVotes = "agentrelay/votes"

const (
	defaultVoteFor   = 7 * 24 * time.Hour
	quorumWindow     = 7 * 24 * time.Hour // AR-42
	keepClosed       = 30 * 24 * time.Hour
	maxOpen          = 100 // AR-44
	maxVotes         = 1000
	maxProposalsADay = 5
	minQuorum        = 2
)

// proposal is a vote. One that is shared is never changed.
type proposal struct {
	ID     string          `json:"id"`
	By     string          `json:"by"`
	At     time.Time       `json:"at"`
	Quorum int             `json:"quorum"` // fixed when it opens
	Votes  map[string]bool `json:"votes,omitempty"`
	Status string          `json:"status,omitempty"` // empty while open
	Closed time.Time       `json:"closed,omitzero"`
}

// tally counts.
func (p *proposal) tally() (approve, reject int) {
	for _, yes := range p.Votes {
		if yes {
			approve++
		} else {
			reject++
		}
	}
	return approve, reject
}

// outcome judges a vote (AR-43); empty while it is open.
func (p *proposal) outcome(now time.Time, voteFor time.Duration) string {
	approve, reject := p.tally()
	switch {
	case 2*approve > p.Quorum && approve > reject:
		return "passed"
	case 2*reject > p.Quorum, now.Sub(p.At) >= voteFor:
		return "rejected"
	}
	return ""
}

func (p *proposal) clone() *proposal {
	c := *p
	c.Votes = make(map[string]bool, len(p.Votes)+1)
	maps.Copy(c.Votes, p.Votes)
	return &c
}

func (p *proposal) change() store.Change {
	body, _ := json.Marshal(p) // strings, times and booleans always encode
	rec := store.Record{NS: nsVotes, Key: p.ID, Body: body}
	if p.Status != "" {
		rec.Expires = p.Closed.Add(keepClosed)
	}
	return store.Change{Record: rec, IfRev: store.Any}
}

// votes knows the proposals, each change durable first.
type votes struct {
	voteFor time.Duration

	writing sync.Mutex // held over a write, so that votes count one after the other; taken before mu

	mu  sync.Mutex
	all map[string]*proposal
}

func loadVotes(ctx context.Context, records store.Records, cfg Extensions) (*votes, error) {
	v := &votes{voteFor: cmp.Or(cfg.VoteFor, defaultVoteFor), all: make(map[string]*proposal)}
	after, now := "", time.Now()
	for {
		page, err := records.List(ctx, nsVotes, "", after, 500, now)
		if err != nil {
			return nil, fmt.Errorf("read the votes of the relay: %w", err)
		}
		for _, rec := range page.Records {
			p := &proposal{}
			if err := json.Unmarshal(rec.Body, p); err != nil {
				return nil, fmt.Errorf("read vote %s: %w", rec.Key, err)
			}
			v.all[p.ID] = p
		}
		if after = page.Next; after == "" {
			return v, nil
		}
	}
}

func (v *votes) get(id string) *proposal {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.all[id]
}

func (v *votes) put(p *proposal) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all[p.ID] = p
}

// room says whether an agent may open another vote (AR-44). What was closed long ago is forgotten on the way, as the
// store does.
func (v *votes) room(by string, now time.Time) *refusal {
	v.mu.Lock()
	defer v.mu.Unlock()
	open, today := 0, 0
	for id, p := range v.all {
		if p.Status != "" && now.Sub(p.Closed) >= keepClosed {
			delete(v.all, id)
			continue
		}
		if p.Status == "" {
			open++
		}
		if p.By == by && now.Sub(p.At) < 24*time.Hour {
			today++
		}
	}
	switch {
	case today >= maxProposalsADay:
		return &refusal{codeRate, "at most 5 proposals a day"}
	case open >= maxOpen:
		return &refusal{codeRate, "too many proposals are open"}
	}
	return nil
}

// surplus returns the closed vote that makes way for another one; "" where there is room.
func (v *votes) surplus() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.all) < maxVotes {
		return ""
	}
	var first *proposal
	for _, p := range v.all {
		if p.Status != "" && (first == nil || p.Closed.Before(first.Closed)) {
			first = p
		}
	}
	return first.ID // no more than maxOpen are open
}

func (v *votes) forget(id string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.all, id)
}

// observe sees the messages that mean a vote: a proposal to everybody opens one, a vote to its proposer counts and is
// delivered too (AR-40, AR-41).
func (r *Relay) observe(ctx context.Context, d delivery) *refusal {
	switch {
	case d.frame.kind == "proposal" && d.frame.broadcast():
		return r.propose(ctx, d)
	case d.frame.kind == "vote" && !d.frame.broadcast():
		p := r.votes.get(d.frame.ref)
		if p == nil || !d.frame.names(p.By) {
			return nil // about something that agents settle among themselves
		}
		return r.cast(ctx, d.from.id, d.frame)
	}
	return nil
}

func (r *Relay) propose(ctx context.Context, d delivery) *refusal {
	r.votes.writing.Lock()
	defer r.votes.writing.Unlock()
	now := time.Now()
	if fault := r.votes.room(d.from.id, now); fault != nil {
		return fault
	}
	p := &proposal{ID: d.id, By: d.from.id, At: now.UTC(), Quorum: max(minQuorum, r.agents.activeSince(now.Add(-quorumWindow)))}
	changes := []store.Change{p.change()}
	old := r.votes.surplus()
	if old != "" {
		changes = append(changes, store.Change{Record: store.Record{NS: nsVotes, Key: old}, IfRev: store.Any, Delete: true})
	}
	if err := r.cfg.Records.Apply(ctx, changes, now); err != nil {
		r.log.Error("store a proposal", "err", err)
		return &refusal{codeUnavailable, "the relay cannot take proposals now"}
	}
	r.votes.forget(old)
	r.votes.put(p)
	return nil
}

// vote takes a vote that was sent to the relay.
func (r *Relay) vote(s *session, f frame) *refusal {
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	r.agents.active(s.id, time.Now())
	return r.cast(ctx, s.id, f)
}

// cast counts a vote: the last one of an agent while the vote is open. Weights are ignored (AR-41).
func (r *Relay) cast(ctx context.Context, voter string, f frame) *refusal {
	approve, _ := f.payload.Get("approve")
	yes, ok := approve.Boolean()
	if !ok {
		return invalid("payload.approve must be true or false")
	}
	r.votes.writing.Lock()
	defer r.votes.writing.Unlock()
	old := r.votes.get(f.ref)
	switch {
	case old == nil:
		return &refusal{codeNoProposal, "ref names no proposal of this relay"}
	case old.Status != "" || old.outcome(time.Now(), r.votes.voteFor) != "":
		return &refusal{codeClosed, "the vote is over"}
	}
	p := old.clone()
	p.Votes[voter] = yes
	return r.settle(ctx, p, time.Now())
}

// settle stores a vote and, where it is decided, says so to everybody, once: the result is durable with the end of the
// vote, so that no restart repeats it (AR-43). The caller holds writing.
func (r *Relay) settle(ctx context.Context, p *proposal, now time.Time) *refusal {
	p.Status = p.outcome(now, r.votes.voteFor)
	var result *entry
	changes := []store.Change{}
	if p.Status != "" {
		p.Closed = now.UTC()
		result = r.result(p)
		if r.history != nil {
			changes = append(changes, r.history.change(result))
		}
	}
	changes = append(changes, p.change())
	if err := r.cfg.Records.Apply(ctx, changes, now); err != nil {
		r.log.Error("store a vote", "err", err)
		return &refusal{codeUnavailable, "the relay cannot take votes now"}
	}
	r.votes.put(p)
	if result != nil {
		if r.history != nil {
			r.history.insert(result)
		}
		r.announce(result.raw)
	}
	return nil
}

// result is the frame that ends a vote.
func (r *Relay) result(p *proposal) *entry {
	approve, reject := p.tally()
	e := &entry{id: newID(), from: relayID, kind: "vote_result", to: []string{everybody}, all: true}
	e.ts, e.seq = r.now()
	e.raw = wire.Obj(
		text("id", e.id), text("from", relayID), wire.Field("to", wire.Texts(e.to)), text("type", e.kind), text("ref", p.ID),
		wire.Field("payload", wire.Obj(
			text("status", p.Status),
			wire.Field("votes", wire.Obj(wire.Field("approve", wire.Int(int64(approve))), wire.Field("reject", wire.Int(int64(reject))))),
			wire.Field("quorum", wire.Int(int64(p.Quorum))),
		)), wire.Field("ts", wire.Int(e.ts)),
	).JSON()
	return e
}

// endVotes ends what nobody decided in time.
func (r *Relay) endVotes(ctx context.Context, now time.Time) {
	r.votes.writing.Lock()
	defer r.votes.writing.Unlock()
	for _, p := range r.votes.due(now) {
		if fault := r.settle(ctx, p.clone(), now); fault != nil {
			return // again in a minute
		}
	}
}

func (v *votes) due(now time.Time) []*proposal {
	v.mu.Lock()
	defer v.mu.Unlock()
	var out []*proposal
	for _, p := range v.all {
		if p.Status == "" && p.outcome(now, v.voteFor) != "" {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *proposal) int { return a.At.Compare(b.At) })
	return out
}
