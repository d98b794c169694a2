package directory

import (
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	maxTokenBody     = 4 << 10
	defaultTokenDays = 7
	maxTokenDays     = 365
	tokenPage        = 100
)

// Operations returns the operator's part of the owner API: invite codes (AM-56) and moderation.
func (r *Registry) Operations() []owner.Operation {
	return append(r.moderation(), []owner.Operation{
		owner.Raw(http.MethodPost, "/tokens", owner.Decide, r.postToken),
		owner.Raw(http.MethodGet, "/tokens", owner.Decide, r.getTokens),
		owner.Raw(http.MethodDelete, "/tokens/:token", owner.Decide, r.deleteToken),
	}...)
}

// NewToken is the request for an invite code.
type NewToken struct {
	Label   string    `json:"label,omitempty"`
	Days    int       `json:"days,omitempty"`      // lifetime, 1 to 365; 0 is 7
	Expires time.Time `json:"expires_at,omitzero"` // overrides Days
	Uses    int       `json:"uses,omitempty"`      // number of registrations, 1 to 1000; 0 is 1
}

// IssuedToken is the response to a NewToken. Only this response contains the code.
type IssuedToken struct {
	Token
	Code string `json:"code"`
}

// TokenList is a page of invite codes. Next is the parameter "after" of the request for the next page.
type TokenList struct {
	Tokens []Token `json:"tokens"`
	Next   string  `json:"next,omitempty"`
}

func (r *Registry) postToken(c echo.Context) error {
	var req NewToken
	if err := decode(c, maxTokenBody, &req); err != nil {
		return err
	}
	if req.Days == 0 {
		req.Days = defaultTokenDays
	}
	if req.Days < 1 || req.Days > maxTokenDays {
		return wire.ErrQuery.At("days must be 1 to 365")
	}
	expires := clock().Add(time.Duration(req.Days) * 24 * time.Hour)
	if !req.Expires.IsZero() {
		expires = req.Expires
	}
	code, t, err := r.IssueToken(c.Request().Context(), req.Label, req.Uses, expires, owner.Door(c))
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusCreated, IssuedToken{t, code})
}

func (r *Registry) getTokens(c echo.Context) error {
	limit := tokenPage
	if text := c.QueryParam("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > tokenPage {
			return wire.ErrQuery.At("limit must be 1 to 100")
		}
		limit = n
	}
	tokens, next, err := r.Tokens(c.Request().Context(), c.QueryParam("after"), limit)
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, TokenList{tokens, next})
}

func (r *Registry) deleteToken(c echo.Context) error {
	if err := r.RevokeToken(c.Request().Context(), c.Param("token"), owner.Door(c)); err != nil {
		return explainMissing(err, "there is no such code", "list them with: agentmesh token list")
	}
	return c.NoContent(http.StatusNoContent)
}
