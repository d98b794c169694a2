package moltspeak

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
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
	g := e.Group("/api", b.guard(func(c echo.Context, e *Error) error {
		retryAfter(c, e.Delay)
		return refuse(c, e.Status, "Too many requests")
	}))
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
	for _, t := range []*time.Time{v.Key, v.Endpoint, v.Alive} { // what is known of the card's times: a card itself names none
		if t != nil && t.After(e.LastSeenAt) {
			e.UpdatedAt, e.LastSeenAt = t.UTC(), t.UTC()
		}
		if t != nil && (e.CreatedAt.IsZero() || t.Before(e.CreatedAt)) {
			e.CreatedAt = t.UTC()
		}
	}
	return e, true
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
