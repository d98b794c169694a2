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

// Token is an invite code as the operator sees it. The code itself is shown once, when it is made.
type Token = credential.Code

// tokenID names a text without giving it away.
func tokenID(text string) string { return credential.HashOf(text).Name() }

func invitesIn(records store.Records) credential.Invites {
	return credential.Invites{Records: records, NS: inviteNS, Name: credential.Hash.Name, Max: maxInvites}
}

// IssueToken makes an invite code that is good for so many uses (0 is 1) until expires, and returns it with its entry.
func (r *Registry) IssueToken(ctx context.Context, label string, uses int, expires time.Time) (code string, t Token, err error) {
	now := clock()
	if uses < 0 || uses > maxUses {
		return "", Token{}, wire.ErrQuery.At("uses must be 1 to 1000")
	}
	if len(label) > maxLabel {
		return "", Token{}, wire.ErrQuery.At("label must be at most 128 bytes")
	}
	if !expires.After(now) {
		return "", Token{}, wire.ErrQuery.At("the token must end in the future")
	}
	code = rand.Text()
	t, change := invitesIn(r.recs).Issue(code, Token{Label: label, Created: now, Expires: expires.UTC(), Uses: max(1, uses)})
	err = r.recs.Apply(ctx, append(r.audit(now, t.ID, "token-issued", "", "owner"), change), now)
	if errors.Is(err, store.ErrQuota) {
		err = wire.ErrQuota
	}
	if err != nil {
		return "", Token{}, fmt.Errorf("issue token: %w", err)
	}
	return code, t, nil
}

// Tokens lists invite codes in the order of their ids, used ones too, until they expire.
func (r *Registry) Tokens(ctx context.Context, after string, limit int) (tokens []Token, next string, err error) {
	return invitesIn(r.recs).List(ctx, after, limit, clock())
}

// RevokeToken makes a code worthless. Cards that it brought in stay. An unknown id is [wire.ErrRoute].
func (r *Registry) RevokeToken(ctx context.Context, id string) error {
	now := clock()
	if len(id) != len(tokenID("")) {
		return wire.ErrRoute
	}
	gone, err := invitesIn(r.recs).Revoke(ctx, id, now)
	if err == nil {
		err = r.recs.Apply(ctx, append(r.audit(now, id, "token-revoked", "", "owner"), gone), now)
	}
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrConflict) {
		return wire.ErrRoute
	}
	return err
}

// admit decides by mode whether a new card may come in (AM-56), and returns what it uses up: an invite code is
// spent in the same unit that stores the card.
func (r *Registry) admit(ctx context.Context, id wire.AgentID, s Submission, owner [32]byte, now time.Time) ([]store.Change, error) {
	if r.cfg.Mode == Open || r.operator(owner) {
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
		if err := r.throttled(s.Client, now); err != nil {
			return nil, err
		}
		r.failed(ctx, s.Client, now)
		return nil, wire.ErrClosed
	case errors.Is(err, credential.ErrSpent):
		return nil, wire.ErrClosed.Because(err)
	case err != nil:
		return nil, err
	case t.Uses > 1 && code == s.Bearer: // as a credential it would let each of its users change the cards of all
		return nil, wire.ErrClosed.At("send this code as " + wire.HeaderInvite + ", beside a bearer of your own")
	}
	return []store.Change{change}, nil
}
