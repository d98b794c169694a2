package operator

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/directory"
	"github.com/agentmesh/agentmesh/directory/moderation"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	maxTokenBody     = 4 << 10
	maxOrderBody     = 40 << 10 // enough for a ban that contains a whole public key
	maxImportBody    = 16 << 20
	defaultTokenDays = 7
	operationPage    = 100 // bans, reports or invite codes
)

// Operations returns the operator's part of the owner API: invite codes (AM-56), reports, and the operations that
// remove, ban, export and import cards.
func Operations(r *directory.Registry) []owner.Operation {
	o := operations{r}
	return []owner.Operation{
		owner.Raw(http.MethodGet, "/directory/cards", owner.Read, o.listCards),
		owner.Raw(http.MethodPost, "/directory/cards/:id/remove", owner.Decide, o.handleOrder(o.remove)),
		owner.Raw(http.MethodPost, "/directory/cards/:id/handover", owner.Decide, o.handleOrder(o.handOver)),
		owner.Raw(http.MethodGet, "/directory/bans", owner.Decide, o.listBans),
		owner.Raw(http.MethodPost, "/directory/bans", owner.Decide, o.handleOrder(o.ban)),
		owner.Raw(http.MethodPost, "/directory/bans/lift", owner.Decide, o.handleOrder(o.unban)),
		owner.Raw(http.MethodGet, "/directory/reports", owner.Decide, o.listReports),
		owner.Raw(http.MethodDelete, "/directory/reports/:report", owner.Decide, o.dismissReport),
		owner.Raw(http.MethodGet, "/directory/export", owner.Decide, o.exportCards),
		owner.Raw(http.MethodPost, "/directory/import", owner.Decide, o.importCards),
		owner.Raw(http.MethodPost, "/tokens", owner.Decide, o.issueToken),
		owner.Raw(http.MethodGet, "/tokens", owner.Decide, o.listTokens),
		owner.Raw(http.MethodDelete, "/tokens/:token", owner.Decide, o.revokeToken),
	}
}

type operations struct{ dir *directory.Registry }

func respond(c echo.Context, v any, err error) error {
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, v)
}

func (o operations) listCards(c echo.Context) error {
	q, err := directory.ParseQuery(c.Request().URL.RawQuery)
	if err != nil {
		return err
	}
	page, err := directory.ListCards(c.Request().Context(), o.dir, q)
	return respond(c, page, err)
}

// Order is an instruction of the operator and the reason for it. In a ban, What is the banned party in any form that
// [moderation.ParseBan] accepts; other orders have no What.
type Order struct {
	What   string `json:"what,omitempty"`
	Reason string `json:"reason"`
}

// OrderResult is the response to an Order. Ban is the ban as the directory parsed it; Removed is the number of cards
// that the order removed.
type OrderResult struct {
	Ban     *moderation.Ban `json:"ban,omitempty"`
	Removed int             `json:"removed"`
}

// handleOrder returns the handler that reads an order and passes it to execute. by is the client that the operator
// used.
func (o operations) handleOrder(execute func(ctx context.Context, id wire.AgentID, order Order, by string) (OrderResult, error)) echo.HandlerFunc {
	return func(c echo.Context) error {
		var order Order
		if err := httpapi.Decode(c, maxOrderBody, &order); err != nil {
			return err
		}
		result, err := execute(c.Request().Context(), wire.AgentID(c.Param("id")), order, owner.Door(c))
		return respond(c, result, err)
	}
}

func (o operations) remove(ctx context.Context, id wire.AgentID, order Order, by string) (OrderResult, error) {
	return OrderResult{Removed: 1}, o.dir.Remove(ctx, id, order.Reason, by)
}

func (o operations) handOver(ctx context.Context, id wire.AgentID, order Order, by string) (OrderResult, error) {
	return OrderResult{}, o.dir.HandOver(ctx, id, order.Reason, by)
}

func (o operations) ban(ctx context.Context, _ wire.AgentID, order Order, by string) (OrderResult, error) {
	ban, err := moderation.ParseBan(order.What)
	if err != nil {
		return OrderResult{}, err
	}
	ban.Reason, ban.At = order.Reason, wire.Now()
	removed, err := o.dir.Ban(ctx, ban, by)
	return OrderResult{&ban, removed}, err
}

func (o operations) unban(ctx context.Context, _ wire.AgentID, order Order, by string) (OrderResult, error) {
	ban, err := moderation.ParseBan(order.What)
	if err != nil {
		return OrderResult{}, err
	}
	ban.Reason = order.Reason
	err = o.dir.Bans().Lift(ctx, ban, order.Reason, by)
	return OrderResult{Ban: &ban}, explainMissing(err, "there is no such ban", "list the bans with: agentmesh cards bans")
}

// explainMissing replaces [wire.ErrRoute] with a 404 that tells the operator more than strangers may learn.
func explainMissing(err error, message, hint string) error {
	if errors.Is(err, wire.ErrRoute) {
		return owner.Fault(http.StatusNotFound, message, hint)
	}
	return err
}

// BanPage and ReportPage are pages of a list. Next is the parameter "after" of the request for the next page.
type (
	BanPage struct {
		Bans []moderation.Ban `json:"items"`
		Next string           `json:"next,omitempty"`
	}
	ReportPage struct {
		Reports []directory.Report `json:"items"`
		Next    string             `json:"next,omitempty"`
	}
)

func (o operations) listBans(c echo.Context) error {
	list, next, err := o.dir.Bans().List(c.Request().Context(), c.QueryParam("after"), operationPage)
	return respond(c, BanPage{list, next}, err)
}

func (o operations) listReports(c echo.Context) error {
	list, next, err := o.dir.Reports(c.Request().Context(), wire.AgentID(c.QueryParam("agent_id")), c.QueryParam("after"), operationPage)
	return respond(c, ReportPage{list, next}, err)
}

func (o operations) dismissReport(c echo.Context) error {
	if err := o.dir.DismissReport(c.Request().Context(), c.Param("report")); err != nil {
		return explainMissing(err, "there is no such report", "list them with: agentmesh cards reports")
	}
	return c.NoContent(http.StatusNoContent)
}

func (o operations) exportCards(c echo.Context) error {
	after, err := strconv.ParseUint(c.QueryParam("after"), 10, 64)
	if err != nil && c.QueryParam("after") != "" {
		return wire.ErrQuery.At("after must be a number")
	}
	page, err := o.dir.Export(c.Request().Context(), after)
	return respond(c, page, err)
}

// ImportOrder is the request body of an import.
type ImportOrder struct {
	Cards  []directory.CardExport `json:"cards"`
	Reason string                 `json:"reason"`
}

func (o operations) importCards(c echo.Context) error {
	data, err := httpapi.Body(c, maxImportBody)
	if err != nil {
		return err
	}
	var order ImportOrder // wire.Value reads each card strictly; the rest is the operator's own export
	if err := json.Unmarshal(data, &order); err != nil {
		return wire.ErrSyntax.Because(err)
	}
	result, err := o.dir.Import(c.Request().Context(), order.Cards, order.Reason, owner.Door(c))
	return respond(c, result, err)
}

// TokenRequest is the request for an invite code.
type TokenRequest struct {
	Label   string    `json:"label,omitempty"`
	Days    int       `json:"days,omitempty"`      // lifetime, 1 to 365; 0 is 7
	Expires time.Time `json:"expires_at,omitzero"` // overrides Days
	Uses    int       `json:"uses,omitempty"`      // number of registrations, 1 to 1000; 0 is 1
}

// Token is an invite code as the operator sees it, without the code itself.
type Token = credential.Code

// IssuedToken is the response to a [TokenRequest]. Only this response contains the code.
type IssuedToken struct {
	Token
	Code string `json:"code"`
}

// TokenList is a page of invite codes. Next is the parameter "after" of the request for the next page.
type TokenList struct {
	Tokens []Token `json:"tokens"`
	Next   string  `json:"next,omitempty"`
}

func (o operations) issueToken(c echo.Context) error {
	var req TokenRequest
	if err := httpapi.Decode(c, maxTokenBody, &req); err != nil {
		return err
	}
	if req.Days == 0 {
		req.Days = defaultTokenDays
	}
	if req.Days < 1 || req.Days > maxInviteDays {
		return wire.ErrQuery.At("days must be 1 to 365")
	}
	expires := wire.Now().AddDate(0, 0, req.Days)
	if !req.Expires.IsZero() {
		expires = req.Expires
	}
	code, t, err := o.dir.Admission().IssueToken(c.Request().Context(), req.Label, req.Uses, expires, owner.Door(c))
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusCreated, IssuedToken{t, code})
}

func (o operations) listTokens(c echo.Context) error {
	limit := operationPage
	if text := c.QueryParam("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > operationPage {
			return wire.ErrQuery.At("limit must be 1 to 100")
		}
		limit = n
	}
	tokens, next, err := o.dir.Admission().Tokens(c.Request().Context(), c.QueryParam("after"), limit)
	return respond(c, TokenList{tokens, next}, err)
}

func (o operations) revokeToken(c echo.Context) error {
	if err := o.dir.Admission().RevokeToken(c.Request().Context(), c.Param("token"), owner.Door(c)); err != nil {
		return explainMissing(err, "there is no such code", "list them with: agentmesh token list")
	}
	return c.NoContent(http.StatusNoContent)
}
