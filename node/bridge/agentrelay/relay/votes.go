package relay

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// nsVotes is the namespace of proposals and the votes on them.
const nsVotes = "agentrelay/votes"

// openVote is the term of the proposals whose vote is open.
const openVote = "open"

const (
	defaultVoteDuration = 7 * 24 * time.Hour
	quorumWindow        = 7 * 24 * time.Hour // AR-42
	keepClosed          = 30 * 24 * time.Hour
	maxOpen             = 100  // open proposals (AR-44)
	maxVotes            = 1000 // proposals, open and closed
	maxProposalsADay    = 5
	minQuorum           = 2
)

// proposal is a proposal with its votes.
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

func (p *proposal) change() store.Change {
	rec := store.Record{NS: nsVotes, Key: p.ID, Body: wire.MustMarshal(p), Terms: []string{openVote}}
	if p.Status != "" {
		rec.Terms, rec.Expires = nil, p.Closed.Add(keepClosed)
	}
	return store.Change{Record: rec, IfRev: store.Any}
}

// proposals returns the stored proposals, the oldest first.
func (r *Relay) proposals(ctx context.Context, term string, now time.Time) (list []proposal, err error) {
	for p, err := range store.DecodeAll(ctx, r.cfg.Records, nsVotes, term, now, store.Decode[proposal]) {
		if err != nil {
			return nil, fmt.Errorf("read the votes of the relay: %w", err)
		}
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b proposal) int { return a.At.Compare(b.At) })
	return list, nil
}

// proposal returns a stored proposal. It has no proposer if there is no such proposal.
func (r *Relay) proposal(ctx context.Context, id string, now time.Time) (p proposal, err error) {
	_, _, err = store.ReadRecord(ctx, r.cfg.Records, nsVotes, id, &p, now)
	return p, err
}

// checkLimits returns a refusal if an agent may not open another vote (AR-44).
func checkLimits(list []proposal, by string, now time.Time) *frame.Refusal {
	open, today := 0, 0
	for _, p := range list {
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

// handleVoting handles the messages that concern votes. A proposal to everybody opens a vote. A vote that is sent to
// the proposer counts, and the relay delivers it too (AR-40, AR-41). isStored is true if handleVoting has stored
// d.toStore.
func (r *Relay) handleVoting(ctx context.Context, d delivery) (isStored bool, fault *frame.Refusal) {
	switch {
	case d.frame.Type == "proposal" && d.frame.IsBroadcast():
		return true, r.propose(ctx, d)
	case d.frame.Type == "vote" && !d.frame.IsBroadcast():
		p, err := r.proposal(ctx, d.frame.Ref, time.Now())
		if err != nil {
			return false, r.refuseVoting(err)
		}
		if p.By == "" || !d.frame.HasTarget(p.By) {
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

// refuseVoting logs that the store failed, and returns the refusal for the agent.
func (r *Relay) refuseVoting(err error) *frame.Refusal {
	r.log.Error("cannot read or store votes", "err", err)
	return frame.Refuse(frame.CodeUnavailable, "the relay cannot take proposals and votes now")
}

// propose stores a proposal, which opens a vote. If too many are stored, the vote that closed first makes room.
func (r *Relay) propose(ctx context.Context, d delivery) *frame.Refusal {
	r.voting.Lock()
	defer r.voting.Unlock()
	now := time.Now()
	list, err := r.proposals(ctx, "", now)
	if err != nil {
		return r.refuseVoting(err)
	}
	if fault := checkLimits(list, d.from, now); fault != nil {
		return fault
	}
	p := proposal{ID: d.id, By: d.from, At: now.UTC(), Quorum: max(minQuorum, r.agents.ActiveSince(now.Add(-quorumWindow)))}
	changes := []store.Change{p.change()}
	if len(list) >= maxVotes {
		closed := slices.DeleteFunc(list, func(p proposal) bool { return p.Status == "" }) // not empty: at most maxOpen are open
		old := slices.MinFunc(closed, func(a, b proposal) int { return a.Closed.Compare(b.Closed) })
		changes = append(changes, store.Change{Record: store.Record{NS: nsVotes, Key: old.ID}, IfRev: store.Any, Delete: true})
	}
	if err := r.store(ctx, d.toStore, changes...); err != nil {
		return r.refuseVoting(err)
	}
	return nil
}

// cast counts a vote. While the proposal is open, the last vote of each agent counts. Weights are ignored (AR-41).
func (r *Relay) cast(ctx context.Context, voter string, f frame.Frame) *frame.Refusal {
	approve, _ := f.Payload.Get("approve")
	yes, ok := approve.Boolean()
	if !ok {
		return frame.Invalid("payload.approve must be true or false")
	}
	r.voting.Lock()
	defer r.voting.Unlock()
	now := time.Now()
	p, err := r.proposal(ctx, f.Ref, now)
	switch {
	case err != nil:
		return r.refuseVoting(err)
	case p.By == "":
		return frame.Refuse(frame.CodeNoProposal, "ref is not the id of a proposal of this relay")
	case p.Status != "" || p.outcome(now, r.cfg.Extensions.VoteDuration) != "": // closed, or endVotes will close it
		return frame.Refuse(frame.CodeClosed, "the vote is over")
	case p.Votes == nil:
		p.Votes = make(map[string]bool)
	}
	p.Votes[voter] = yes
	return r.settle(ctx, p, now)
}

// settle stores a proposal and, if it is decided, broadcasts the result. The result becomes durable together with the
// end of the vote, so that no restart repeats it (AR-43). The caller holds r.voting.
func (r *Relay) settle(ctx context.Context, p proposal, now time.Time) *frame.Refusal {
	p.Status = p.outcome(now, r.cfg.Extensions.VoteDuration)
	var result, toStore *entry
	if p.Status != "" {
		p.Closed = now.UTC()
		result = r.newResult(p)
		if r.history != nil {
			toStore = result
		}
	}
	if err := r.store(ctx, toStore, p.change()); err != nil {
		return r.refuseVoting(err)
	}
	if result != nil {
		out := websocket.Text(result.raw)
		for _, s := range r.conns.all() {
			_ = s.conn.Send(out)
		}
	}
	return nil
}

// newResult returns the message that announces the result of a vote.
func (r *Relay) newResult(p proposal) *entry {
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
	r.voting.Lock()
	defer r.voting.Unlock()
	list, err := r.proposals(ctx, openVote, now)
	if err != nil {
		r.log.Error("cannot end votes", "err", err)
	}
	for _, p := range list {
		if p.outcome(now, r.cfg.Extensions.VoteDuration) == "" {
			continue
		}
		if fault := r.settle(ctx, p, now); fault != nil {
			return // maintain tries again in a minute
		}
	}
}
