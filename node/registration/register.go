package registration

import (
	"context"
	"errors"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
)

// register registers the card in a directory. The directory may assign another agent id. A node has only one agent id,
// because that id is in every message that the node signs (AM-57). So register adopts the assigned id only if nobody
// knows the node by its current id yet, or if the owner asked for it. Otherwise it withdraws the registration. If the
// assigned id is derived from another key, the error is errForeignID.
func (r *Registrar) register(ctx context.Context, p *registration, s *registrationState, how visitMode) error {
	own := r.identity.Load()
	credential := r.Credential(p.dir)
	if err := r.withdrawOldID(ctx, p, s, own.Card.ID); err != nil {
		return err
	}
	reg, listedCard, err := p.dir.Register(ctx, own.Card.WithoutPrivateLists(), credential, own.Key)
	if err != nil {
		return err
	}
	if reg.AgentID != own.Card.ID {
		isForeign := reg.AgentID.HasDerivedShape() && reg.AgentID != own.Key.Public().AgentID()
		canChange, err := r.canChangeID(ctx, p)
		if err != nil {
			return err
		}
		if isForeign || !canChange && how != renewAndAdopt {
			if err := p.dir.Withdraw(ctx, reg.AgentID, credential); err != nil {
				r.cfg.Logger.Warn("earlier registration not withdrawn; it ends by itself", "directory", s.Directory, "agent_id", reg.AgentID, "err", err)
			}
			s.AgentID = ""
			if isForeign {
				return errForeignID
			}
			return &otherIDError{s.Directory}
		}
		if err := r.adopt(ctx, reg.AgentID); err != nil {
			return err
		}
		r.cfg.Logger.Info("the agent id has changed", "from", own.Card.ID, "to", reg.AgentID, "directory", s.Directory)
		r.scheduleOthers(p)
		own = r.identity.Load()
	}
	s.recordSuccess(reg, own.Key, cardDigest(listedCard), time.Now())
	r.cfg.Logger.Info("registered", "directory", s.Directory, "agent_id", reg.AgentID, "expires", reg.ExpiresAt)
	card := own.Card.WithoutPrivateLists()
	if s.Card == cardDigest(card) {
		return nil
	}
	if reg, err = p.dir.Renew(ctx, card, credential, own.Key); err != nil { // the new id also changed the endpoint, if that is a mailbox
		return err
	}
	s.recordSuccess(reg, own.Key, cardDigest(card), time.Now())
	return nil
}

var errForeignID = errors.New("the directory assigns an agent id that belongs to another key")

// withdrawOldID withdraws the registration under the id in s, unless that is ownID. It succeeds if the directory no
// longer knows that id or our credential.
func (r *Registrar) withdrawOldID(ctx context.Context, p *registration, s *registrationState, ownID wire.AgentID) error {
	if s.AgentID == "" || s.AgentID == ownID {
		return nil
	}
	err := p.dir.Withdraw(ctx, s.AgentID, r.Credential(p.dir))
	if err != nil && !errors.Is(err, client.ErrUnknownAgent) && !errors.Is(err, client.ErrCredential) {
		return err
	}
	s.AgentID = ""
	return nil
}

// scheduleOthers makes Run visit the other directories as soon as it can.
func (r *Registrar) scheduleOthers(current *registration) {
	r.mu.Lock()
	for _, p := range r.registrations {
		if p != current {
			p.next = time.Time{}
		}
	}
	r.mu.Unlock()
	waiting.Wake(r.wakeup)
}

// otherIDError means that a directory assigns an id to a node that is already known by another id.
type otherIDError struct{ directory string }

func (e *otherIDError) Error() string {
	return "the directory assigns its own agent ids, and this node is already known by another id"
}

func (e *otherIDError) Hint() string {
	return "to use the new id, run: agentmesh register --adopt --directory " + e.directory + "; peers then know the node only by that id (docs/operations.md, Adopted ids)"
}

// canChangeID reports whether the node's id may still change: no other directory lists the node, and no peer has a
// conversation with it.
func (r *Registrar) canChangeID(ctx context.Context, current *registration) (bool, error) {
	r.mu.Lock()
	for _, p := range r.registrations {
		if p != current && p.state.AgentID != "" {
			r.mu.Unlock()
			return false, nil
		}
	}
	r.mu.Unlock()
	page, err := r.cfg.Store.Steps().Conversations(ctx, "", 0, 1, time.Now())
	return err == nil && len(page.Conversations) == 0, err
}
