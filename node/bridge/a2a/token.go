package a2a

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// nsTokens has the tokens of callers, by their hashes.
const nsTokens = "a2a/tokens"

const maxTokens = 1000

// Token describes the token of a caller. The token itself is shown only once.
type Token struct {
	Name    string    `json:"name"`
	Address string    `json:"address"` // of the caller, for access rules
	Created time.Time `json:"created_at"`
	Token   string    `json:"token,omitempty"` // only when it is made
}

// Pin is the answer to UnpinPeer: an agent that we wrote to.
type Pin struct {
	Address string `json:"address"`
	Pinned  bool   `json:"pinned"` // we knew its card, and have forgotten it now
}

// The owner's operations of the bridge.
var (
	ListTokens  = owner.Endpoint[owner.None, owner.List[Token]]{Method: http.MethodGet, Path: "/a2a/tokens", Right: owner.Decide}
	AddToken    = owner.Endpoint[owner.None, Token]{Method: http.MethodPost, Path: "/a2a/tokens/:name", Right: owner.Decide}
	RevokeToken = owner.Endpoint[owner.None, Token]{Method: http.MethodDelete, Path: "/a2a/tokens/:name", Right: owner.Decide}
	UnpinPeer   = owner.Endpoint[owner.None, Pin]{Method: http.MethodDelete, Path: "/a2a/pins/:address", Right: owner.Decide}
)

// Operations returns the bridge's operations of the owner API.
func (b *Bridge) Operations() []owner.Operation {
	return []owner.Operation{
		ListTokens.Serve(func(c echo.Context, _ owner.None) (owner.List[Token], error) {
			list, err := b.tokens(c.Request().Context())
			return owner.List[Token]{Items: list}, err
		}),
		AddToken.Serve(func(c echo.Context, _ owner.None) (Token, error) {
			httpapi.Private(c)
			return b.addToken(c.Request().Context(), c.Param("name"))
		}),
		RevokeToken.Serve(func(c echo.Context, _ owner.None) (Token, error) {
			return b.revokeToken(c.Request().Context(), c.Param("name"))
		}),
		UnpinPeer.Serve(func(c echo.Context, _ owner.None) (Pin, error) {
			return b.out.unpin(c.Request().Context(), c.Param("address"))
		}),
	}
}

func (b *Bridge) tokens(ctx context.Context) ([]Token, error) {
	out := []Token{}
	for t, err := range store.DecodeAll(ctx, b.records, nsTokens, "", time.Now(), store.Decode[Token]) {
		if err != nil {
			return nil, err
		}
		t.Address = b.out.addressOf(t.Name).String()
		out = append(out, t)
	}
	return out, nil
}

// isName reports whether s can be the name of a caller. Addresses contain the name, so it has the form of a link name.
func isName(s string) bool {
	a := bridge.Address{Kind: Kind, Link: s, Peer: linkPeer}
	return a.Validate() == nil && s != anonymous && s != InboundLink && s != bridge.WebLink
}

func nameTerm(name string) string { return "name:" + name }

// addToken makes a token for a caller. It fails if the caller already has a token.
func (b *Bridge) addToken(ctx context.Context, name string) (Token, error) {
	if !isName(name) {
		return Token{}, owner.Fault(http.StatusBadRequest, "a name must have 1 to 64 characters of a-z, 0-9 and -, and must not be "+strings.Join([]string{anonymous, InboundLink, bridge.WebLink}, ", "), "")
	}
	now := time.Now().UTC()
	secret := credential.New("a2a_")
	t := Token{Name: name, Created: now}
	all, err := b.tokens(ctx)
	if err != nil {
		return Token{}, err
	}
	if len(all) >= maxTokens {
		return Token{}, owner.Fault(http.StatusConflict, "there are too many tokens", "revoke one with: agentmesh a2a token revoke NAME")
	}
	err = b.records.Apply(ctx, []store.Change{{Max: 1, Record: store.Record{
		NS: nsTokens, Key: credential.HashOf(secret).String(), Body: wire.MustMarshal(t), Terms: []string{nameTerm(name)},
	}}}, now)
	if errors.Is(err, store.ErrQuota) {
		return Token{}, owner.Fault(http.StatusConflict, "the caller already has a token", "revoke it first with: agentmesh a2a token revoke "+name)
	}
	t.Address, t.Token = b.out.addressOf(name).String(), secret
	return t, err
}

// revokeToken removes the token of a caller. Its tasks stay, and a new token of that name reaches them again.
func (b *Bridge) revokeToken(ctx context.Context, name string) (Token, error) {
	now := time.Now()
	page, err := b.records.List(ctx, nsTokens, nameTerm(name), "", 1, now)
	if err != nil {
		return Token{}, err
	}
	if len(page.Records) == 0 {
		return Token{}, owner.Fault(http.StatusNotFound, "there is no such token", "list them with: agentmesh a2a token list")
	}
	rec := page.Records[0]
	t, err := store.Decode[Token](rec)
	if err != nil {
		return Token{}, err
	}
	t.Address = b.out.addressOf(name).String()
	return t, b.records.Apply(ctx, []store.Change{{IfRev: rec.Rev, Delete: true, Record: store.Record{NS: nsTokens, Key: rec.Key}}}, now)
}

// identify returns the caller whose bearer token has this hash, in hex, or the caller without a token if hash is "". It
// returns message.ErrUnauthenticated for an unknown token, or for none if callers need one.
func (b *Bridge) identify(ctx context.Context, hash string) (caller, error) {
	from := caller{name: anonymous, verified: bridge.VerifiedNone}
	switch {
	case hash != "":
		var t Token
		_, found, err := store.ReadRecord(ctx, b.records, nsTokens, hash, &t, time.Now())
		if err != nil {
			return from, err
		}
		if !found {
			return from, message.ErrUnauthenticated
		}
		from.name, from.verified = t.Name, bridge.VerifiedBearer
	case !b.cfg.Anonymous:
		return from, message.ErrUnauthenticated
	}
	from.address = b.out.addressOf(from.name)
	return from, nil
}
