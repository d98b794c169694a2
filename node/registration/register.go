package registration

import (
	"context"
	"errors"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// register puts the card into a directory. One that gives an id of its own is followed if nobody knows the node by
// another one yet, or if the owner says so: a node has one agent id, which is what it signs as (AM-57). Else the entry is
// taken back, because messages to it would be refused and messages of ours would not be found under it.
func (r *Registrar) register(ctx context.Context, p *place, s *placeState, how visiting) error {
	id := r.identity.Load()
	credential := r.Credential(p.dir)
	if err := r.leave(ctx, p, s, id.Card.ID); err != nil {
		return err
	}
	reg, listed, err := p.dir.Register(ctx, id.Card.WithoutPrivateLists(), credential, id.Key)
	if err != nil {
		return err
	}
	if reg.AgentID != id.Card.ID {
		if reg.AgentID.HasDerivedShape() && reg.AgentID != id.Key.Public().AgentID() {
			return errForeignID
		}
		follow, err := r.nobodyKnowsUs(ctx, p)
		if err != nil {
			return err
		}
		if !follow && how != adopting {
			if err := p.dir.Withdraw(ctx, reg.AgentID, credential); err != nil {
				r.cfg.Logger.Warn("take back entry", "directory", s.Directory, "agent_id", reg.AgentID, "err", err)
			}
			s.AgentID = ""
			return &otherIDError{s.Directory}
		}
		if err := r.adopt(ctx, reg.AgentID); err != nil {
			return err
		}
		r.cfg.Logger.Info("the agent id has changed", "from", id.Card.ID, "to", reg.AgentID, "directory", s.Directory)
		r.visitOthers(p)
		id = r.identity.Load()
	}
	s.listed(reg, cardDigest(listed), time.Now())
	r.cfg.Logger.Info("registered", "directory", s.Directory, "agent_id", reg.AgentID, "expires", reg.ExpiresAt)
	card := id.Card.WithoutPrivateLists()
	if s.Card == cardDigest(card) {
		return nil
	}
	if reg, err = p.dir.Renew(ctx, card, credential, id.Key); err != nil { // with the id, the endpoint of a mailbox has changed
		return err
	}
	s.listed(reg, cardDigest(card), time.Now())
	return nil
}

var errForeignID = errors.New("the directory gives an agent id that belongs to another key (AM-2)")

// leave withdraws the entry that a directory still has under an id that the node had before.
func (r *Registrar) leave(ctx context.Context, p *place, s *placeState, now wire.AgentID) error {
	if s.AgentID == "" || s.AgentID == now {
		return nil
	}
	err := p.dir.Withdraw(ctx, s.AgentID, r.Credential(p.dir))
	if err != nil && !errors.Is(err, client.ErrUnknownAgent) && !errors.Is(err, client.ErrCredential) {
		return err
	}
	s.AgentID = ""
	return nil
}

// visitOthers has every directory except here visited soon.
func (r *Registrar) visitOthers(here *place) {
	r.mu.Lock()
	for _, p := range r.places {
		if p != here {
			p.next = time.Time{}
		}
	}
	r.mu.Unlock()
	r.poke()
}

// otherIDError refuses a directory that gives the node another id than the one by which it is known.
type otherIDError struct{ directory string }

func (e *otherIDError) Error() string {
	return "the directory gives every agent an id of its own, and this node is known by another one already"
}

// Hint says what a person can do.
func (e *otherIDError) Hint() string {
	return "agentmesh register --adopt --directory " + e.directory + " takes the new id; peers then know the node only by that (docs/operations.md, Adopted ids)"
}

// nobodyKnowsUs reports whether the node's id may still change: no other directory lists it, and nobody has talked to it.
func (r *Registrar) nobodyKnowsUs(ctx context.Context, here *place) (bool, error) {
	r.mu.Lock()
	for _, p := range r.places {
		if p != here && p.state.AgentID != "" {
			r.mu.Unlock()
			return false, nil
		}
	}
	r.mu.Unlock()
	page, err := r.cfg.Store.Steps().Conversations(ctx, "", 0, 1, time.Now())
	return err == nil && len(page.Conversations) == 0, err
}
