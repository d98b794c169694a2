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
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// submission is the body of POST and PUT.
type submission struct {
	name, org, key, endpoint, description string
	capabilities                          []string
	given                                 map[string]bool
}

// readSubmission reads a body. The text is why it is refused, "" where it is not.
func (b *Bridge) readSubmission(c echo.Context) (s submission, why string) {
	raw, err := httpapi.Body(c, maxRegistryDoc)
	v, bad := wire.ParseObject(raw)
	if err != nil || bad != nil {
		return s, "Invalid JSON body"
	}
	s = submission{name: v.GetStr("agent_name"), org: v.GetStr("org"), key: v.GetStr("public_key"), endpoint: v.GetStr("endpoint"), description: v.GetStr("description"), given: map[string]bool{}}
	for _, key := range []string{"endpoint", "description", "capabilities"} {
		m, ok := v.Get(key)
		s.given[key] = ok && !m.IsNull()
	}
	list, _ := v.Get("capabilities")
	for e := range list.Elems() {
		if text, ok := e.Str(); ok && len(text) <= maxText && len(s.capabilities) < maxList {
			s.capabilities = append(s.capabilities, text)
		}
	}
	u, err := url.Parse(s.endpoint)
	switch {
	case s.endpoint != "" && (err != nil || u.Scheme != "https" && !(b.cfg.Local && u.Scheme == "http") || u.Host == "" || u.User != nil || len(s.endpoint) > 2048):
		return s, "endpoint must be an https URL"
	case len(s.description) > 4096:
		return s, "description is too long"
	}
	return s, ""
}

// bearer returns the hash of the caller's bearer, the zero hash if it has none that is long enough.
func bearer(c echo.Context) credential.Hash {
	text, ok := strings.CutPrefix(c.Request().Header.Get("Authorization"), "Bearer ")
	if !ok || len(text) < minBearer {
		return credential.Hash{}
	}
	return credential.HashOf(text)
}

func (b *Bridge) registryAdd(c echo.Context) error {
	s, why := b.readSubmission(c)
	if why != "" {
		return refuse(c, http.StatusBadRequest, why)
	}
	if s.name == "" || s.org == "" || s.key == "" {
		return httpapi.JSON(c, http.StatusBadRequest, registryFault{Error: "Missing required fields", Required: []string{"agent_name", "org", "public_key"}})
	}
	a, ok := ParseName(s.name + "@" + s.org)
	if !ok {
		return refuse(c, http.StatusBadRequest, "agent_name and org must be 1 to 128 of A-Z a-z 0-9 _ -")
	}
	owner := bearer(c)
	if !b.cfg.NoAuth {
		if _, ok := parseKey(s.key); !ok {
			return refuse(c, http.StatusBadRequest, "public_key must be ed25519: and a key in base64")
		}
		if owner == (credential.Hash{}) {
			return refuse(c, http.StatusUnauthorized, "a bearer token of at least 16 characters is required; it guards the entry from then on")
		}
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	k := kept{Entry: Entry{
		ID: a.Name(), AgentName: s.name, Org: s.org, PublicKey: s.key, Endpoint: s.endpoint, Description: s.description,
		Capabilities: append([]string{}, s.capabilities...), TrustScore: 0.5, Status: "active", CreatedAt: now, UpdatedAt: now, LastSeenAt: now,
	}, Bearer: owner}
	from := httpapi.ClientAddr(c)
	if wait, _ := b.registrations.Take(from, now); wait > 0 {
		retryAfter(c, wait)
		return refuse(c, http.StatusTooManyRequests, "Too many registrations")
	}
	_, taken, err := b.shelf.card(c.Request().Context(), k.ID)
	if err == nil && taken {
		err = store.ErrConflict
	}
	if err == nil {
		err = b.keep(c.Request().Context(), k, now)
	}
	if err != nil {
		b.registrations.Return(from, now)
	}
	switch {
	case errors.Is(err, store.ErrConflict): // also a deleted one: names stay reserved
		return httpapi.JSON(c, http.StatusConflict, registryFault{Error: "Agent already registered", AgentID: k.ID})
	case errors.Is(err, store.ErrQuota):
		retryAfter(c, time.Hour)
		return refuse(c, http.StatusTooManyRequests, "the registry is full")
	case err != nil:
		return err
	}
	b.proofs.ask(k.ID)
	return httpapi.JSON(c, http.StatusCreated, registered{true, &k.Entry})
}

// How long a name is taken after its agent was last seen: a proven one and a deleted one longer (MS-55).
const (
	keepClaimed = 30 * 24 * time.Hour
	keepProven  = 365 * 24 * time.Hour
)

func (k kept) until() time.Time {
	if k.Gone || k.TrustScore > trust(false, false) {
		return k.LastSeenAt.Add(keepProven)
	}
	return k.LastSeenAt.Add(keepClaimed)
}

// keep stores an entry and follows with what is listed.
func (b *Bridge) keep(ctx context.Context, k kept, now time.Time) error {
	if err := b.shelf.fresh(ctx); err != nil { // what there is decides whether there is room
		return err
	}
	b.shelf.writing.Lock() // what is listed changes in the order of the store
	defer b.shelf.writing.Unlock()
	k.TrustScore = trust(!k.Key.IsZero(), !k.Answered.IsZero())
	if err := b.shelf.room(k, now); err != nil {
		return err
	}
	err := b.records.Apply(ctx, []store.Change{{IfRev: k.rev, Max: maxRegistered, Record: store.Record{
		NS: nsRegistry, Key: k.ID, Body: encode(k), Terms: []string{"agent"}, Expires: k.until(),
	}}}, now)
	if err == nil {
		b.shelf.put(k)
	}
	return err
}

// registryFind returns a live entry, or a card of the directory.
func (b *Bridge) registryFind(c echo.Context) (kept, bool, error) {
	ctx := c.Request().Context()
	id := c.Param("id")
	var k kept
	if _, ok := ParseName(id); !ok {
		return k, false, nil
	}
	rev, ok, err := b.read(ctx, nsRegistry, id, &k, time.Now())
	k.rev = rev
	if err != nil || ok {
		return k, ok && !k.Gone, err
	}
	e, ok, err := b.shelf.card(ctx, id)
	return kept{Entry: e, readOnly: true}, ok, err
}

func (b *Bridge) registryGet(c echo.Context) error {
	k, ok, err := b.registryFind(c)
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

// registryChange lets the owner of an entry change it.
func (b *Bridge) registryChange(c echo.Context, change func(*kept, time.Time), answer func(kept) any) error {
	k, ok, err := b.registryFind(c)
	if err != nil {
		return err
	}
	if !ok {
		return refuse(c, http.StatusNotFound, "Agent not found")
	}
	if !b.cfg.NoAuth || k.readOnly {
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
	now := time.Now().UTC().Truncate(time.Millisecond)
	change(&k, now)
	if err := b.keep(c.Request().Context(), k, now); err != nil {
		if errors.Is(err, store.ErrConflict) {
			return refuse(c, http.StatusConflict, "the entry was changed meanwhile")
		}
		if errors.Is(err, store.ErrQuota) {
			retryAfter(c, time.Hour)
			return refuse(c, http.StatusTooManyRequests, "the registry is full")
		}
		return err
	}
	b.proofs.ask(k.ID)
	return httpapi.JSON(c, http.StatusOK, answer(k))
}

func (b *Bridge) registryPut(c echo.Context) error {
	s, why := b.readSubmission(c)
	if why != "" {
		return refuse(c, http.StatusBadRequest, why)
	}
	return b.registryChange(c, func(k *kept, now time.Time) {
		if s.given["endpoint"] && s.endpoint != k.Endpoint {
			k.Endpoint, k.Answered, k.Tried = s.endpoint, time.Time{}, time.Time{}
			k.TrustScore = trust(!k.Key.IsZero(), false)
		}
		if s.given["description"] {
			k.Description = s.description
		}
		if s.given["capabilities"] {
			k.Capabilities = append([]string{}, s.capabilities...)
		}
		k.UpdatedAt = now
	}, func(k kept) any { return registered{true, &k.Entry} })
}

func (b *Bridge) registryDelete(c echo.Context) error {
	return b.registryChange(c, func(k *kept, _ time.Time) {
		k.Gone, k.Endpoint, k.Description, k.Capabilities = true, "", "", []string{} // the name stays reserved
	}, func(kept) any { return registered{Success: true} })
}

func (b *Bridge) registryHeartbeat(c echo.Context) error {
	return b.registryChange(c, func(k *kept, now time.Time) { k.LastSeenAt = now }, func(k kept) any {
		return struct {
			Success bool      `json:"success"`
			Seen    time.Time `json:"last_seen_at"`
		}{true, k.LastSeenAt}
	})
}
