package relay

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	inviteFor  = 7 * 24 * time.Hour
	maxInvites = 1000
)

// AgentView is a registered agent as the owner sees it.
type AgentView struct {
	ID        string    `json:"agent_id"`
	Since     time.Time `json:"since"`
	Active    time.Time `json:"active,omitzero"`
	Connected bool      `json:"connected"`
	Trusted   bool      `json:"trusted,omitempty"`
}

// NewAgent is the owner's request to register an agent.
type NewAgent struct {
	ID      string `json:"agent_id,omitempty"`
	Trusted bool   `json:"trusted,omitempty"`
}

// Invite is a code that registers one agent.
type Invite struct {
	Code    string    `json:"code"`
	Expires time.Time `json:"expires_at"`
}

// These are the owner's operations on the relay.
var (
	ListAgents  = owner.Endpoint[owner.None, owner.List[AgentView]]{Method: http.MethodGet, Path: "/agentrelay/agents", Right: owner.Read}
	AddAgent    = owner.Endpoint[NewAgent, frame.Credentials]{Method: http.MethodPost, Path: "/agentrelay/agents", Right: owner.Decide}
	RenewToken  = owner.Endpoint[owner.None, frame.Credentials]{Method: http.MethodPost, Path: "/agentrelay/agents/:id/token", Right: owner.Decide}
	RemoveAgent = owner.Endpoint[owner.None, owner.None]{Method: http.MethodDelete, Path: "/agentrelay/agents/:id", Right: owner.Decide}
	AddInvite   = owner.Endpoint[owner.None, Invite]{Method: http.MethodPost, Path: "/agentrelay/invites", Right: owner.Decide}
)

// Operations returns the owner's operations on the relay.
func (r *Relay) Operations() []owner.Operation {
	return []owner.Operation{
		ListAgents.Serve(r.listAgents), AddAgent.Serve(r.addAgent), RenewToken.Serve(r.renewToken), RemoveAgent.Serve(r.removeAgent),
		AddInvite.Serve(r.addInvite),
	}
}

func (r *Relay) listAgents(echo.Context, owner.None) (owner.List[AgentView], error) {
	out := owner.List[AgentView]{Items: []AgentView{}}
	for _, a := range r.agents.List() {
		out.Items = append(out.Items, AgentView{a.ID, a.Created, a.Seen, r.conns.isConnected(a.ID), a.Trusted})
	}
	slices.SortFunc(out.Items, func(a, b AgentView) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

// ownerError returns an error of the registry as the owner sees it.
func ownerError(err error) error {
	if err == nil {
		return nil
	}
	if f := faultOf(err); f != nil {
		return owner.Fault(f.status, f.message, "")
	}
	return wire.ErrUnavailable.Because(err)
}

func (r *Relay) addAgent(c echo.Context, in NewAgent) (frame.Credentials, error) {
	httpapi.Private(c)
	made, err := r.register(c.Request().Context(), member{Account: credential.Account{ID: in.ID}, Trusted: in.Trusted})
	return made, ownerError(err)
}

// renewToken gives an agent a new token and closes the connection that the agent made with the old one.
func (r *Relay) renewToken(c echo.Context, _ owner.None) (frame.Credentials, error) {
	httpapi.Private(c)
	id := c.Param("id")
	token, err := r.agents.Rotate(c.Request().Context(), id)
	if err == nil {
		r.conns.disconnect(id, frame.CloseBadToken, "the token is no longer good")
	}
	return frame.Credentials{AgentID: id, Token: token}, ownerError(err)
}

// removeAgent removes an agent. Nobody gets its id while the registry keeps a record of the removal (AR-2).
func (r *Relay) removeAgent(c echo.Context, _ owner.None) (owner.None, error) {
	id := c.Param("id")
	err := r.agents.Remove(c.Request().Context(), id)
	if err == nil {
		r.conns.disconnect(id, frame.CloseBadToken, "the agent was removed")
	}
	return owner.None{}, ownerError(err)
}

func (r *Relay) addInvite(c echo.Context, _ owner.None) (Invite, error) {
	httpapi.Private(c)
	now := time.Now().UTC()
	out := Invite{"arc_" + strings.ToLower(rand.Text()), now.Add(inviteFor)}
	_, change := r.agents.Invites().Issue(out.Code, credential.Code{Created: now, Expires: out.Expires})
	err := r.cfg.Records.Apply(c.Request().Context(), []store.Change{change}, now)
	if errors.Is(err, store.ErrQuota) {
		return out, owner.Fault(http.StatusConflict, "there are too many unused invite codes; wait until some expire", "")
	}
	return out, ownerError(err)
}

// Join registers the node of this process as an agent: under id, or under an id of the relay's choice if id is taken.
// Each later call gives the same agent a new token.
func (r *Relay) Join(ctx context.Context, id string) (frame.Credentials, error) {
	for _, a := range r.agents.List() {
		if a.Own {
			token, err := r.agents.Rotate(ctx, a.ID)
			return frame.Credentials{AgentID: a.ID, Token: token}, err
		}
	}
	own := member{Account: credential.Account{ID: id}, Trusted: true, Own: true}
	made, err := r.register(ctx, own)
	if errors.Is(err, credential.ErrTaken) {
		own.ID = ""
		made, err = r.register(ctx, own)
	}
	return made, err
}
