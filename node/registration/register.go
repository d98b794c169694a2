package registration

import (
	"context"
	"errors"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// register registers the card in a directory. If the directory assigns another id, the node adopts it, provided that
// nobody knows the node by its current id yet, or that the owner asked for it. A node has only one agent id, because
// that id is in every message that it signs (AM-57). In any other case the node withdraws the registration: messages to
// the assigned id would be refused, and recipients would not find our messages under it.
func (r *Registrar) register(ctx context.Context, p *registration, s *registrationState, how visitMode) error {
	id := r.identity.Load()
	credential := r.Credential(p.dir)
	if err := r.withdrawOldID(ctx, p, s, id.Card.ID); err != nil {
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
		follow, err := r.canChangeID(ctx, p)
		if err != nil {
			return err
		}
		if !follow && how != visitAndAdopt {
			if err := p.dir.Withdraw(ctx, reg.AgentID, credential); err != nil {
				r.cfg.Logger.Warn("withdraw registration", "directory", s.Directory, "agent_id", reg.AgentID, "err", err)
			}
			s.AgentID = ""
			return &otherIDError{s.Directory}
		}
		if err := r.adopt(ctx, reg.AgentID); err != nil {
			return err
		}
		r.cfg.Logger.Info("the agent id has changed", "from", id.Card.ID, "to", reg.AgentID, "directory", s.Directory)
		r.scheduleOthers(p)
		id = r.identity.Load()
	}
	s.recordSuccess(reg, cardDigest(listed), time.Now())
	r.cfg.Logger.Info("registered", "directory", s.Directory, "agent_id", reg.AgentID, "expires", reg.ExpiresAt)
	card := id.Card.WithoutPrivateLists()
	if s.Card == cardDigest(card) {
		return nil
	}
	if reg, err = p.dir.Renew(ctx, card, credential, id.Key); err != nil { // a mailbox endpoint changes with the id
		return err
	}
	s.recordSuccess(reg, cardDigest(card), time.Now())
	return nil
}

var errForeignID = errors.New("the directory assigns an agent id that belongs to another key (AM-2)")

// withdrawOldID withdraws the registration that a directory still has under an earlier id of the node.
func (r *Registrar) withdrawOldID(ctx context.Context, p *registration, s *registrationState, now wire.AgentID) error {
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

// scheduleOthers makes Run soon visit every directory except here.
func (r *Registrar) scheduleOthers(here *registration) {
	r.mu.Lock()
	for _, p := range r.registrations {
		if p != here {
			p.next = time.Time{}
		}
	}
	r.mu.Unlock()
	r.wake()
}

// otherIDError refuses a directory that assigns an id to a node that is already known by another one.
type otherIDError struct{ directory string }

func (e *otherIDError) Error() string {
	return "the directory assigns its own agent ids, and this node is already known by another id"
}

// Hint tells the owner what to do.
func (e *otherIDError) Hint() string {
	return "to use the new id, run: agentmesh register --adopt --directory " + e.directory + "; peers then know the node only by that id (docs/operations.md, Adopted ids)"
}

// canChangeID reports whether the node's id may still change: no other directory lists it, and no peer has a
// conversation with it.
func (r *Registrar) canChangeID(ctx context.Context, here *registration) (bool, error) {
	r.mu.Lock()
	for _, p := range r.registrations {
		if p != here && p.state.AgentID != "" {
			r.mu.Unlock()
			return false, nil
		}
	}
	r.mu.Unlock()
	page, err := r.cfg.Store.Steps().Conversations(ctx, "", 0, 1, time.Now())
	return err == nil && len(page.Conversations) == 0, err
}
