package directory

import (
	"errors"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	maxOrderBody  = 40 << 10 // a ban may name a whole key
	maxImportBody = 16 << 20
	ownerPage     = 100
)

// doorHeader names the door through which the owner acts, for the audit log: "cli", "page". It proves nothing.
const doorHeader = "Agentmesh-Door"

var doorForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

func door(c echo.Context) string {
	if d := c.Request().Header.Get(doorHeader); doorForm.MatchString(d) {
		return d
	}
	return "api"
}

// mountModeration adds what the operator needs to keep the directory clean.
func (r *Registry) mountModeration(g *echo.Group) {
	g.GET("/directory/cards", r.ownerCards)
	g.POST("/directory/cards/:id/remove", r.ownerRemove)
	g.POST("/directory/cards/:id/handover", r.ownerHandOver)
	g.GET("/directory/bans", r.ownerBans)
	g.POST("/directory/bans", r.ownerBan)
	g.POST("/directory/bans/lift", r.ownerUnban)
	g.GET("/directory/reports", r.ownerReports)
	g.DELETE("/directory/reports/:report", r.ownerDismiss)
	g.GET("/directory/export", r.ownerExport)
	g.POST("/directory/import", r.ownerImport)
}

// Listed is a card as the operator sees it.
type Listed struct {
	AgentID      wire.AgentID      `json:"agent_id"`
	Name         string            `json:"name"`
	Host         string            `json:"host"`
	Key          string            `json:"key"`   // fingerprint
	Owner        string            `json:"owner"` // head of the credential's hash: cards of one owner have the same
	Registered   time.Time         `json:"registered_at"`
	Expires      time.Time         `json:"expires_at"`
	Verification wire.Verification `json:"verification"`
}

// ListedPage is a page of them; Cursor goes into the next request.
type ListedPage struct {
	Cards  []Listed `json:"items"`
	Cursor string   `json:"cursor,omitempty"`
}

func (r *Registry) ownerCards(c echo.Context) error {
	q, err := parseQuery(c.Request().URL.RawQuery)
	if err != nil {
		return err
	}
	now := clock()
	found, err := r.page(c.Request().Context(), q, now)
	if err != nil {
		return err
	}
	page := ListedPage{Cards: make([]Listed, 0, len(found.cards)), Cursor: found.cursor}
	for _, card := range found.cards {
		line, err := r.listedCard(card, now)
		if err != nil {
			return err
		}
		page.Cards = append(page.Cards, line)
	}
	return httpapi.JSON(c, http.StatusOK, page)
}

func (r *Registry) listedCard(c store.Card, now time.Time) (Listed, error) {
	m, err := parseMeta(c)
	if err != nil {
		return Listed{}, err
	}
	card, err := r.stored(c)
	if err != nil {
		return Listed{}, err
	}
	line := Listed{
		AgentID: card.ID, Name: card.Name, Host: endpointHost(card), Owner: hexHead(c.Owner), Registered: c.Registered,
		Expires: c.Expires, Verification: m.verification(now),
	}
	if key, err := r.keys.Parse(card.PublicKey); err == nil {
		line.Key = fingerprint(key)
	}
	return line, nil
}

// Order is what the operator wants done, and why. What names the party of a ban.
type Order struct {
	What   string `json:"what,omitempty"`
	Reason string `json:"reason"`
}

// Ordered is the answer: the ban as it was understood, and how many cards went.
type Ordered struct {
	Ban     *Ban `json:"ban,omitempty"`
	Removed int  `json:"removed"`
}

func (r *Registry) ownerRemove(c echo.Context) error {
	var order Order
	if err := decode(c, maxOrderBody, &order); err != nil {
		return err
	}
	if err := r.Remove(c.Request().Context(), pathID(c), order.Reason, door(c)); err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, Ordered{Removed: 1})
}

func (r *Registry) orderedBan(c echo.Context) (Ban, error) {
	var order Order
	if err := decode(c, maxOrderBody, &order); err != nil {
		return Ban{}, err
	}
	ban, err := ParseBan(order.What)
	ban.Reason = order.Reason
	return ban, err
}

func (r *Registry) ownerBan(c echo.Context) error {
	ban, err := r.orderedBan(c)
	if err != nil {
		return err
	}
	removed, err := r.Ban(c.Request().Context(), ban, door(c))
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, Ordered{&ban, removed})
}

func (r *Registry) ownerUnban(c echo.Context) error {
	ban, err := r.orderedBan(c)
	if err != nil {
		return err
	}
	err = r.Unban(c.Request().Context(), ban, ban.Reason, door(c))
	if errors.Is(err, wire.ErrRoute) {
		return missing("that is not banned; list what is with: agentmesh cards bans")
	}
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, Ordered{Ban: &ban})
}

// missing is the operator's 404: it may say more than a stranger's.
func missing(message string) error {
	return &wire.Error{Code: wire.InvalidMessage, Status: http.StatusNotFound, Message: message}
}

// BanPage and ReportPage are pages; Next goes into the parameter after of the next request.
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
	err := r.DismissReport(c.Request().Context(), c.Param("report"))
	if errors.Is(err, wire.ErrRoute) {
		return missing("there is no such report; list them with: agentmesh cards reports")
	}
	if err != nil {
		return err
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

// ImportOrder is the request of an import.
type ImportOrder struct {
	Cards  []Exported `json:"cards"`
	Reason string     `json:"reason"`
}

func (r *Registry) ownerImport(c echo.Context) error {
	data, err := httpapi.Body(c, maxImportBody)
	if err != nil {
		return err
	}
	var order ImportOrder
	if err := decodeImport(data, &order); err != nil {
		return err
	}
	done, err := r.Import(c.Request().Context(), order.Cards, order.Reason, door(c))
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, done)
}
