package moltspeak

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// submission is the body of POST and PUT.
type submission struct {
	name, org, key, endpoint, description string
	capabilities                          []string
	given                                 map[string]bool
}

// readSubmission reads a body. The text is why it is refused, "" where it is not.
func readSubmission(c echo.Context) (s submission, why string) {
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
	case s.endpoint != "" && (err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || len(s.endpoint) > 2048):
		return s, "endpoint must be an https URL"
	case len(s.description) > 4096:
		return s, "description is too long"
	}
	return s, ""
}

// bearer returns the hash of the caller's bearer, "" where it has none that is long enough.
func bearer(c echo.Context) string {
	text, ok := strings.CutPrefix(c.Request().Header.Get("Authorization"), "Bearer ")
	if !ok || len(text) < minBearer {
		return ""
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func (b *Bridge) registryAdd(c echo.Context) error {
	s, why := readSubmission(c)
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
		raw, prefixed := strings.CutPrefix(s.key, sigPrefix)
		if _, err := signing.ParseEd25519(raw); err != nil || !prefixed {
			return refuse(c, http.StatusBadRequest, "public_key must be ed25519: and a key in base64")
		}
		if owner == "" {
			return refuse(c, http.StatusUnauthorized, "a bearer token of at least 16 characters is required; it guards the entry from then on")
		}
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	k := kept{Entry: Entry{
		ID: a.Name(), AgentName: s.name, Org: s.org, PublicKey: s.key, Endpoint: s.endpoint, Description: s.description,
		Capabilities: append([]string{}, s.capabilities...), TrustScore: 0.5, Status: "active", CreatedAt: now, UpdatedAt: now, LastSeenAt: now,
	}, Bearer: owner}
	for _, e := range b.listedCards(c.Request().Context()) {
		if e.ID == k.ID {
			return httpapi.JSON(c, http.StatusConflict, registryFault{Error: "Agent already registered", AgentID: k.ID})
		}
	}
	switch err := b.keep(c.Request().Context(), k, now); {
	case errors.Is(err, store.ErrConflict): // also a deleted one: names stay reserved
		return httpapi.JSON(c, http.StatusConflict, registryFault{Error: "Agent already registered", AgentID: k.ID})
	case errors.Is(err, store.ErrQuota):
		return refuse(c, http.StatusTooManyRequests, "the registry is full")
	case err != nil:
		return err
	}
	return httpapi.JSON(c, http.StatusCreated, registered{true, &k.Entry})
}

func (b *Bridge) keep(ctx context.Context, k kept, now time.Time) error {
	return b.records.Apply(ctx, []store.Change{{IfRev: k.rev, Max: maxRegistered, Record: store.Record{
		NS: nsRegistry, Key: k.ID, Body: encode(k), Terms: []string{"agent"},
	}}}, now)
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
	for _, e := range b.listedCards(ctx) {
		if e.ID == id {
			return kept{Entry: e, readOnly: true}, true, nil
		}
	}
	return k, false, nil
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
		case given == "":
			return refuse(c, http.StatusUnauthorized, "a bearer token is required")
		case subtle.ConstantTimeCompare([]byte(given), []byte(k.Bearer)) != 1:
			return refuse(c, http.StatusForbidden, "the bearer token does not own this entry")
		}
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	change(&k, now)
	if err := b.keep(c.Request().Context(), k, now); err != nil {
		if errors.Is(err, store.ErrConflict) {
			return refuse(c, http.StatusConflict, "the entry was changed meanwhile")
		}
		return err
	}
	return httpapi.JSON(c, http.StatusOK, answer(k))
}

func (b *Bridge) registryPut(c echo.Context) error {
	s, why := readSubmission(c)
	if why != "" {
		return refuse(c, http.StatusBadRequest, why)
	}
	return b.registryChange(c, func(k *kept, now time.Time) {
		if s.given["endpoint"] {
			k.Endpoint = s.endpoint
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
	return b.registryChange(c, func(k *kept, _ time.Time) { k.Gone = true }, func(kept) any { return registered{Success: true} })
}

func (b *Bridge) registryHeartbeat(c echo.Context) error {
	return b.registryChange(c, func(k *kept, now time.Time) { k.LastSeenAt = now }, func(k kept) any {
		return struct {
			Success bool      `json:"success"`
			Seen    time.Time `json:"last_seen_at"`
		}{true, k.LastSeenAt}
	})
}
