package moltspeak

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

const (
	nsRegistry     = "moltspeak/registry"
	maxRegistered  = 10_000
	maxRegistryDoc = 32 << 10
	minBearer      = 16 // MS-54
)

// Entry is an agent of the registry façade (MS-53).
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

// kept is an entry as it is stored.
type kept struct {
	Entry
	Bearer string `json:"bearer,omitempty"` // hash of the one that guards it
	Gone   bool   `json:"gone,omitempty"`   // deleted: the name stays reserved (MS-55)

	rev      store.Rev
	readOnly bool // a card of the directory
}

type registryFault struct {
	Error    string   `json:"error"`
	Required []string `json:"required,omitempty"`
	AgentID  string   `json:"agent_id,omitempty"`
}

type registered struct {
	Success bool   `json:"success"`
	Agent   *Entry `json:"agent,omitempty"`
}

func refuse(c echo.Context, status int, text string) error {
	return httpapi.JSON(c, status, registryFault{Error: text})
}

// mountRegistry adds the paths that the public registry serves (§9). /api/health is the façade's own.
func (b *Bridge) mountRegistry(e *echo.Echo) {
	g := e.Group("/api")
	if b.cfg.Addresses != nil {
		g.Use(b.cfg.Addresses.Guard)
	}
	g.GET("/health", func(c echo.Context) error {
		return httpapi.JSON(c, http.StatusOK, struct {
			Status    string    `json:"status"`
			Timestamp time.Time `json:"timestamp"`
		}{"ok", time.Now().UTC()})
	})
	g.GET("/v1/stats", b.registryStats)
	g.GET("/v1/agents", b.registryList)
	g.POST("/v1/agents", b.registryAdd)
	g.GET("/v1/agents/:id", b.registryGet)
	g.PUT("/v1/agents/:id", b.registryPut)
	g.DELETE("/v1/agents/:id", b.registryDelete)
	g.POST("/v1/agents/:id/heartbeat", b.registryHeartbeat)
	g.GET("/v1/search", b.registrySearch)
}

func (b *Bridge) registryStats(c echo.Context) error {
	all, err := b.registryAll(c.Request().Context())
	if err != nil {
		return err
	}
	orgs := make(map[string]bool)
	for _, e := range all {
		orgs[e.Org] = true
	}
	return httpapi.JSON(c, http.StatusOK, struct {
		Agents  int    `json:"total_agents"`
		Orgs    int    `json:"total_orgs"`
		Version string `json:"version"`
	}{len(all), len(orgs), Version})
}

// number reads a query parameter within bounds; what is no number is the standard.
func number(c echo.Context, name string, standard, low, high int) int {
	n, err := strconv.Atoi(c.QueryParam(name))
	if err != nil {
		n = standard
	}
	return min(max(n, low), high)
}

func (b *Bridge) registryList(c echo.Context) error {
	all, err := b.registryAll(c.Request().Context())
	if err != nil {
		return err
	}
	limit, offset := number(c, "limit", 50, 1, 100), number(c, "offset", 0, 0, maxRegistered*2)
	page := all[min(offset, len(all)):min(offset+limit, len(all))]
	type pagination struct {
		Total  int  `json:"total"`
		Limit  int  `json:"limit"`
		Offset int  `json:"offset"`
		More   bool `json:"has_more"`
	}
	return httpapi.JSON(c, http.StatusOK, struct {
		Agents     []Entry    `json:"agents"`
		Pagination pagination `json:"pagination"`
	}{page, pagination{len(all), limit, offset, offset+limit < len(all)}})
}

// registryAll lists live entries and the directory's cards that speak MoltSpeak, the most trusted first.
func (b *Bridge) registryAll(ctx context.Context) ([]Entry, error) {
	out, taken := []Entry{}, make(map[string]bool)
	for after := ""; ; {
		page, err := b.records.List(ctx, nsRegistry, "", after, 500, time.Now())
		if err != nil {
			return nil, err
		}
		for _, rec := range page.Records {
			var k kept
			if err := json.Unmarshal(rec.Body, &k); err != nil {
				return nil, err
			}
			taken[k.ID] = true
			if !k.Gone {
				out = append(out, k.Entry)
			}
		}
		if after = page.Next; after == "" {
			break
		}
	}
	for _, e := range b.listedCards(ctx) {
		if !taken[e.ID] {
			out = append(out, e)
		}
	}
	slices.SortStableFunc(out, func(x, y Entry) int {
		return cmp.Or(cmp.Compare(y.TrustScore, x.TrustScore), strings.Compare(x.ID, y.ID))
	})
	return out, nil
}

// listedCards are the cards of the directory with metadata.moltspeak, in the façade's shape. A directory that cannot
// be asked has none.
func (b *Bridge) listedCards(ctx context.Context) []Entry {
	var out []Entry
	if b.cfg.Directory == nil {
		return out
	}
	for cursor, pages := "", 0; pages < 20; pages++ {
		page, err := b.cfg.Directory.Search(ctx, client.Query{Limit: 100, Cursor: cursor})
		if err != nil {
			return out
		}
		for _, card := range page.Agents {
			if e, ok := cardEntry(card, page.Verification[wire.AgentID(card.GetStr("agent_id"))]); ok {
				out = append(out, e)
			}
		}
		if cursor = page.Cursor; cursor == "" {
			break
		}
	}
	return out
}

// cardEntry is a card with metadata.moltspeak as an entry.
func cardEntry(card wire.Value, v wire.Verification) (Entry, bool) {
	meta, _ := card.Get("metadata")
	name, ok := ParseName(meta.GetStr("moltspeak_agent"))
	if !ok || meta.GetStr("moltspeak") == "" {
		return Entry{}, false
	}
	e := Entry{
		ID: name.Name(), AgentName: name.Agent, Org: name.Org, PublicKey: meta.GetStr("moltspeak_key"), Endpoint: meta.GetStr("moltspeak"),
		Description: card.GetStr("description"), Capabilities: []string{}, Status: "active", TrustScore: 0.5,
	}
	caps, _ := card.Get("capabilities")
	for c := range caps.Elems() {
		if s, ok := c.Str(); ok {
			e.Capabilities = append(e.Capabilities, s)
		}
	}
	switch {
	case v.Key != nil && v.Endpoint != nil:
		e.TrustScore = 0.9
	case v.Endpoint != nil:
		e.TrustScore = 0.8
	case v.Key != nil:
		e.TrustScore = 0.7
	}
	if t, ok := wire.ParseTime(card.GetStr("registered_at")); ok {
		e.CreatedAt, e.UpdatedAt, e.LastSeenAt = t, t, t
	}
	return e, true
}

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

// registrySearch takes capability before org before q.
func (b *Bridge) registrySearch(c echo.Context) error {
	capability, org, q := c.QueryParam("capability"), c.QueryParam("org"), strings.ToLower(c.QueryParam("q"))
	query := cmp.Or(capability, org, c.QueryParam("q"))
	if query == "" || len(query) > maxText {
		return refuse(c, http.StatusBadRequest, "Provide one of q, capability, or org")
	}
	all, err := b.registryAll(c.Request().Context())
	if err != nil {
		return err
	}
	limit := number(c, "limit", 20, 1, 50)
	results := []Entry{}
	for _, e := range all {
		hit := false
		switch {
		case capability != "":
			hit = slices.Contains(e.Capabilities, capability)
		case org != "":
			hit = e.Org == org
		default:
			hit = strings.Contains(strings.ToLower(strings.Join(append([]string{e.AgentName, e.Org, e.Description}, e.Capabilities...), "\n")), q)
		}
		if hit && len(results) < limit {
			results = append(results, e)
		}
	}
	return httpapi.JSON(c, http.StatusOK, struct {
		Query   string  `json:"query"`
		Results []Entry `json:"results"`
		Count   int     `json:"count"`
	}{query, results, len(results)})
}
