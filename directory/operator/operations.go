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
	maxImportBody    = 16 << 20
	defaultTokenDays = 7
	operationPage    = 100 // bans, reports or invite codes
)

// The operations of the operator.
var (
	ListCards     = owner.Endpoint[owner.None, owner.List[directory.OperatorCard]]{Method: http.MethodGet, Path: "/directory/cards", Right: owner.Read}
	RemoveCard    = owner.Endpoint[Order, OrderResult]{Method: http.MethodPost, Path: "/directory/cards/:id/remove", Right: owner.Decide}
	HandOverCard  = owner.Endpoint[Order, OrderResult]{Method: http.MethodPost, Path: "/directory/cards/:id/handover", Right: owner.Decide}
	ListBans      = owner.Endpoint[owner.None, owner.List[moderation.Ban]]{Method: http.MethodGet, Path: "/directory/bans", Right: owner.Decide}
	Ban           = owner.Endpoint[Order, OrderResult]{Method: http.MethodPost, Path: "/directory/bans", Right: owner.Decide}
	LiftBan       = owner.Endpoint[Order, OrderResult]{Method: http.MethodPost, Path: "/directory/bans/lift", Right: owner.Decide}
	ListReports   = owner.Endpoint[owner.None, owner.List[directory.Report]]{Method: http.MethodGet, Path: "/directory/reports", Right: owner.Decide}
	DismissReport = owner.Endpoint[owner.None, owner.None]{Method: http.MethodDelete, Path: "/directory/reports/:report", Right: owner.Decide}
	ExportCards   = owner.Endpoint[owner.None, directory.ExportPage]{Method: http.MethodGet, Path: "/directory/export", Right: owner.Decide}
	ImportCards   = owner.Endpoint[ImportOrder, directory.ImportResult]{Method: http.MethodPost, Path: "/directory/import", Right: owner.Decide}
	IssueToken    = owner.Endpoint[TokenRequest, IssuedToken]{Method: http.MethodPost, Path: "/tokens", Right: owner.Decide}
	ListTokens    = owner.Endpoint[owner.None, owner.List[Token]]{Method: http.MethodGet, Path: "/tokens", Right: owner.Decide}
	RevokeToken   = owner.Endpoint[owner.None, owner.None]{Method: http.MethodDelete, Path: "/tokens/:token", Right: owner.Decide}
)

// Operations returns the operator's part of the owner API: invite codes (AM-56), reports, and the operations that
// remove, ban, export and import cards.
func Operations(r *directory.Registry) []owner.Operation {
	o := operations{r}
	return []owner.Operation{
		ListCards.Serve(o.listCards), serveOrder(RemoveCard, o.remove), serveOrder(HandOverCard, o.handOver),
		ListBans.Serve(o.listBans), serveOrder(Ban, o.ban), serveOrder(LiftBan, o.unban),
		ListReports.Serve(o.listReports), DismissReport.Serve(o.dismissReport), ExportCards.Serve(o.exportCards),
		owner.Raw(ImportCards.Method, ImportCards.Path, ImportCards.Right, o.importCards), // may be larger than a message
		IssueToken.Serve(o.issueToken), ListTokens.Serve(o.listTokens), RevokeToken.Serve(o.revokeToken),
	}
}

type operations struct{ dir *directory.Registry }

func (o operations) listCards(c echo.Context, _ owner.None) (list owner.List[directory.OperatorCard], err error) {
	query := c.QueryParams()
	if after := query.Get("after"); after != "" {
		query.Set("cursor", after)
	}
	q, err := directory.ParseQuery(query.Encode())
	if err != nil {
		return list, err
	}
	page, err := directory.ListCards(c.Request().Context(), o.dir, q)
	return owner.Page(page.Cards, page.Cursor), err
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

// serveOrder returns an operation that passes an order to execute. by is the client that the operator used.
func serveOrder(
	e owner.Endpoint[Order, OrderResult], execute func(ctx context.Context, id wire.AgentID, order Order, by string) (OrderResult, error),
) owner.Operation {
	return e.Serve(func(c echo.Context, in Order) (OrderResult, error) {
		return execute(c.Request().Context(), wire.AgentID(c.Param("id")), in, owner.Door(c))
	})
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

func (o operations) listBans(c echo.Context, _ owner.None) (owner.List[moderation.Ban], error) {
	list, next, err := o.dir.Bans().List(c.Request().Context(), c.QueryParam("after"), operationPage)
	return owner.Page(list, next), err
}

func (o operations) listReports(c echo.Context, _ owner.None) (owner.List[directory.Report], error) {
	list, next, err := o.dir.Reports(c.Request().Context(), wire.AgentID(c.QueryParam("agent_id")), c.QueryParam("after"), operationPage)
	return owner.Page(list, next), err
}

func (o operations) dismissReport(c echo.Context, _ owner.None) (owner.None, error) {
	err := o.dir.DismissReport(c.Request().Context(), c.Param("report"))
	return owner.None{}, explainMissing(err, "there is no such report", "list them with: agentmesh cards reports")
}

func (o operations) exportCards(c echo.Context, _ owner.None) (directory.ExportPage, error) {
	after, err := strconv.ParseUint(c.QueryParam("after"), 10, 64)
	if err != nil && c.QueryParam("after") != "" {
		return directory.ExportPage{}, wire.ErrQuery.At("after must be a number")
	}
	return o.dir.Export(c.Request().Context(), after)
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
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, result)
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
	Link string `json:"link"` // with which somebody joins the directory
}

func (o operations) issueToken(c echo.Context, req TokenRequest) (IssuedToken, error) {
	if req.Days == 0 {
		req.Days = defaultTokenDays
	}
	if req.Days < 1 || req.Days > maxInviteDays {
		return IssuedToken{}, wire.ErrQuery.At("days must be 1 to 365")
	}
	expires := wire.Now().AddDate(0, 0, req.Days)
	if !req.Expires.IsZero() {
		expires = req.Expires
	}
	code, t, err := o.dir.Admission().IssueToken(c.Request().Context(), req.Label, req.Uses, expires, owner.Door(c))
	return IssuedToken{t, code, o.dir.JoinLink(code)}, err
}

func (o operations) listTokens(c echo.Context, _ owner.None) (owner.List[Token], error) {
	limit := operationPage
	if text := c.QueryParam("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > operationPage {
			return owner.List[Token]{}, wire.ErrQuery.At("limit must be 1 to 100")
		}
		limit = n
	}
	tokens, next, err := o.dir.Admission().Tokens(c.Request().Context(), c.QueryParam("after"), limit)
	return owner.Page(tokens, next), err
}

func (o operations) revokeToken(c echo.Context, _ owner.None) (owner.None, error) {
	err := o.dir.Admission().RevokeToken(c.Request().Context(), c.Param("token"), owner.Door(c))
	return owner.None{}, explainMissing(err, "there is no such code", "list them with: agentmesh token list")
}
