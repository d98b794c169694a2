package directory

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	maxOrderBody  = 40 << 10 // enough for a ban that contains a whole public key
	maxImportBody = 16 << 20
	ownerPage     = 100 // bans or reports
)

// moderation returns the operations by which the operator removes, bans, exports and imports cards and reads reports.
func (r *Registry) moderation() []owner.Operation {
	return []owner.Operation{
		owner.Raw(http.MethodGet, "/directory/cards", owner.Read, r.ownerCards),
		owner.Raw(http.MethodPost, "/directory/cards/:id/remove", owner.Decide, r.ownerRemove),
		owner.Raw(http.MethodPost, "/directory/cards/:id/handover", owner.Decide, r.ownerHandOver),
		owner.Raw(http.MethodGet, "/directory/bans", owner.Decide, r.ownerBans),
		owner.Raw(http.MethodPost, "/directory/bans", owner.Decide, r.ownerBan),
		owner.Raw(http.MethodPost, "/directory/bans/lift", owner.Decide, r.ownerUnban),
		owner.Raw(http.MethodGet, "/directory/reports", owner.Decide, r.ownerReports),
		owner.Raw(http.MethodDelete, "/directory/reports/:report", owner.Decide, r.ownerDismiss),
		owner.Raw(http.MethodGet, "/directory/export", owner.Decide, r.ownerExport),
		owner.Raw(http.MethodPost, "/directory/import", owner.Decide, r.ownerImport),
	}
}

// OperatorCard is a card as the operator sees it.
type OperatorCard struct {
	AgentID      wire.AgentID      `json:"agent_id"`
	Name         string            `json:"name"`
	Host         string            `json:"host"`
	Key          string            `json:"key"`   // fingerprint
	Owner        string            `json:"owner"` // start of the credential's hash; all cards of one owner have the same
	Registered   time.Time         `json:"registered_at"`
	Expires      time.Time         `json:"expires_at"`
	Verification wire.Verification `json:"verification"`
}

// OperatorCardPage is a page of cards. Cursor is the parameter "cursor" of the request for the next page.
type OperatorCardPage struct {
	Cards  []OperatorCard `json:"items"`
	Cursor string         `json:"cursor,omitempty"`
}

func (r *Registry) ownerCards(c echo.Context) error {
	q, err := parseQuery(c.Request().URL.RawQuery)
	if err != nil {
		return err
	}
	page, err := ListCards(c.Request().Context(), r, q)
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, page)
}

// ListCards returns one page of cards for the operator.
func ListCards(ctx context.Context, r *Registry, q Query) (OperatorCardPage, error) {
	now := clock()
	found, err := r.page(ctx, q, now)
	if err != nil {
		return OperatorCardPage{}, err
	}
	page := OperatorCardPage{Cards: make([]OperatorCard, 0, len(found.cards)), Cursor: found.cursor}
	for _, card := range found.cards {
		item, err := r.newOperatorCard(card, now)
		if err != nil {
			return OperatorCardPage{}, err
		}
		page.Cards = append(page.Cards, item)
	}
	return page, nil
}

func (r *Registry) newOperatorCard(c store.Card, now time.Time) (OperatorCard, error) {
	card, m, err := r.parseStored(c)
	if err != nil {
		return OperatorCard{}, err
	}
	item := OperatorCard{
		AgentID: card.ID, Name: card.Name, Host: endpointHost(card), Owner: hex.EncodeToString(c.Owner[:6]), Registered: c.Registered,
		Expires: c.Expires, Verification: m.verification(now),
	}
	if key, err := r.keys.Parse(card.PublicKey); err == nil {
		item.Key = fingerprint(key)
	}
	return item, nil
}

// Order is an instruction of the operator and the reason for it. For a ban, What is the banned party in any form that
// [ParseBan] accepts; other orders have no What.
type Order struct {
	What   string `json:"what,omitempty"`
	Reason string `json:"reason"`
}

// OrderResult is the response to an Order: the ban as the directory parsed it, if the order was a ban, and the number
// of cards that the order removed.
type OrderResult struct {
	Ban     *Ban `json:"ban,omitempty"`
	Removed int  `json:"removed"`
}

func (r *Registry) ownerRemove(c echo.Context) error {
	var order Order
	if err := decode(c, maxOrderBody, &order); err != nil {
		return err
	}
	if err := r.Remove(c.Request().Context(), pathID(c), order.Reason, owner.Door(c)); err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, OrderResult{Removed: 1})
}

// decodeBan returns the ban that a request sets or lifts.
func decodeBan(c echo.Context) (Ban, error) {
	var order Order
	if err := decode(c, maxOrderBody, &order); err != nil {
		return Ban{}, err
	}
	ban, err := ParseBan(order.What)
	ban.Reason = order.Reason
	return ban, err
}

func (r *Registry) ownerBan(c echo.Context) error {
	ban, err := decodeBan(c)
	if err != nil {
		return err
	}
	removed, err := r.Ban(c.Request().Context(), ban, owner.Door(c))
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, OrderResult{&ban, removed})
}

func (r *Registry) ownerUnban(c echo.Context) error {
	ban, err := decodeBan(c)
	if err != nil {
		return err
	}
	if err := r.Unban(c.Request().Context(), ban, ban.Reason, owner.Door(c)); err != nil {
		return explainMissing(err, "there is no such ban", "list the bans with: agentmesh cards bans")
	}
	return httpapi.JSON(c, http.StatusOK, OrderResult{Ban: &ban})
}

// explainMissing replaces [wire.ErrRoute] by a 404 for the operator, whose message may say more than the 404 for
// strangers.
func explainMissing(err error, message, hint string) error {
	if errors.Is(err, wire.ErrRoute) {
		return owner.Fault(http.StatusNotFound, message, hint)
	}
	return err
}

// BanPage and ReportPage are pages of a list. Next is the parameter "after" of the request for the next page.
type (
	BanPage struct {
		Bans []Ban  `json:"items"`
		Next string `json:"next,omitempty"`
	}
	ReportPage struct {
		Reports []Report `json:"items"`
		Next    string   `json:"next,omitempty"`
	}
)

func (r *Registry) ownerBans(c echo.Context) error {
	list, next, err := r.Bans(c.Request().Context(), c.QueryParam("after"), ownerPage)
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, BanPage{list, next})
}

func (r *Registry) ownerReports(c echo.Context) error {
	list, next, err := r.Reports(c.Request().Context(), wire.AgentID(c.QueryParam("agent_id")), c.QueryParam("after"), ownerPage)
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, ReportPage{list, next})
}

func (r *Registry) ownerDismiss(c echo.Context) error {
	if err := r.DismissReport(c.Request().Context(), c.Param("report")); err != nil {
		return explainMissing(err, "there is no such report", "list them with: agentmesh cards reports")
	}
	return c.NoContent(http.StatusNoContent)
}

func (r *Registry) ownerExport(c echo.Context) error {
	after, err := strconv.ParseUint(c.QueryParam("after"), 10, 64)
	if err != nil && c.QueryParam("after") != "" {
		return wire.ErrQuery.At("after must be a number")
	}
	page, err := r.Export(c.Request().Context(), after)
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, page)
}

// ImportOrder is the request body of an import.
type ImportOrder struct {
	Cards  []CardExport `json:"cards"`
	Reason string       `json:"reason"`
}

func (r *Registry) ownerImport(c echo.Context) error {
	data, err := httpapi.Body(c, maxImportBody)
	if err != nil {
		return err
	}
	var order ImportOrder // wire.Value reads each card strictly; the rest is the operator's own export
	if err := json.Unmarshal(data, &order); err != nil {
		return wire.ErrSyntax.Because(err)
	}
	result, err := r.Import(c.Request().Context(), order.Cards, order.Reason, owner.Door(c))
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, result)
}
