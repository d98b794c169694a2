package directory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/directory/moderation"
	"github.com/agentmesh/agentmesh/directory/submission"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// HandOver lets an owner who lost the credential of a card take the card back before its id becomes free (AM-83). The
// next registration of the id with a proof of the card's key takes the card over, whatever its credential. For an unknown
// id HandOver returns [wire.ErrNoAgent].
func (r *Registry) HandOver(ctx context.Context, id wire.AgentID, reason, by string) error {
	if err := moderation.CheckReason(reason); err != nil {
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
		held.Meta = m.Encode()
		if held.Withdrawn {
			held.Expires = now // the card stays out of every list
		}
		_, err = r.cards.Put(ctx, store.PutCard{Card: held, IfRev: held.Rev, Records: r.cfg.Audit.Changes(now, held.ID, "handed over", reason, by), Now: now})
		r.afterWrite(held.ID)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return fmt.Errorf("hand over %s: %w", id, err)
		}
		r.cfg.Logger.InfoContext(ctx, "card handed over by the operator", "agent_id", held.ID, "reason", reason)
		return nil
	}
	return wire.ErrUnavailable.Because(errors.New("lost every race for the card"))
}

// canTakeOver reports whether a registration may take over the card of another credential if its key proof verifies.
func canTakeOver(held store.Card, s Submission, c submission.Candidate) bool {
	h, err := listing.ParseHead(held)
	if err != nil || !h.HandedOver || s.Proof == "" {
		return false
	}
	key, err := listing.Text(held, "public_key")
	return err == nil && listing.SameKey(key, c.Card.PublicKey) == nil
}

// Remove removes the card with this id for the operator. The id stays reserved for its owner, who may register again
// unless a ban applies. by is the page or client that the operator used, such as "cli", for the audit log. For an
// unknown id Remove returns [wire.ErrNoAgent].
func (r *Registry) Remove(ctx context.Context, id wire.AgentID, reason, by string) error {
	if err := moderation.CheckReason(reason); err != nil {
		return err
	}
	now := wire.Now()
	changes := append(r.cfg.Audit.Changes(now, string(id), "removed", reason, by), moderation.Removal{AgentID: id, Reason: reason, At: now}.Change())
	err := r.cards.Withdraw(ctx, string(id), store.Any, now.Add(reservation), changes, now)
	r.afterWrite(string(id))
	if errors.Is(err, store.ErrNotFound) {
		return wire.ErrNoAgent
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", id, err)
	}
	r.cfg.Logger.InfoContext(ctx, "card removed by the operator", "agent_id", id, "reason", reason)
	return nil
}

// explainMissing returns [wire.ErrRemoved] with the reason if the operator removed the card with this id since its owner
// last registered it, and otherwise [wire.ErrNoAgent]. The change feed shows the reason, too.
func (r *Registry) explainMissing(ctx context.Context, id wire.AgentID, now time.Time) error {
	held, err := r.cards.Held(ctx, string(id), now)
	if errors.Is(err, store.ErrNotFound) || err == nil && !held.Withdrawn {
		return wire.ErrNoAgent
	}
	if err != nil {
		return err
	}
	removal, err := moderation.LastRemoval(ctx, r.recs, id, now)
	if err != nil {
		return err
	}
	if !held.ReservedUntil.Equal(removal.At.Add(reservation)) { // its owner withdrew it
		return wire.ErrNoAgent
	}
	return wire.ErrRemoved.At(wire.OneLine(removal.Reason, 300))
}

// Ban stores a ban, then removes the cards of the banned party with their mail, and returns how many it removed.
func (r *Registry) Ban(ctx context.Context, ban moderation.Ban, by string) (removed int, err error) {
	if err := r.bans.Add(ctx, ban, by); err != nil {
		return 0, err
	}
	r.cfg.Logger.InfoContext(ctx, "banned", "ban", string(ban.Kind)+":"+ban.Value, "reason", ban.Reason)
	remove := func(id wire.AgentID) error {
		err := r.Remove(ctx, id, ban.Reason, by)
		switch {
		case err == nil:
			removed++
		case !errors.Is(err, wire.ErrNoAgent):
			return err
		}
		return r.relay.EmptyMailbox(ctx, id)
	}
	switch {
	case ban.Kind == moderation.BanNetwork && len(r.cfg.AllowPrivate) == 0 && !r.cfg.Local:
		// No card can match: here an endpoint cannot name an address in place of a host.
		return 0, nil
	case ban.Kind == moderation.BanID: // even if the card is not listed
		err := remove(wire.AgentID(ban.Value))
		return removed, err
	}
	for c, err := range listing.All(ctx, r.cards) {
		if err != nil {
			return removed, err
		}
		card, err := listing.ParseCard(c)
		if err != nil {
			r.cfg.Logger.WarnContext(ctx, "a stored card cannot be read", "agent_id", c.ID, "err", err)
			continue
		}
		// The endpoint of a mailbox names this directory, so a ban of a network does not apply to it.
		if ban.Matches(card, r.keys) && (ban.Kind != moderation.BanNetwork || !r.relay.HasMailboxOf(card)) {
			if err := remove(card.ID); err != nil {
				return removed, err
			}
		}
	}
	return removed, nil
}

// JoinLink returns the link with which somebody joins the directory, for an invite code or without one.
func (r *Registry) JoinLink(code string) string { return client.JoinLink(r.cfg.BaseURL, code) }

// afterWrite drops the cached view of a card and wakes readers of the change feed. Call it after each attempt to write
// the card, even if the outcome is unknown.
func (r *Registry) afterWrite(id string) {
	r.views.drop(id)
	r.changed.Broadcast()
}
