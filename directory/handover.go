package directory

import (
	"context"
	"errors"
	"fmt"

	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// HandOver lets an owner who lost the credential of a card take the card back before its registration and reservation
// end (AM-83). The next registration of the id that proves the card's key takes the card over, with any credential. For
// an unknown id HandOver returns [wire.ErrNoAgent].
func (r *Registry) HandOver(ctx context.Context, id wire.AgentID, reason, by string) error {
	if err := checkReason(reason); err != nil {
		return err
	}
	for range attempts {
		now := wire.Now()
		held, err := r.cards.Held(ctx, string(id), now)
		if errors.Is(err, store.ErrNotFound) {
			return wire.ErrNoAgent
		}
		if err != nil {
			return fmt.Errorf("hand over %s: %w", id, err)
		}
		m, err := listing.ParseMeta(held)
		if err != nil {
			return err
		}
		m.HandedOver = true
		if held.Meta, err = m.Encode(); err != nil {
			return err
		}
		if held.Withdrawn {
			held.Expires = now // the card stays out of every list
		}
		_, err = r.cards.Put(ctx, store.PutCard{Card: held, IfRev: held.Rev, Records: r.audit(now, held.ID, "handed over", reason, by), Now: now})
		r.afterWrite(held.ID)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return fmt.Errorf("hand over %s: %w", id, err)
		}
		r.log.InfoContext(ctx, "card handed over by the operator", "agent_id", held.ID, "reason", reason)
		return nil
	}
	return wire.ErrUnavailable.Because(errors.New("lost every race for the card"))
}

// canTakeOver reports whether a registration may take over a card of another credential. The key proof is verified
// later, as for every registration.
func canTakeOver(held store.Card, s Submission, c candidate) bool {
	m, err := listing.ParseMeta(held)
	if err != nil || !m.HandedOver || s.Proof == "" {
		return false
	}
	key, err := listing.Text(held, "public_key")
	return err == nil && listing.SameKey(key, c.card.PublicKey) == nil
}
