package registry

import (
	"context"
	"encoding/json"
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

const (
	ns            = "moltspeak/registry" // the namespace of the registrations, by agent@org
	maxDocument   = 8 << 10              // bytes of a submission
	minBearer     = 16                   // bytes of a bearer token (MS-54)
	maxCapability = 512                  // bytes: a card permits 128 characters
)

// Entry is an agent in a registry (MS-53).
type Entry struct {
	ID           string    `json:"id"`
	AgentName    string    `json:"agent_name"`
	Org          string    `json:"org"`
	PublicKey    string    `json:"public_key"`
	Endpoint     string    `json:"endpoint"`
	Description  string    `json:"description"`
	Capabilities []string  `json:"capabilities"`
	TrustScore   float64   `json:"trust_score"`
	Status       string    `json:"status"`
	CreatedAt    time.Time `json:"created_at"`
	UpdatedAt    time.Time `json:"updated_at"`
	LastSeenAt   time.Time `json:"last_seen_at"`
}

// registration is a stored entry.
type registration struct {
	Entry
	Bearer   credential.Hash `json:"bearer,omitzero"`   // hash of the bearer token that guards the entry
	Gone     bool            `json:"gone,omitempty"`    // deleted; the name stays reserved (MS-55)
	KeyUsed  time.Time       `json:"key,omitzero"`      // when a message was signed with the listed key
	Answered time.Time       `json:"answered,omitzero"` // when its endpoint last proved the key; zero after a failure
	Tried    time.Time       `json:"tried,omitzero"`    // when its endpoint was last asked

	rev      store.Rev
	readOnly bool // the entry is a card of the directory
}

// trustScore returns the trust score of an entry from its proofs (MS-55).
func trustScore(key, endpoint bool) float64 {
	switch {
	case key && endpoint:
		return 0.9
	case endpoint:
		return 0.8
	case key:
		return 0.7
	}
	return unprovenScore
}

// unprovenScore is the trust score of an entry without proofs.
const unprovenScore = 0.5

// The times for which a name stays registered after its agent was last seen. A name that was proven or deleted stays
// longer (MS-55).
const (
	keepClaimed = 30 * 24 * time.Hour
	keepProven  = 365 * 24 * time.Hour
)

// until returns the time until which the name stays registered.
func (reg registration) until() time.Time {
	if reg.Gone || reg.TrustScore > unprovenScore {
		return reg.LastSeenAt.Add(keepProven)
	}
	return reg.LastSeenAt.Add(keepClaimed)
}

// change returns the change that stores the registration, provided that its stored revision is reg.rev.
func (reg registration) change() store.Change {
	body, err := json.Marshal(reg)
	if err != nil {
		panic(err) // a struct of strings and times
	}
	return store.Change{IfRev: reg.rev, Max: maxRegistered, Record: store.Record{NS: ns, Key: reg.ID, Body: body, Terms: []string{"agent"}, Expires: reg.until()}}
}

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

// capabilitiesIn returns the capabilities in an entry or a card. It leaves out those that are too long or too many.
func capabilitiesIn(v wire.Value) []string {
	out := []string{}
	list, _ := v.Get("capabilities")
	for e := range list.Elems() {
		if text, ok := e.Str(); ok && len(text) <= maxCapability && len(out) < message.MaxList {
			out = append(out, text)
		}
	}
	return out
}

// bearerHash returns the hash of the caller's bearer token, or the zero hash if the token is missing or too short.
func bearerHash(c echo.Context) credential.Hash {
	text, ok := strings.CutPrefix(c.Request().Header.Get("Authorization"), "Bearer ")
	if !ok || len(text) < minBearer {
		return credential.Hash{}
	}
	return credential.HashOf(text)
}

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
	owner := bearerHash(c)
	if !s.cfg.NoAuth {
		if _, ok := message.ParseKey(in.key); !ok {
			return refuse(c, http.StatusBadRequest, "public_key must have the prefix ed25519: and a key in base64")
		}
		if owner == (credential.Hash{}) {
			return refuse(c, http.StatusUnauthorized, "a bearer token of at least 16 characters is required; it guards the entry from then on")
		}
	}
	now := wire.Now()
	reg := registration{Entry: Entry{
		ID: a.Name(), AgentName: in.name, Org: in.org, PublicKey: in.key, Endpoint: in.endpoint, Description: in.description,
		Capabilities: in.capabilities, TrustScore: unprovenScore, Status: "active", CreatedAt: now, UpdatedAt: now, LastSeenAt: now,
	}, Bearer: owner}
	from := httpapi.ClientAddr(c)
	if wait, _ := s.registrations.Take(from, now); wait > 0 {
		return refuseFor(c, wait, "Too many registrations")
	}
	_, taken, err := s.cache.card(c.Request().Context(), reg.ID)
	if err == nil && taken {
		err = store.ErrConflict
	}
	if err == nil {
		err = s.save(c.Request().Context(), reg, now)
	}
	if err != nil {
		s.registrations.Return(from, now)
	}
	switch {
	case errors.Is(err, store.ErrConflict): // the name is registered, or is reserved after a deletion
		return httpapi.JSON(c, http.StatusConflict, fault{Error: "Agent already registered", AgentID: reg.ID})
	case errors.Is(err, store.ErrQuota):
		return refuseFor(c, time.Hour, "the registry is full")
	case err != nil:
		return err
	}
	s.proofs.add(reg.ID)
	return httpapi.JSON(c, http.StatusCreated, registrationAnswer{true, &reg.Entry})
}

// save stores an entry and updates the cache.
func (s *Server) save(ctx context.Context, reg registration, now time.Time) error {
	if err := s.cache.refresh(ctx); err != nil { // checkRoom needs the existing entries
		return err
	}
	s.cache.writing.Lock() // so that the cache changes in the same order as the store
	defer s.cache.writing.Unlock()
	reg.TrustScore = trustScore(!reg.KeyUsed.IsZero(), !reg.Answered.IsZero())
	if err := s.cache.checkRoom(reg, now); err != nil {
		return err
	}
	err := s.cfg.Records.Apply(ctx, []store.Change{reg.change()}, now)
	if err == nil {
		s.cache.put(reg)
	}
	return err
}

// find returns a live entry or a card of the directory.
func (s *Server) find(c echo.Context) (registration, bool, error) {
	ctx := c.Request().Context()
	id := c.Param("id")
	var reg registration
	if _, ok := message.ParseName(id); !ok {
		return reg, false, nil
	}
	rev, ok, err := store.ReadRecord(ctx, s.cfg.Records, ns, id, &reg, time.Now())
	reg.rev = rev
	if err != nil || ok {
		return reg, ok && !reg.Gone, err
	}
	e, ok, err := s.cache.card(ctx, id)
	return registration{Entry: e, readOnly: true}, ok, err
}

// get serves GET /v1/agents/:id.
func (s *Server) get(c echo.Context) error {
	reg, ok, err := s.find(c)
	if err != nil {
		return err
	}
	if !ok {
		return refuse(c, http.StatusNotFound, "Agent not found")
	}
	return httpapi.JSON(c, http.StatusOK, struct {
		Agent Entry `json:"agent"`
	}{reg.Entry})
}

// change applies edit to an entry if the caller owns the entry, and answers the request.
func (s *Server) change(c echo.Context, edit func(*registration, time.Time), answer func(registration) any) error {
	reg, ok, err := s.find(c)
	if err != nil {
		return err
	}
	if !ok {
		return refuse(c, http.StatusNotFound, "Agent not found")
	}
	switch hash := bearerHash(c); {
	case reg.readOnly:
		return refuse(c, http.StatusForbidden, "this entry is a card of the directory: change the card")
	case s.cfg.NoAuth: // anybody may change the entry
	case hash == (credential.Hash{}):
		return refuse(c, http.StatusUnauthorized, "a bearer token is required")
	case !hash.Equal(reg.Bearer):
		return refuse(c, http.StatusForbidden, "the bearer token does not own this entry")
	}
	now := wire.Now()
	edit(&reg, now)
	if err := s.save(c.Request().Context(), reg, now); err != nil {
		if errors.Is(err, store.ErrConflict) {
			return refuse(c, http.StatusConflict, "the entry was changed meanwhile; try again")
		}
		if errors.Is(err, store.ErrQuota) {
			return refuseFor(c, time.Hour, "the registry is full")
		}
		return err
	}
	s.proofs.add(reg.ID)
	return httpapi.JSON(c, http.StatusOK, answer(reg))
}

// put serves PUT /v1/agents/:id.
func (s *Server) put(c echo.Context) error {
	in, refusal := s.readSubmission(c)
	if refusal != "" {
		return refuse(c, http.StatusBadRequest, refusal)
	}
	return s.change(c, func(reg *registration, now time.Time) {
		if in.given["endpoint"] && in.endpoint != reg.Endpoint {
			reg.Endpoint, reg.Answered, reg.Tried = in.endpoint, time.Time{}, time.Time{}
			reg.TrustScore = trustScore(!reg.KeyUsed.IsZero(), !reg.Answered.IsZero())
		}
		if in.given["description"] {
			reg.Description = in.description
		}
		if in.given["capabilities"] {
			reg.Capabilities = in.capabilities
		}
		reg.UpdatedAt = now
	}, func(reg registration) any { return registrationAnswer{true, &reg.Entry} })
}

// remove serves DELETE /v1/agents/:id.
func (s *Server) remove(c echo.Context) error {
	return s.change(c, func(reg *registration, _ time.Time) {
		reg.Gone, reg.Endpoint, reg.Description, reg.Capabilities = true, "", "", []string{} // the name stays reserved
	}, func(registration) any { return registrationAnswer{Success: true} })
}

// heartbeat serves POST /v1/agents/:id/heartbeat.
func (s *Server) heartbeat(c echo.Context) error {
	return s.change(c, func(reg *registration, now time.Time) { reg.LastSeenAt = now }, func(reg registration) any {
		return struct {
			Success bool      `json:"success"`
			Seen    time.Time `json:"last_seen_at"`
		}{true, reg.LastSeenAt}
	})
}
