package directory

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	inviteNS   = "invites"
	maxInvites = 10_000
	maxLabel   = 128 // bytes
	maxUses    = 1000
)

// tokenID returns a hash that identifies a text without revealing it.
func tokenID(text string) string { return credential.HashOf(text).Name() }

func invitesIn(records store.Records) credential.Invites {
	return credential.Invites{Records: records, NS: inviteNS, Name: credential.Hash.Name, Max: maxInvites}
}

// IssueToken makes an invite code for up to uses registrations (0 is 1) until expires. It returns the code and its entry
// in the list. by is the interface that the order came from.
func (r *Registry) IssueToken(ctx context.Context, label string, uses int, expires time.Time, by string) (code string, t credential.Code, err error) {
	now := clock()
	if uses < 0 || uses > maxUses {
		return "", credential.Code{}, wire.ErrQuery.At("uses must be 1 to 1000")
	}
	if len(label) > maxLabel {
		return "", credential.Code{}, wire.ErrQuery.At("label must be at most 128 bytes")
	}
	if !expires.After(now) {
		return "", credential.Code{}, wire.ErrQuery.At("expires_at must be in the future")
	}
	code = rand.Text()
	t, change := invitesIn(r.recs).Issue(code, credential.Code{Label: label, Created: now, Expires: expires.UTC(), Uses: max(1, uses)})
	err = r.recs.Apply(ctx, append(r.audit(now, t.ID, "token-issued", "", by), change), now)
	if errors.Is(err, store.ErrQuota) {
		err = wire.ErrQuota
	}
	if err != nil {
		return "", credential.Code{}, fmt.Errorf("issue token: %w", err)
	}
	return code, t, nil
}

// Tokens lists the invite codes that have not expired, including used ones, in the order of their ids.
func (r *Registry) Tokens(ctx context.Context, after string, limit int) (tokens []credential.Code, next string, err error) {
	return invitesIn(r.recs).List(ctx, after, limit, clock())
}

// RevokeToken makes a code invalid. Cards that were registered with the code stay. For an unknown id it returns
// [wire.ErrRoute].
func (r *Registry) RevokeToken(ctx context.Context, id, by string) error {
	now := clock()
	if len(id) != len(tokenID("")) {
		return wire.ErrRoute
	}
	gone, err := invitesIn(r.recs).Revoke(ctx, id, now)
	if err == nil {
		err = r.recs.Apply(ctx, append(r.audit(now, id, "token-revoked", "", by), gone), now)
	}
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrConflict) {
		return wire.ErrRoute
	}
	return err
}

// admit decides by mode whether a new card may be registered (AM-56). It returns the change that takes one use of
// the invite code, which is stored in the same transaction as the card.
func (r *Registry) admit(ctx context.Context, id wire.AgentID, s Submission, owner [32]byte, now time.Time) ([]store.Change, error) {
	if r.cfg.Mode == Open || r.isOperator(owner) {
		return nil, nil
	}
	if r.cfg.Mode != Invite {
		return nil, wire.ErrClosed
	}
	code := s.Invite
	if code == "" {
		code = s.Bearer // the code itself becomes the credential
	}
	t, change, err := invitesIn(r.recs).Redeem(ctx, code, string(id), now)
	switch {
	case errors.Is(err, store.ErrNotFound):
		if err := r.checkThrottle(s.Client, now); err != nil {
			return nil, err
		}
		r.countFailure(ctx, s.Client, now)
		return nil, wire.ErrClosed
	case errors.Is(err, credential.ErrSpent):
		return nil, wire.ErrClosed.Because(err)
	case err != nil:
		return nil, err
	case t.Uses > 1 && code == s.Bearer: // as a credential it would let every user of the code change the cards of the others
		return nil, wire.ErrClosed.At("send this code as " + wire.HeaderInvite + ", and a bearer token of your own")
	}
	return []store.Change{change}, nil
}
