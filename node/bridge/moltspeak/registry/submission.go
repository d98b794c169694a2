package registry

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// submission is the parsed body of POST and PUT.
type submission struct {
	name, org, key, endpoint, description string
	capabilities                          []string
	given                                 map[string]bool // the optional members that the body has
}

// readSubmission parses a body. refusal is the reason for a refusal, or "".
func (s *Server) readSubmission(c echo.Context) (in submission, refusal string) {
	raw, err := httpapi.Body(c, maxDocument)
	v, parseErr := wire.ParseObject(raw)
	if err != nil || parseErr != nil {
		return in, "Invalid JSON body"
	}
	in = submission{name: v.GetStr("agent_name"), org: v.GetStr("org"), key: v.GetStr("public_key"), endpoint: v.GetStr("endpoint"), description: v.GetStr("description"), capabilities: capabilitiesIn(v), given: map[string]bool{}}
	for key, kind := range map[string]wire.Kind{"endpoint": wire.String, "description": wire.String, "capabilities": wire.Array} {
		m, ok := v.Get(key)
		in.given[key] = ok && !m.IsNull()
		if in.given[key] && m.Kind() != kind {
			return in, key + " has a wrong type"
		}
	}
	switch {
	case in.endpoint != "" && !s.isValidEndpoint(in.endpoint):
		return in, "endpoint must be an https URL"
	case len(in.description) > 4096:
		return in, "description is too long"
	}
	return in, ""
}

func (s *Server) isValidEndpoint(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "https" || s.cfg.Local && u.Scheme == "http") && u.Host != "" && u.User == nil && len(text) <= 2048
}

// bearer returns the caller's bearer token, or "" if it is missing or too short.
func bearer(c echo.Context) string {
	text, ok := strings.CutPrefix(c.Request().Header.Get("Authorization"), "Bearer ")
	if !ok || len(text) < minBearer {
		return ""
	}
	return text
}

// refuseError answers a request that the accounts refuse.
func refuseError(c echo.Context, id string, err error) error {
	busy, isBusy := errors.AsType[*credential.Busy](err)
	switch {
	case isBusy:
		return refuseFor(c, busy.Wait, "Too many requests")
	case errors.Is(err, errNotOwner):
		return refuse(c, http.StatusForbidden, err.Error())
	case errors.Is(err, credential.ErrTaken): // the name is registered, or is reserved after a deletion
		return httpapi.JSON(c, http.StatusConflict, fault{Error: "Agent already registered", AgentID: id})
	case errors.Is(err, credential.ErrUnknown):
		return refuse(c, http.StatusNotFound, "Agent not found")
	case errors.Is(err, credential.ErrFull), errors.Is(err, store.ErrQuota):
		return refuseFor(c, time.Hour, "the registry is full")
	case errors.Is(err, store.ErrConflict):
		return refuse(c, http.StatusConflict, "the entry was changed meanwhile; try again")
	}
	return err
}

var errNotOwner = errors.New("the bearer token does not own this entry")

// add serves POST /v1/agents.
func (s *Server) add(c echo.Context) error {
	in, refusal := s.readSubmission(c)
	if refusal != "" {
		return refuse(c, http.StatusBadRequest, refusal)
	}
	if in.name == "" || in.org == "" || in.key == "" {
		return httpapi.JSON(c, http.StatusBadRequest, fault{Error: "Missing required fields", Required: []string{"agent_name", "org", "public_key"}})
	}
	a, ok := message.ParseName(in.name + "@" + in.org)
	if !ok {
		return refuse(c, http.StatusBadRequest, "agent_name and org must each be 1 to 128 characters from A-Z a-z 0-9 _ -")
	}
	owner := bearer(c)
	if !s.cfg.NoAuth {
		if _, ok := message.ParseKey(in.key); !ok {
			return refuse(c, http.StatusBadRequest, "public_key must have the prefix ed25519: and a key in base64")
		}
		if owner == "" {
			return refuse(c, http.StatusUnauthorized, "a bearer token of at least 16 characters is required; it guards the entry from then on")
		}
	}
	ctx, now := c.Request().Context(), wire.Now()
	reg := &registration{
		Account: credential.Account{ID: a.Name(), Created: now, Seen: now}, PublicKey: in.key, Endpoint: in.endpoint,
		Description: in.description, Capabilities: in.capabilities, Updated: now,
	}
	err := s.accounts.Charge(httpapi.ClientAddr(c), func() error {
		if s.card(ctx, reg.ID) != nil {
			return credential.ErrTaken
		}
		_, err := s.accounts.Admit(ctx, reg, "", owner)
		return err
	})
	if err != nil {
		return refuseError(c, reg.ID, err)
	}
	return httpapi.JSON(c, http.StatusCreated, registrationAnswer{true, reg.entry})
}

// get serves GET /v1/agents/:id.
func (s *Server) get(c echo.Context) error {
	id, e := c.Param("id"), (*Entry)(nil)
	if reg := s.accounts.Get(id); reg != nil {
		e = reg.entry
	} else if !s.accounts.IsTaken(id) {
		e = s.card(c.Request().Context(), id)
	}
	if e == nil {
		return refuseError(c, id, credential.ErrUnknown)
	}
	return httpapi.JSON(c, http.StatusOK, struct {
		Agent *Entry `json:"agent"`
	}{e})
}

// change calls do with the id of an entry if the caller owns the entry, and answers the request.
func (s *Server) change(c echo.Context, do func(id string) error, answer func(*registration) any) error {
	id, owner := c.Param("id"), bearer(c)
	reg := s.accounts.Get(id)
	switch {
	case reg == nil && !s.accounts.IsTaken(id) && s.card(c.Request().Context(), id) != nil:
		return refuse(c, http.StatusForbidden, "this entry is a card of the directory: change the card")
	case reg == nil:
		return refuseError(c, id, credential.ErrUnknown)
	case s.cfg.NoAuth: // anybody may change the entry
	case owner == "":
		return refuse(c, http.StatusUnauthorized, "a bearer token is required")
	case !credential.HashOf(owner).Equal(reg.Key):
		return refuseError(c, id, s.accounts.Fail(httpapi.ClientAddr(c), errNotOwner))
	}
	if err := do(id); err != nil {
		return refuseError(c, id, err)
	}
	return httpapi.JSON(c, http.StatusOK, answer(s.accounts.Get(id)))
}

// put serves PUT /v1/agents/:id.
func (s *Server) put(c echo.Context) error {
	in, refusal := s.readSubmission(c)
	if refusal != "" {
		return refuse(c, http.StatusBadRequest, refusal)
	}
	return s.change(c, func(id string) error {
		return s.accounts.Edit(c.Request().Context(), id, func(reg *registration) error {
			if in.given["endpoint"] {
				reg.Endpoint = in.endpoint
			}
			if in.given["description"] {
				reg.Description = in.description
			}
			if in.given["capabilities"] {
				reg.Capabilities = in.capabilities
			}
			reg.Updated = wire.Now()
			return nil
		})
	}, func(reg *registration) any { return registrationAnswer{true, reg.entry} })
}

// remove serves DELETE /v1/agents/:id. The name stays reserved.
func (s *Server) remove(c echo.Context) error {
	return s.change(c, func(id string) error { return s.accounts.Remove(c.Request().Context(), id) },
		func(*registration) any { return registrationAnswer{Success: true} })
}

// heartbeat serves POST /v1/agents/:id/heartbeat.
func (s *Server) heartbeat(c echo.Context) error {
	return s.change(c, func(id string) error {
		return s.accounts.Edit(c.Request().Context(), id, func(reg *registration) error {
			reg.Seen = wire.Now()
			return nil
		})
	}, func(reg *registration) any {
		return struct {
			Success bool      `json:"success"`
			Seen    time.Time `json:"last_seen_at"`
		}{true, reg.Seen}
	})
}
