package agentrelay

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// nsInvites holds the hashes of invite codes that were not used yet (AR-36).
const nsInvites = "agentrelay/invites"

const (
	inviteFor  = 7 * 24 * time.Hour
	maxInvites = 1000
)

// Operations returns the owner's part of the relay.
func (r *Relay) Operations() []owner.Operation {
	return []owner.Operation{
		owner.Raw(http.MethodGet, "/agentrelay/agents", owner.Read, r.ownerAgents),
		owner.Raw(http.MethodPost, "/agentrelay/agents", owner.Decide, r.ownerRegister),
		owner.Raw(http.MethodPost, "/agentrelay/agents/:id/token", owner.Decide, r.ownerToken),
		owner.Raw(http.MethodDelete, "/agentrelay/agents/:id", owner.Decide, r.ownerRemove),
		owner.Raw(http.MethodPost, "/agentrelay/invites", owner.Decide, r.ownerInvite),
	}
}

// AgentView is a registered agent as the owner sees it.
type AgentView struct {
	ID        string    `json:"agent_id"`
	Since     time.Time `json:"since"`
	Active    time.Time `json:"active,omitzero"`
	Connected bool      `json:"connected"`
	Trusted   bool      `json:"trusted,omitempty"`
}

func (r *Relay) ownerAgents(c echo.Context) error {
	out := owner.List[AgentView]{Items: []AgentView{}}
	for _, a := range r.agents.list() {
		r.mu.Lock()
		on := r.sessions[a.ID] != nil
		r.mu.Unlock()
		out.Items = append(out.Items, AgentView{a.ID, a.Since, a.Active, on, a.Trusted})
	}
	return httpapi.JSON(c, http.StatusOK, out)
}

// decode reads the body of an owner's request.
func decode(c echo.Context, dst any) error {
	body, err := httpapi.Body(c, 64<<10)
	if err != nil {
		return err
	}
	if len(body) == 0 {
		return nil
	}
	if err := json.Unmarshal(body, dst); err != nil {
		return wire.ErrSyntax.Because(err)
	}
	return nil
}

func ownerFault(status int, message string) error {
	return &wire.Error{Code: wire.InvalidMessage, Status: status, Message: message}
}

// ownerError says to the owner why something failed.
func ownerError(err error) error {
	switch {
	case errors.Is(err, errBadID):
		return ownerFault(http.StatusBadRequest, "an agent id has 3 to 64 of a-z 0-9 -, begins and ends with a letter or digit, and is not relay")
	case errors.Is(err, errTaken):
		return ownerFault(http.StatusConflict, "the agent id is taken")
	case errors.Is(err, errFull):
		return ownerFault(http.StatusConflict, "the relay has as many agents as it may")
	case errors.Is(err, errUnknown):
		return ownerFault(http.StatusNotFound, "the relay has no such agent")
	}
	return wire.ErrUnavailable.Because(err)
}

func (r *Relay) ownerRegister(c echo.Context) error {
	var req struct {
		ID      string `json:"agent_id"`
		Trusted bool   `json:"trusted"`
	}
	if err := decode(c, &req); err != nil {
		return err
	}
	id, token, err := r.agents.register(c.Request().Context(), registration{ID: req.ID, Used: true, Trusted: req.Trusted})
	if err != nil {
		return ownerError(err)
	}
	httpapi.Private(c)
	return httpapi.JSON(c, http.StatusOK, Credentials{id, token})
}

// ownerToken gives an agent a new token; the old one is void at once, and so is the connection made with it.
func (r *Relay) ownerToken(c echo.Context) error {
	id := c.Param("id")
	token, err := r.agents.renew(c.Request().Context(), id)
	if err != nil {
		return ownerError(err)
	}
	r.disconnect(id, codeBadToken, "the token is no longer good")
	httpapi.Private(c)
	return httpapi.JSON(c, http.StatusOK, Credentials{id, token})
}

// ownerRemove ends an agent. Nobody else gets its id (AR-2).
func (r *Relay) ownerRemove(c echo.Context) error {
	id := c.Param("id")
	if err := r.agents.remove(c.Request().Context(), id); err != nil {
		return ownerError(err)
	}
	r.disconnect(id, codeBadToken, "the agent was removed")
	return c.NoContent(http.StatusNoContent)
}

// Invite is a code that registers one agent.
type Invite struct {
	Code    string    `json:"code"`
	Expires time.Time `json:"expires_at"`
}

func (r *Relay) ownerInvite(c echo.Context) error {
	now := time.Now().UTC()
	out := Invite{"arc_" + strings.ToLower(rand.Text()), now.Add(inviteFor)}
	_, change := r.invites().Issue(out.Code, credential.Code{Created: now, Expires: out.Expires})
	err := r.cfg.Records.Apply(c.Request().Context(), []store.Change{change}, now)
	if errors.Is(err, store.ErrQuota) {
		return ownerFault(http.StatusConflict, "there are too many unused codes")
	}
	if err != nil {
		return wire.ErrUnavailable.Because(err)
	}
	httpapi.Private(c)
	return httpapi.JSON(c, http.StatusOK, out)
}

// redeem returns what uses up the invite code of a registration.
func (r *Relay) redeem(c echo.Context) (store.Change, bool) {
	code := c.Request().Header.Get(wire.HeaderInvite)
	if code == "" {
		return store.Change{}, false
	}
	_, change, err := r.invites().Redeem(c.Request().Context(), code, "", time.Now())
	return change, err == nil
}

func (r *Relay) invites() credential.Invites {
	return credential.Invites{Records: r.cfg.Records, NS: nsInvites, Name: credential.Hash.String, Max: maxInvites, Forget: true}
}

// announce queues a frame of the relay for everybody.
func (r *Relay) announce(raw []byte) {
	out := websocket.Text(raw)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sessions {
		_ = s.conn.Send(out)
	}
}
