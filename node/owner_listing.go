package node

import (
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

func (n *Node) ownerOutbox(c echo.Context) error {
	p, err := readPage(c, SendQueued, SendDelivered, SendUnverified, SendFailed, SendUnknown, SendHeld)
	if err != nil {
		return err
	}
	letters, next, err := n.Outbox(c.Request().Context(), SendState(p.State), p.After, p.Limit)
	if err != nil {
		return ownerError(err)
	}
	return respond(c, letters, next)
}

func (n *Node) ownerNotices(c echo.Context) error {
	p, err := readPage[string](c)
	if err != nil {
		return err
	}
	notices, next, err := n.notices.List(c.Request().Context(), p.After, p.Limit, time.Now())
	if err != nil {
		return ownerError(err)
	}
	return respond(c, notices, next)
}

// directoryRequest names one configured directory; all of them where it is empty.
type directoryRequest struct {
	Directory string `json:"directory"`
}

func (n *Node) ownerRegister(c echo.Context) error {
	var req struct {
		directoryRequest
		Adopt bool `json:"adopt"` // the id that the directory gives
	}
	if err := decodeOwner(c, &req); err != nil {
		return err
	}
	do, what := n.Register, "register"
	if req.Adopt {
		do, what = n.Adopt, "register and adopt the id that the directory gives"
	}
	if err := n.auditListing(c, what, req.Directory); err != nil {
		return err
	}
	before := n.ID()
	listings, err := do(c.Request().Context(), req.Directory)
	if err != nil {
		return ownerError(err)
	}
	if n.ID() != before {
		if err := n.auditListing(c, "the agent id was "+string(before), req.Directory); err != nil {
			return err
		}
	}
	return respond(c, listings, "")
}

func (n *Node) ownerWithdraw(c echo.Context) error {
	var req directoryRequest
	if err := decodeOwner(c, &req); err != nil {
		return err
	}
	if err := n.auditListing(c, "withdraw", req.Directory); err != nil {
		return err
	}
	listings, err := n.Withdraw(c.Request().Context(), req.Directory)
	if err != nil {
		return ownerError(err)
	}
	return respond(c, listings, "")
}

// auditListing writes down what the owner is about to do with the node's registrations.
func (n *Node) auditListing(c echo.Context, what, directory string) error {
	entry := acl.AuditEntry{
		At: time.Now(), Kind: acl.AuditRegistration, Subject: string(n.ID()), By: door(c), Note: what,
		Rule: wire.OneLine(directory, 200),
	}
	return ownerError(n.audit.Add(c.Request().Context(), entry))
}

func (n *Node) ownerRotate(c echo.Context) error {
	listings, err := n.RotateKey(c.Request().Context())
	if err != nil {
		return ownerError(err)
	}
	entry := acl.AuditEntry{
		At: time.Now(), Kind: acl.AuditKey, Subject: string(n.ID()), By: door(c), Note: "our key was rotated", Digest: n.fingerprint(),
	}
	if err := n.audit.Add(c.Request().Context(), entry); err != nil {
		return ownerError(err)
	}
	return respond(c, listings, "")
}

// found is what one directory answered to a search.
type found struct {
	Directory string       `json:"directory"`
	Listing   wire.Listing `json:"listing"`
	// Unproven are agents of the page whose id, which is made of a key, does not lead to the key on the card (AM-2).
	Unproven []wire.AgentID `json:"unproven,omitempty"`
	Error    string         `json:"error,omitempty"`
	Hint     string         `json:"hint,omitempty"`
}

// ownerDiscover asks every configured directory, or the one that is named, for a page of agents (AM-86).
func (n *Node) ownerDiscover(c echo.Context) error {
	params := c.QueryParams()
	q := client.Query{Capabilities: params["capability"], Text: params.Get("q"), Cursor: params.Get("cursor")}
	for _, i := range params["intent"] {
		q.Intents = append(q.Intents, wire.Intent(i))
	}
	if s := params.Get("limit"); s != "" {
		limit, err := strconv.Atoi(s)
		if err != nil || limit < 1 || limit > 100 {
			return fault(http.StatusBadRequest, "limit must be 1 to 100", "")
		}
		q.Limit = limit
	}
	places, err := n.keeper.at(params.Get("directory"))
	if err != nil {
		return err
	}
	answers := make([]found, 0, len(places))
	for _, p := range places {
		answer := found{Directory: p.dir.Base}
		listing, err := p.dir.Search(c.Request().Context(), q)
		if err != nil {
			answer.Error, answer.Hint = wire.OneLine(err.Error(), 300), hintOf(err)
		}
		answer.Listing = listing
		for _, card := range listing.Agents {
			if client.CheckCardID(card, time.Now()) != nil {
				answer.Unproven = append(answer.Unproven, wire.AgentID(card.GetStr("agent_id")))
			}
		}
		answers = append(answers, answer)
	}
	return respond(c, answers, "")
}
