package admission

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
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

// IssueToken makes an invite code for up to uses registrations (0 is 1). by is the page or client that the operator
// used, such as "cli".
func (g *Gate) IssueToken(ctx context.Context, label string, uses int, expires time.Time, by string) (code string, t credential.Code, err error) {
	now := wire.Now()
	switch {
	case uses < 0 || uses > maxUses:
		return "", credential.Code{}, wire.ErrQuery.At("uses must be 1 to 1000")
	case len(label) > maxLabel:
		return "", credential.Code{}, wire.ErrQuery.At("label must be at most 128 bytes")
	case !expires.After(now):
		return "", credential.Code{}, wire.ErrQuery.At("expires_at must be in the future")
	}
	code = rand.Text()
	t, change := g.invites.Issue(code, credential.Code{Label: label, Created: now, Expires: expires.UTC(), Uses: max(1, uses)})
	err = g.cfg.Store.Records().Apply(ctx, append(g.cfg.Audit(now, t.ID, "token-issued", "", by), change), now)
	if errors.Is(err, store.ErrQuota) {
		err = wire.ErrQuota
	}
	if err != nil {
		return "", credential.Code{}, fmt.Errorf("issue token: %w", err)
	}
	return code, t, nil
}

// Tokens lists the invite codes that have not expired, including used ones, in the order of their ids.
func (g *Gate) Tokens(ctx context.Context, after string, limit int) (tokens []credential.Code, next string, err error) {
	return g.invites.List(ctx, after, limit, wire.Now())
}

// RevokeToken makes a code invalid. Cards that were registered with the code stay. For an unknown id it returns
// [wire.ErrRoute].
func (g *Gate) RevokeToken(ctx context.Context, id, by string) error {
	if len(id) != len(credential.Hash{}.Name()) {
		return wire.ErrRoute
	}
	now := wire.Now()
	deletion, err := g.invites.Revoke(ctx, id, now)
	if err == nil {
		err = g.cfg.Store.Records().Apply(ctx, append(g.cfg.Audit(now, id, "token-revoked", "", by), deletion), now)
	}
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrConflict) {
		return wire.ErrRoute
	}
	return err
}

// Applicant is a client that registers a new card of an agent.
type Applicant struct {
	Agent          wire.AgentID
	Owner          [32]byte // hash of Bearer
	Bearer, Invite string
	Client         netip.Addr
}

const badInvite = "the invite code is unknown, used or expired"

// Admit decides by the mode of the directory whether a new card may be registered (AM-56). The change that it returns
// takes one use of the invite code; store it together with the card.
func (g *Gate) Admit(ctx context.Context, a Applicant, now time.Time) ([]store.Change, error) {
	if g.cfg.Mode == credential.Open || g.isOperator(a.Owner) {
		return nil, nil
	}
	if g.cfg.Mode != credential.Invite {
		return nil, wire.ErrClosed
	}
	code := cmp.Or(a.Invite, a.Bearer) // the code itself becomes the credential
	t, change, err := g.invites.Redeem(ctx, code, string(a.Agent), now)
	switch {
	case errors.Is(err, store.ErrNotFound):
		if err := g.CheckThrottle(a.Client, now); err != nil {
			return nil, err
		}
		g.CountFailure(ctx, a.Client, now)
		if a.Invite == "" {
			return nil, wire.ErrClosed.At("send an invite code in the header " + wire.HeaderInvite)
		}
		return nil, wire.ErrClosed.At(badInvite)
	case errors.Is(err, credential.ErrSpent):
		return nil, wire.ErrClosed.At(badInvite).Because(err)
	case err != nil:
		return nil, err
	case t.Uses > 1 && code == a.Bearer: // as a credential, it would let its users change each other's cards
		return nil, wire.ErrClosed.At("send this code in the header " + wire.HeaderInvite + ", with a bearer token of your own")
	}
	return []store.Change{change}, nil
}
