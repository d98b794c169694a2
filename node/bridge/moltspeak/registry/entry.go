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
	ns            = "moltspeak/registry"
	maxDocument   = 8 << 10
	minBearer     = 16  // MS-54
	maxCapability = 512 // bytes: a card permits 128 characters
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
	Bearer   credential.Hash `json:"bearer,omitzero"`   // hash of the bearer token that guards it
	Gone     bool            `json:"gone,omitempty"`    // deleted; the name stays reserved (MS-55)
	Key      time.Time       `json:"key,omitzero"`      // when a message was signed with the listed key
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
	return 0.5
}

// The times for which a name stays registered after its agent was last seen. A name that was proven or deleted stays
// longer (MS-55).
const (
	keepClaimed = 30 * 24 * time.Hour
	keepProven  = 365 * 24 * time.Hour
)

func (k registration) until() time.Time {
	if k.Gone || k.TrustScore > trustScore(false, false) {
		return k.LastSeenAt.Add(keepProven)
	}
	return k.LastSeenAt.Add(keepClaimed)
}

// change returns the change that stores the registration, provided that its stored revision is k.rev.
func (k registration) change() store.Change {
	body, err := json.Marshal(k)
	if err != nil {
		panic(err) // a struct of strings and times
	}
	return store.Change{IfRev: k.rev, Max: maxRegistered, Record: store.Record{NS: ns, Key: k.ID, Body: body, Terms: []string{"agent"}, Expires: k.until()}}
}

// submission is the parsed body of POST and PUT.
type submission struct {
	name, org, key, endpoint, description string
	capabilities                          []string
	given                                 map[string]bool
}

// readSubmission parses a body. refusal is the reason for a refusal, or "".
func (s *Server) readSubmission(c echo.Context) (in submission, refusal string) {
	raw, err := httpapi.Body(c, maxDocument)
	v, bad := wire.ParseObject(raw)
	if err != nil || bad != nil {
		return in, "Invalid JSON body"
	}
	in = submission{name: v.GetStr("agent_name"), org: v.GetStr("org"), key: v.GetStr("public_key"), endpoint: v.GetStr("endpoint"), description: v.GetStr("description"), capabilities: capabilitiesIn(v), given: map[string]bool{}}
	for _, key := range []string{"endpoint", "description", "capabilities"} {
		m, ok := v.Get(key)
		in.given[key] = ok && !m.IsNull()
	}
	u, err := url.Parse(in.endpoint)
	switch {
	case in.endpoint != "" && (err != nil || u.Scheme != "https" && !(s.cfg.Local && u.Scheme == "http") || u.Host == "" || u.User != nil || len(in.endpoint) > 2048):
		return in, "endpoint must be an https URL"
	case len(in.description) > 4096:
		return in, "description is too long"
	}
	return in, ""
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

// bearer returns the hash of the caller's bearer token, or the zero hash if the token is missing or too short.
func bearer(c echo.Context) credential.Hash {
	text, ok := strings.CutPrefix(c.Request().Header.Get("Authorization"), "Bearer ")
	if !ok || len(text) < minBearer {
		return credential.Hash{}
	}
	return credential.HashOf(text)
}

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
		return refuse(c, http.StatusBadRequest, "agent_name and org must be 1 to 128 of A-Z a-z 0-9 _ -")
	}
	owner := bearer(c)
	if !s.cfg.NoAuth {
		if _, ok := message.ParseKey(in.key); !ok {
			return refuse(c, http.StatusBadRequest, "public_key must be ed25519: and a key in base64")
		}
		if owner == (credential.Hash{}) {
			return refuse(c, http.StatusUnauthorized, "a bearer token of at least 16 characters is required; it guards the entry from then on")
		}
	}
	now := wire.Now()
	k := registration{Entry: Entry{
		ID: a.Name(), AgentName: in.name, Org: in.org, PublicKey: in.key, Endpoint: in.endpoint, Description: in.description,
		Capabilities: in.capabilities, TrustScore: 0.5, Status: "active", CreatedAt: now, UpdatedAt: now, LastSeenAt: now,
	}, Bearer: owner}
	from := httpapi.ClientAddr(c)
	if wait, _ := s.registrations.Take(from, now); wait > 0 {
		return refuseFor(c, wait, "Too many registrations")
	}
	_, taken, err := s.cache.card(c.Request().Context(), k.ID)
	if err == nil && taken {
		err = store.ErrConflict
	}
	if err == nil {
		err = s.save(c.Request().Context(), k, now)
	}
	if err != nil {
		s.registrations.Return(from, now)
	}
	switch {
	case errors.Is(err, store.ErrConflict): // the name is registered, or is reserved after a deletion
		return httpapi.JSON(c, http.StatusConflict, fault{Error: "Agent already registered", AgentID: k.ID})
	case errors.Is(err, store.ErrQuota):
		return refuseFor(c, time.Hour, "the registry is full")
	case err != nil:
		return err
	}
	s.proofs.ask(k.ID)
	return httpapi.JSON(c, http.StatusCreated, registrationAnswer{true, &k.Entry})
}

// save stores an entry and updates the cache.
func (s *Server) save(ctx context.Context, k registration, now time.Time) error {
	if err := s.cache.refresh(ctx); err != nil { // checkRoom needs the existing entries
		return err
	}
	s.cache.writing.Lock() // so that the cache changes in the same order as the store
	defer s.cache.writing.Unlock()
	k.TrustScore = trustScore(!k.Key.IsZero(), !k.Answered.IsZero())
	if err := s.cache.checkRoom(k, now); err != nil {
		return err
	}
	err := s.cfg.Records.Apply(ctx, []store.Change{k.change()}, now)
	if err == nil {
		s.cache.put(k)
	}
	return err
}

// find returns a live entry or a card of the directory.
func (s *Server) find(c echo.Context) (registration, bool, error) {
	ctx := c.Request().Context()
	id := c.Param("id")
	var k registration
	if _, ok := message.ParseName(id); !ok {
		return k, false, nil
	}
	rev, ok, err := store.ReadRecord(ctx, s.cfg.Records, ns, id, &k, time.Now())
	k.rev = rev
	if err != nil || ok {
		return k, ok && !k.Gone, err
	}
	e, ok, err := s.cache.card(ctx, id)
	return registration{Entry: e, readOnly: true}, ok, err
}

func (s *Server) get(c echo.Context) error {
	k, ok, err := s.find(c)
	if err != nil {
		return err
	}
	if !ok {
		return refuse(c, http.StatusNotFound, "Agent not found")
	}
	return httpapi.JSON(c, http.StatusOK, struct {
		Agent Entry `json:"agent"`
	}{k.Entry})
}

// change applies a change to an entry if the caller owns the entry, and answers the request.
func (s *Server) change(c echo.Context, change func(*registration, time.Time), answer func(registration) any) error {
	k, ok, err := s.find(c)
	if err != nil {
		return err
	}
	if !ok {
		return refuse(c, http.StatusNotFound, "Agent not found")
	}
	if !s.cfg.NoAuth || k.readOnly {
		given := bearer(c)
		switch {
		case k.readOnly:
			return refuse(c, http.StatusForbidden, "this entry is a card of the directory: change the card")
		case given == (credential.Hash{}):
			return refuse(c, http.StatusUnauthorized, "a bearer token is required")
		case !given.Equal(k.Bearer):
			return refuse(c, http.StatusForbidden, "the bearer token does not own this entry")
		}
	}
	now := wire.Now()
	change(&k, now)
	if err := s.save(c.Request().Context(), k, now); err != nil {
		if errors.Is(err, store.ErrConflict) {
			return refuse(c, http.StatusConflict, "the entry was changed meanwhile")
		}
		if errors.Is(err, store.ErrQuota) {
			return refuseFor(c, time.Hour, "the registry is full")
		}
		return err
	}
	s.proofs.ask(k.ID)
	return httpapi.JSON(c, http.StatusOK, answer(k))
}

func (s *Server) put(c echo.Context) error {
	in, refusal := s.readSubmission(c)
	if refusal != "" {
		return refuse(c, http.StatusBadRequest, refusal)
	}
	return s.change(c, func(k *registration, now time.Time) {
		if in.given["endpoint"] && in.endpoint != k.Endpoint {
			k.Endpoint, k.Answered, k.Tried = in.endpoint, time.Time{}, time.Time{}
			k.TrustScore = trustScore(!k.Key.IsZero(), false)
		}
		if in.given["description"] {
			k.Description = in.description
		}
		if in.given["capabilities"] {
			k.Capabilities = in.capabilities
		}
		k.UpdatedAt = now
	}, func(k registration) any { return registrationAnswer{true, &k.Entry} })
}

func (s *Server) remove(c echo.Context) error {
	return s.change(c, func(k *registration, _ time.Time) {
		k.Gone, k.Endpoint, k.Description, k.Capabilities = true, "", "", []string{} // the name stays reserved
	}, func(registration) any { return registrationAnswer{Success: true} })
}

func (s *Server) heartbeat(c echo.Context) error {
	return s.change(c, func(k *registration, now time.Time) { k.LastSeenAt = now }, func(k registration) any {
		return struct {
			Success bool      `json:"success"`
			Seen    time.Time `json:"last_seen_at"`
		}{true, k.LastSeenAt}
	})
}
