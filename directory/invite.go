package directory

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

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
type Token struct {
	ID      string    `json:"id"`
	Label   string    `json:"label,omitempty"`
	Created time.Time `json:"created_at"`
	Expires time.Time `json:"expires_at"`
	Uses    int       `json:"uses,omitempty"` // how many cards it brings in; 0 is 1
	Count   int       `json:"used,omitempty"` // how many it brought in
	Used    time.Time `json:"used_at,omitzero"`
	UsedBy  string    `json:"used_by,omitempty"` // agent_id of the last one
}

// left is how many cards the code still brings in.
func (t Token) left() int {
	if t.Count == 0 && !t.Used.IsZero() {
		return 0 // used before there were codes for several
	}
	return max(1, t.Uses) - t.Count
}

// tokenID names a code without giving it away.
func tokenID(code string) string {
	sum := Hash(code)
	return hex.EncodeToString(sum[:16])
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
	t = Token{ID: tokenID(code), Label: label, Created: now, Expires: expires.UTC(), Uses: max(1, uses)}
	change, err := t.change(store.Absent)
	if err != nil {
		return "", Token{}, err
	}
	change.Max = maxInvites
	err = r.recs.Apply(ctx, append(r.audit(now, t.ID, "token-issued", "", "owner"), change), now)
	if errors.Is(err, store.ErrQuota) {
		err = wire.ErrQuota
	}
	if err != nil {
		return "", Token{}, fmt.Errorf("issue token: %w", err)
	}
	return code, t, nil
}

func (t Token) change(ifRev store.Rev) (store.Change, error) {
	body, err := json.Marshal(t)
	if err != nil {
		return store.Change{}, fmt.Errorf("write token: %w", err)
	}
	return store.Change{Record: store.Record{NS: inviteNS, Key: t.ID, Body: body, Expires: t.Expires}, IfRev: ifRev}, nil
}

// Tokens lists invite codes in the order of their ids, used ones too, until they expire.
func (r *Registry) Tokens(ctx context.Context, after string, limit int) (tokens []Token, next string, err error) {
	page, err := r.recs.List(ctx, inviteNS, "", after, limit, clock())
	if err != nil {
		return nil, "", fmt.Errorf("list tokens: %w", err)
	}
	tokens = make([]Token, len(page.Records))
	for i, rec := range page.Records {
		if err := json.Unmarshal(rec.Body, &tokens[i]); err != nil {
			return nil, "", fmt.Errorf("read token %s: %w", rec.Key, err)
		}
	}
	return tokens, page.Next, nil
}

// RevokeToken makes a code worthless. Cards that it brought in stay. An unknown id is [wire.ErrRoute].
func (r *Registry) RevokeToken(ctx context.Context, id string) error {
	now := clock()
	if len(id) != len(tokenID("")) {
		return wire.ErrRoute
	}
	rec, err := r.recs.Get(ctx, inviteNS, id, now)
	if err == nil {
		gone := store.Change{Record: store.Record{NS: inviteNS, Key: id}, IfRev: rec.Rev, Delete: true}
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
	rec, err := r.recs.Get(ctx, inviteNS, tokenID(code), now)
	if errors.Is(err, store.ErrNotFound) {
		if err := r.throttled(s.Client, now); err != nil {
			return nil, err
		}
		r.failed(ctx, s.Client, now)
		return nil, wire.ErrClosed
	}
	if err != nil {
		return nil, fmt.Errorf("look up invite: %w", err)
	}
	var t Token
	if err := json.Unmarshal(rec.Body, &t); err != nil {
		return nil, fmt.Errorf("read token %s: %w", rec.Key, err)
	}
	if t.left() < 1 {
		return nil, wire.ErrClosed.Because(errors.New("the invite was used before"))
	}
	if t.Uses > 1 && code == s.Bearer { // as a credential it would let each of its users change the cards of all
		return nil, wire.ErrClosed.At("send this code as " + wire.HeaderInvite + ", beside a bearer of your own")
	}
	t.Used, t.UsedBy, t.Count = now, string(id), t.Count+1
	change, err := t.change(rec.Rev)
	return []store.Change{change}, err
}
