package moltspeak

import (
	"context"
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
	given                                 map[string]bool
}

// readSubmission parses a body. fault is the reason for a refusal, or "".
func (s *registryServer) readSubmission(c echo.Context) (in submission, fault string) {
	raw, err := httpapi.Body(c, maxRegistryDoc)
	v, bad := wire.ParseObject(raw)
	if err != nil || bad != nil {
		return in, "Invalid JSON body"
	}
	in = submission{name: v.GetStr("agent_name"), org: v.GetStr("org"), key: v.GetStr("public_key"), endpoint: v.GetStr("endpoint"), description: v.GetStr("description"), given: map[string]bool{}}
	for _, key := range []string{"endpoint", "description", "capabilities"} {
		m, ok := v.Get(key)
		in.given[key] = ok && !m.IsNull()
	}
	list, _ := v.Get("capabilities")
	for e := range list.Elems() {
		if text, ok := e.Str(); ok && len(text) <= message.MaxText && len(in.capabilities) < message.MaxList {
			in.capabilities = append(in.capabilities, text)
		}
	}
	u, err := url.Parse(in.endpoint)
	switch {
	case in.endpoint != "" && (err != nil || u.Scheme != "https" && !(s.local && u.Scheme == "http") || u.Host == "" || u.User != nil || len(in.endpoint) > 2048):
		return in, "endpoint must be an https URL"
	case len(in.description) > 4096:
		return in, "description is too long"
	}
	return in, ""
}

// bearer returns the hash of the caller's bearer token, or the zero hash if the token is missing or too short.
func bearer(c echo.Context) credential.Hash {
	text, ok := strings.CutPrefix(c.Request().Header.Get("Authorization"), "Bearer ")
	if !ok || len(text) < minBearer {
		return credential.Hash{}
	}
	return credential.HashOf(text)
}

func (s *registryServer) add(c echo.Context) error {
	in, fault := s.readSubmission(c)
	if fault != "" {
		return refuse(c, http.StatusBadRequest, fault)
	}
	if in.name == "" || in.org == "" || in.key == "" {
		return httpapi.JSON(c, http.StatusBadRequest, registryFault{Error: "Missing required fields", Required: []string{"agent_name", "org", "public_key"}})
	}
	a, ok := message.ParseName(in.name + "@" + in.org)
	if !ok {
		return refuse(c, http.StatusBadRequest, "agent_name and org must be 1 to 128 of A-Z a-z 0-9 _ -")
	}
	owner := bearer(c)
	if !s.noAuth {
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
		Capabilities: append([]string{}, in.capabilities...), TrustScore: 0.5, Status: "active", CreatedAt: now, UpdatedAt: now, LastSeenAt: now,
	}, Bearer: owner}
	from := httpapi.ClientAddr(c)
	if wait, _ := s.registrations.Take(from, now); wait > 0 {
		retryAfter(c, wait)
		return refuse(c, http.StatusTooManyRequests, "Too many registrations")
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
		return httpapi.JSON(c, http.StatusConflict, registryFault{Error: "Agent already registered", AgentID: k.ID})
	case errors.Is(err, store.ErrQuota):
		retryAfter(c, time.Hour)
		return refuse(c, http.StatusTooManyRequests, "the registry is full")
	case err != nil:
		return err
	}
	s.proofs.ask(k.ID)
	return httpapi.JSON(c, http.StatusCreated, registrationAnswer{true, &k.Entry})
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

// save stores an entry and updates the cache.
func (s *registryServer) save(ctx context.Context, k registration, now time.Time) error {
	if err := s.cache.refresh(ctx); err != nil { // checkRoom needs the existing entries
		return err
	}
	s.cache.writing.Lock() // so that the cache changes in the same order as the store
	defer s.cache.writing.Unlock()
	k.TrustScore = trustScore(!k.Key.IsZero(), !k.Answered.IsZero())
	if err := s.cache.checkRoom(k, now); err != nil {
		return err
	}
	err := s.records.Apply(ctx, []store.Change{{IfRev: k.rev, Max: maxRegistered, Record: store.Record{
		NS: nsRegistry, Key: k.ID, Body: encode(k), Terms: []string{"agent"}, Expires: k.until(),
	}}}, now)
	if err == nil {
		s.cache.put(k)
	}
	return err
}

// find returns a live entry or a card of the directory.
func (s *registryServer) find(c echo.Context) (registration, bool, error) {
	ctx := c.Request().Context()
	id := c.Param("id")
	var k registration
	if _, ok := message.ParseName(id); !ok {
		return k, false, nil
	}
	rev, ok, err := store.ReadRecord(ctx, s.records, nsRegistry, id, &k, time.Now())
	k.rev = rev
	if err != nil || ok {
		return k, ok && !k.Gone, err
	}
	e, ok, err := s.cache.card(ctx, id)
	return registration{Entry: e, readOnly: true}, ok, err
}

func (s *registryServer) get(c echo.Context) error {
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
func (s *registryServer) change(c echo.Context, change func(*registration, time.Time), answer func(registration) any) error {
	k, ok, err := s.find(c)
	if err != nil {
		return err
	}
	if !ok {
		return refuse(c, http.StatusNotFound, "Agent not found")
	}
	if !s.noAuth || k.readOnly {
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
			retryAfter(c, time.Hour)
			return refuse(c, http.StatusTooManyRequests, "the registry is full")
		}
		return err
	}
	s.proofs.ask(k.ID)
	return httpapi.JSON(c, http.StatusOK, answer(k))
}

func (s *registryServer) put(c echo.Context) error {
	in, fault := s.readSubmission(c)
	if fault != "" {
		return refuse(c, http.StatusBadRequest, fault)
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
			k.Capabilities = append([]string{}, in.capabilities...)
		}
		k.UpdatedAt = now
	}, func(k registration) any { return registrationAnswer{true, &k.Entry} })
}

func (s *registryServer) remove(c echo.Context) error {
	return s.change(c, func(k *registration, _ time.Time) {
		k.Gone, k.Endpoint, k.Description, k.Capabilities = true, "", "", []string{} // the name stays reserved
	}, func(registration) any { return registrationAnswer{Success: true} })
}

func (s *registryServer) heartbeat(c echo.Context) error {
	return s.change(c, func(k *registration, now time.Time) { k.LastSeenAt = now }, func(k registration) any {
		return struct {
			Success bool      `json:"success"`
			Seen    time.Time `json:"last_seen_at"`
		}{true, k.LastSeenAt}
	})
}
