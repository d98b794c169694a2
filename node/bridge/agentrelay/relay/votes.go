package relay

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// nsVotes is the namespace of proposals and the votes on them.
const nsVotes = "agentrelay/votes"

const (
	defaultVoteDuration = 7 * 24 * time.Hour
	quorumWindow        = 7 * 24 * time.Hour // AR-42
	keepClosed          = 30 * 24 * time.Hour
	maxOpen             = 100  // open proposals (AR-44)
	maxVotes            = 1000 // proposals, open and closed
	maxProposalsADay    = 5
	minQuorum           = 2
)

// proposal is a proposal with its votes. A proposal in votes.all is never changed, only replaced.
type proposal struct {
	ID     string          `json:"id"`
	By     string          `json:"by"` // id of the proposer
	At     time.Time       `json:"at"`
	Quorum int             `json:"quorum"`           // fixed when the vote opens
	Votes  map[string]bool `json:"votes,omitempty"`  // by agent: true approves
	Status string          `json:"status,omitempty"` // empty while open
	Closed time.Time       `json:"closed,omitzero"`
}

func (p *proposal) countVotes() (approve, reject int) {
	for _, yes := range p.Votes {
		if yes {
			approve++
		} else {
			reject++
		}
	}
	return approve, reject
}

// outcome returns "passed" or "rejected" (AR-43), or "" while the vote is open.
func (p *proposal) outcome(now time.Time, voteDuration time.Duration) string {
	approve, reject := p.countVotes()
	switch {
	case 2*approve > p.Quorum && approve > reject:
		return "passed"
	case 2*reject > p.Quorum, now.Sub(p.At) >= voteDuration:
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
	rec := store.Record{NS: nsVotes, Key: p.ID, Body: wire.MustMarshal(p)}
	if p.Status != "" {
		rec.Expires = p.Closed.Add(keepClosed)
	}
	return store.Change{Record: rec, IfRev: store.Any}
}

// votes holds the proposals in memory. It stores each change durably before it makes the change visible.
type votes struct {
	voteDuration time.Duration

	writing sync.Mutex // held during a write, so that votes count one after the other; taken before mu

	mu  sync.Mutex
	all map[string]*proposal
}

func loadVotes(ctx context.Context, records store.Records, cfg Extensions) (*votes, error) {
	v := &votes{voteDuration: cmp.Or(cfg.VoteDuration, defaultVoteDuration), all: make(map[string]*proposal)}
	for p, err := range store.DecodeAll(ctx, records, nsVotes, "", time.Now(), store.Decode[proposal]) {
		if err != nil {
			return nil, fmt.Errorf("read the votes of the relay: %w", err)
		}
		v.all[p.ID] = &p
	}
	return v, nil
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

// checkLimits returns a refusal if an agent may not open another vote (AR-44). It also forgets votes that closed longer
// than keepClosed ago, as the store does.
func (v *votes) checkLimits(by string, now time.Time) *frame.Refusal {
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
		return frame.Refuse(frame.CodeRate, "at most 5 proposals a day")
	case open >= maxOpen:
		return frame.Refuse(frame.CodeRate, "too many proposals are open")
	}
	return nil
}

// oldestVote returns the id of the closed vote to drop to make room for another one, or "" if there is room.
func (v *votes) oldestVote() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.all) < maxVotes {
		return ""
	}
	closedVotes := slices.DeleteFunc(slices.Collect(maps.Values(v.all)), func(p *proposal) bool { return p.Status == "" })
	// The list is not empty: at most maxOpen votes are open.
	return slices.MinFunc(closedVotes, func(a, b *proposal) int { return a.Closed.Compare(b.Closed) }).ID
}

func (v *votes) forget(id string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.all, id)
}

// handleVoting handles the messages that concern votes. A proposal to everybody opens a vote. A vote that is sent to
// the proposer counts, and the relay delivers it too (AR-40, AR-41). isStored is true if handleVoting has stored
// d.toStore.
func (r *Relay) handleVoting(ctx context.Context, d delivery) (isStored bool, fault *frame.Refusal) {
	switch {
	case d.frame.Type == "proposal" && d.frame.IsBroadcast():
		return true, r.propose(ctx, d)
	case d.frame.Type == "vote" && !d.frame.IsBroadcast():
		p := r.votes.get(d.frame.Ref)
		if p == nil || !d.frame.HasTarget(p.By) {
			return false, nil // the agents settle this among themselves
		}
		return false, r.cast(ctx, d.from, d.frame)
	}
	return false, nil
}

// store makes changes durable, together with the message e for the history unless e is nil.
func (r *Relay) store(ctx context.Context, e *entry, changes ...store.Change) error {
	if e == nil {
		return r.cfg.Records.Apply(ctx, changes, time.Now())
	}
	return r.history.append(ctx, e, changes...)
}

// propose stores a proposal, which opens a vote.
func (r *Relay) propose(ctx context.Context, d delivery) *frame.Refusal {
	r.votes.writing.Lock()
	defer r.votes.writing.Unlock()
	now := time.Now()
	if fault := r.votes.checkLimits(d.from, now); fault != nil {
		return fault
	}
	p := &proposal{ID: d.id, By: d.from, At: now.UTC(), Quorum: max(minQuorum, r.agents.ActiveSince(now.Add(-quorumWindow)))}
	changes := []store.Change{p.change()}
	old := r.votes.oldestVote()
	if old != "" {
		changes = append(changes, store.Change{Record: store.Record{NS: nsVotes, Key: old}, IfRev: store.Any, Delete: true})
	}
	if err := r.store(ctx, d.toStore, changes...); err != nil {
		r.log.Error("cannot store a proposal", "err", err)
		return frame.Refuse(frame.CodeUnavailable, "the relay cannot take proposals now")
	}
	r.votes.forget(old)
	r.votes.put(p)
	return nil
}

// cast counts a vote. While the proposal is open, the last vote of each agent counts. Weights are ignored (AR-41).
func (r *Relay) cast(ctx context.Context, voter string, f frame.Frame) *frame.Refusal {
	approve, _ := f.Payload.Get("approve")
	yes, ok := approve.Boolean()
	if !ok {
		return frame.Invalid("payload.approve must be true or false")
	}
	r.votes.writing.Lock()
	defer r.votes.writing.Unlock()
	old := r.votes.get(f.Ref)
	switch {
	case old == nil:
		return frame.Refuse(frame.CodeNoProposal, "ref is not the id of a proposal of this relay")
	case old.Status != "" || old.outcome(time.Now(), r.votes.voteDuration) != "": // closed, or endVotes will close it
		return frame.Refuse(frame.CodeClosed, "the vote is over")
	}
	p := old.clone()
	p.Votes[voter] = yes
	return r.settle(ctx, p, time.Now())
}

// settle stores a proposal and, if it is decided, broadcasts the result. The result becomes durable together with the
// end of the vote, so that no restart repeats it (AR-43). The caller holds r.votes.writing.
func (r *Relay) settle(ctx context.Context, p *proposal, now time.Time) *frame.Refusal {
	p.Status = p.outcome(now, r.votes.voteDuration)
	var result, toStore *entry
	if p.Status != "" {
		p.Closed = now.UTC()
		result = r.newResult(p)
		if r.history != nil {
			toStore = result
		}
	}
	if err := r.store(ctx, toStore, p.change()); err != nil {
		r.log.Error("cannot store a vote", "err", err)
		return frame.Refuse(frame.CodeUnavailable, "the relay cannot take votes now")
	}
	r.votes.put(p)
	if result != nil {
		out := websocket.Text(result.raw)
		for _, s := range r.conns.all() {
			_ = s.conn.Send(out)
		}
	}
	return nil
}

// newResult returns the message that announces the result of a vote.
func (r *Relay) newResult(p *proposal) *entry {
	approve, reject := p.countVotes()
	e := &entry{id: frame.NewID(), from: frame.RelayID, kind: "vote_result", to: []string{frame.Everybody}, broadcast: true}
	e.ts, e.seq = r.stamps.next()
	votes := wire.Obj(wire.Field("approve", wire.Int(int64(approve))), wire.Field("reject", wire.Int(int64(reject))))
	payload := wire.Obj(wire.TextField("status", p.Status), wire.Field("votes", votes), wire.Field("quorum", wire.Int(int64(p.Quorum))))
	e.text = frame.SearchText(e.kind, payload)
	e.raw = frame.Notice{ID: e.id, Type: e.kind, To: frame.Everybody, Ref: p.ID, TS: e.ts, Payload: payload}.Encode()
	return e
}

// endVotes closes the votes whose time is over.
func (r *Relay) endVotes(ctx context.Context, now time.Time) {
	r.votes.writing.Lock()
	defer r.votes.writing.Unlock()
	for _, p := range r.votes.dueVotes(now) {
		if fault := r.settle(ctx, p.clone(), now); fault != nil {
			return // maintain tries again in a minute
		}
	}
}

// dueVotes returns the open proposals whose vote is decided or over, oldest first.
func (v *votes) dueVotes(now time.Time) []*proposal {
	v.mu.Lock()
	defer v.mu.Unlock()
	var out []*proposal
	for _, p := range v.all {
		if p.Status == "" && p.outcome(now, v.voteDuration) != "" {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *proposal) int { return a.At.Compare(b.At) })
	return out
}
