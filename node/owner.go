package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// maxOwnerBody bounds what the owner may send: a message and what surrounds it.
const maxOwnerBody = wire.MaxMessage + 4<<10

// MountOwner adds the owner API. Everything the command line does goes through it.
func (n *Node) MountOwner(g *echo.Group) {
	g.GET("/status", n.ownerStatus)
	MountAudit(g, n.audit)
	g.POST("/pause", func(c echo.Context) error { return n.ownerPause(c, true) })
	g.POST("/resume", func(c echo.Context) error { return n.ownerPause(c, false) })

	g.GET("/events", n.ownerEvents)

	g.GET("/inbox", n.ownerInbox)
	g.GET("/inbox/:id", n.ownerItem)
	g.POST("/inbox/:id/ack", n.ownerAcknowledge)

	g.POST("/send", n.ownerSend)
	g.POST("/reply", n.ownerReply)
	g.POST("/calendar/cancel", n.ownerCancelEvent)
	g.GET("/outbox", n.ownerOutbox)
	g.GET("/notices", n.ownerNotices)

	g.GET("/approvals", n.ownerApprovals)
	g.GET("/approvals/:id", n.ownerApproval)
	g.POST("/approvals/:id", n.ownerDecide)
	g.POST("/approvals/reject-strangers", n.ownerRejectStrangers)

	g.GET("/conversations", n.ownerConversations)
	g.GET("/conversations/:id", n.ownerConversation)
	g.GET("/conversations/:id/export", n.ownerExport)
	g.POST("/conversations/:id/close", n.ownerClose)
	g.DELETE("/conversations/:id", n.ownerDelete)

	g.GET("/peers", n.ownerPeers)
	g.POST("/peers", n.ownerAddPeer)
	g.POST("/peers/:id", n.ownerChangePeer)

	g.GET("/card", func(c echo.Context) error { return httpapi.Raw(c, http.StatusOK, n.Card().Tree.JSON()) })
	g.POST("/register", n.ownerRegister)
	g.POST("/withdraw", n.ownerWithdraw)
	g.POST("/keys/rotate", n.ownerRotate)
	g.GET("/discover", n.ownerDiscover)
}

// Fault is a refusal of the owner API. It uses the envelope of the protocol; the owner also gets a hint.
func fault(status int, message, hint string) error {
	return &wire.Error{Code: wire.InvalidMessage, Status: status, Message: withHint(message, hint)}
}

func withHint(message, hint string) string {
	if hint == "" {
		return message
	}
	return message + "; " + hint
}

// ownerError says to the owner what a stranger is not told.
func ownerError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrNotFound):
		return fault(http.StatusNotFound, "there is no such entry", "list them first, ids may be shortened to a unique beginning")
	case errors.Is(err, ErrCannotSeal):
		return fault(http.StatusUnprocessableEntity, wire.OneLine(err.Error(), 300), "a card that its owner gave you counts as proven: agentmesh peers add FILE")
	case errors.Is(err, client.ErrNoKeyChange):
		return fault(http.StatusConflict, "there is no such changed key to accept", "see: agentmesh approvals list")
	case errors.Is(err, acl.ErrAskGone), errors.Is(err, acl.ErrHashMismatch), errors.Is(err, acl.ErrChoice):
		return fault(http.StatusConflict, err.Error(), "")
	case errors.Is(err, store.ErrConflict):
		return fault(http.StatusConflict, "it was changed meanwhile", "look again and repeat")
	}
	return err
}

// decodeOwner reads a request body strictly into v. No body is an empty object.
func decodeOwner(c echo.Context, v any) error {
	body, err := httpapi.Body(c, maxOwnerBody)
	if err != nil || len(body) == 0 {
		return err
	}
	tree, err := wire.ParseObject(body)
	if err != nil {
		return wire.ErrSyntax.Because(err)
	}
	in := json.NewDecoder(bytes.NewReader(tree.JSON()))
	in.DisallowUnknownFields()
	if err := in.Decode(v); err != nil {
		return misfit(err)
	}
	return nil
}

// misfit says which field of a request is wrong.
func misfit(err error) error {
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fault(http.StatusBadRequest, fmt.Sprintf("%s must not be a %s", e.Field, e.Value), "")
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return fault(http.StatusBadRequest, "there is no field "+name, "")
	}
	return fault(http.StatusBadRequest, "the request does not fit: "+err.Error(), "")
}

// pageParams are the query parameters of every list.
type pageParams struct {
	State, After string
	Before       uint64
	Limit        int
	Wait         time.Duration
}

// readPage reads them. states are those that the list knows.
func readPage[S ~string](c echo.Context, states ...S) (p pageParams, err error) {
	p = pageParams{State: c.QueryParam("state"), After: c.QueryParam("after"), Limit: 50}
	if p.State != "" && !slices.Contains(states, S(p.State)) {
		return p, fault(http.StatusBadRequest, "there is no such state", fmt.Sprintf("states are %q", states))
	}
	if s := c.QueryParam("limit"); s != "" {
		if p.Limit, err = strconv.Atoi(s); err != nil || p.Limit < 1 || p.Limit > 1000 {
			return p, fault(http.StatusBadRequest, "limit must be 1 to 1000", "")
		}
	}
	if s := c.QueryParam("before"); s != "" {
		if p.Before, err = strconv.ParseUint(s, 10, 64); err != nil {
			return p, fault(http.StatusBadRequest, "before must be a number", "")
		}
	}
	if s := c.QueryParam("wait"); s != "" {
		seconds, err := strconv.Atoi(s)
		if err != nil || seconds < 0 || seconds > 55 {
			return p, fault(http.StatusBadRequest, "wait must be 0 to 55 seconds", "")
		}
		p.Wait = time.Duration(seconds) * time.Second
	}
	return p, nil
}

// list is the answer to every list of the owner API.
type list[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"`
}

func respond[T any](c echo.Context, items []T, next string) error {
	if items == nil {
		items = []T{}
	}
	return httpapi.JSON(c, http.StatusOK, list[T]{Items: items, Next: next})
}

func (n *Node) ownerPause(c echo.Context, paused bool) error {
	if err := n.SetPaused(c.Request().Context(), paused, door(c)); err != nil {
		return ownerError(err)
	}
	return n.ownerStatus(c)
}

func (n *Node) ownerInbox(c echo.Context) error {
	p, err := readPage(c, itemStates...)
	if err != nil {
		return err
	}
	if err := httpapi.KeepOpen(c, p.Wait+10*time.Second); err != nil {
		return err
	}
	items, next, err := n.WaitInbox(c.Request().Context(), ItemState(p.State), p.After, p.Limit, p.Wait)
	if err != nil {
		return ownerError(err)
	}
	return respond(c, items, next)
}

// findItem returns the item whose id, or the unique beginning of it, the owner named.
func (n *Node) findItem(ctx context.Context, id string) (Item, error) {
	item, err := n.Item(ctx, id)
	if !errors.Is(err, store.ErrNotFound) {
		return item, err
	}
	behind, _, err := n.Inbox(ctx, "", id, 2)
	if err != nil {
		return Item{}, err
	}
	return theOne(behind, func(i Item) string { return i.ID }, id)
}

// findAsk is findItem for what waits for the owner. A message that waits behind another is found as that one.
func (n *Node) findAsk(ctx context.Context, id string) (acl.Ask, error) {
	ask, err := n.asks.Get(ctx, id, time.Now())
	if errors.Is(err, store.ErrNotFound) {
		var next []acl.Ask
		next, _, err = n.asks.List(ctx, acl.AskFilter{Each: true}, id, 2, time.Now())
		if err == nil {
			ask, err = theOne(next, func(a acl.Ask) string { return a.ID }, id)
		}
	}
	if err == nil && ask.Behind != "" {
		return n.asks.Get(ctx, ask.Behind, time.Now())
	}
	return ask, err
}

// theOne returns the entry that beginning names alone, of the first two that come behind it.
func theOne[T any](behind []T, id func(T) string, beginning string) (one T, err error) {
	fits := slices.DeleteFunc(behind, func(e T) bool { return !strings.HasPrefix(id(e), beginning) })
	switch len(fits) {
	case 0:
		return one, store.ErrNotFound
	case 1:
		return fits[0], nil
	}
	return one, fault(http.StatusConflict, "more than one entry fits", "name more of its id")
}

func (n *Node) ownerItem(c echo.Context) error {
	item, err := n.findItem(c.Request().Context(), c.Param("id"))
	if err != nil {
		return ownerError(err)
	}
	return httpapi.JSON(c, http.StatusOK, item)
}

func (n *Node) ownerAcknowledge(c echo.Context) error {
	item, err := n.findItem(c.Request().Context(), c.Param("id"))
	if err == nil {
		item, err = n.Acknowledge(c.Request().Context(), item.ID)
	}
	if err != nil {
		return ownerError(err)
	}
	return httpapi.JSON(c, http.StatusOK, item)
}

func (n *Node) ownerApprovals(c echo.Context) error {
	p, err := readPage(c, acl.AskPending, acl.AskApproved, acl.AskRejected, acl.AskWithdrawn, acl.AskExpired)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	asks, next, err := n.asks.List(ctx, acl.AskFilter{State: acl.AskState(p.State)}, p.After, p.Limit, time.Now())
	if err != nil {
		return ownerError(err)
	}
	views, err := n.viewAsks(ctx, asks)
	if err != nil {
		return ownerError(err)
	}
	return respond(c, views, next)
}

func (n *Node) ownerApproval(c echo.Context) error {
	ctx := c.Request().Context()
	ask, err := n.findAsk(ctx, c.Param("id"))
	if err != nil {
		return ownerError(err)
	}
	view, err := n.viewAsk(ctx, ask)
	if err != nil {
		return ownerError(err)
	}
	return httpapi.JSON(c, http.StatusOK, view)
}

// askEnded says how an ask ended that somebody wants to decide.
func askEnded(ask acl.Ask) string {
	at := ask.Decided.UTC().Format("2 Jan 15:04:05 MST")
	switch ask.State {
	case acl.AskApproved, acl.AskRejected:
		return fmt.Sprintf("too late: it was decided (%s) by %s at %s", ask.Choice, ask.By, at)
	case acl.AskWithdrawn:
		return "too late: it was taken back, answered by hand, or its conversation ended, at " + at
	}
	if !ask.Displaced.IsZero() {
		return "too late: the list was full, and another sender got its place at " + ask.Displaced.UTC().Format("2 Jan 15:04:05 MST")
	}
	return "too late: nobody decided until " + ask.Expires.UTC().Format("2 Jan 15:04:05 MST") + ", and it expired"
}

// ownerDecide carries out a decision about exactly what was shown: the request names its hash (AM-34).
func (n *Node) ownerDecide(c echo.Context) error {
	var req struct {
		Choice acl.Choice `json:"choice"`
		Hash   string     `json:"hash"`
		By     string     `json:"by"`
		// WaitSeconds, for a message of ours that is approved: how long to wait for what comes of it.
		WaitSeconds int `json:"wait_seconds"`
	}
	if err := decodeOwner(c, &req); err != nil {
		return err
	}
	wait, err := ownerWait(c, req.WaitSeconds)
	if err != nil {
		return err
	}
	if !doorForm.MatchString(req.By) {
		req.By = door(c)
	}
	ask, err := n.findAsk(c.Request().Context(), c.Param("id"))
	left, end := n.released.expect(ask.ID)
	defer end()
	answer := n.expectAnswer()
	defer answer.stop()
	if err == nil {
		ask, err = n.asks.Decide(c.Request().Context(), ask.ID, req.Hash, req.Choice, req.By, time.Now())
	}
	if errors.Is(err, acl.ErrAskGone) {
		return fault(http.StatusConflict, askEnded(ask), "")
	}
	if err != nil {
		return ownerError(err)
	}
	n.fresh.give()
	decided := struct {
		acl.Ask
		Sent *Sent `json:"sent,omitempty"` // what became of a message of ours that was approved
	}{Ask: ask}
	select {
	case p := <-left:
		sent := p.await(c.Request().Context(), wait)
		if wait > 0 && p.out.Address != "" && !p.out.closes() {
			sent = answer.answer(c.Request().Context(), p.out.key(), sent, wait)
		}
		decided.Sent = &sent
	default: // it was none, or not approved
		if ask.Kind == askTask && ask.State == acl.AskApproved {
			decided.Sent = &Sent{State: SendDelivered}
		}
	}
	return httpapi.JSON(c, http.StatusOK, decided)
}
