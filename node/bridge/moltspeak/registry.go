package moltspeak

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/store"
)

const (
	nsRegistry     = "moltspeak/registry"
	maxRegistered  = 10_000
	maxRegistryDoc = 8 << 10
	minBearer      = 16 // MS-54

	registrationsPerHour = 20 // of one address
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
	Bearer   credential.Hash `json:"bearer,omitzero"`   // of the bearer that guards it
	Gone     bool            `json:"gone,omitempty"`    // deleted: the name stays reserved (MS-55)
	Key      time.Time       `json:"key,omitzero"`      // when it signed with the key that is listed
	Answered time.Time       `json:"answered,omitzero"` // when its endpoint did
	Tried    time.Time       `json:"tried,omitzero"`    // when its endpoint was asked last

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

// trust is what the proofs are worth (MS-55).
func trust(key, endpoint bool) float64 {
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
	all, err := b.shelf.all(c.Request().Context())
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
	all, err := b.shelf.all(c.Request().Context())
	if err != nil {
		return err
	}
	limit, offset := number(c, "limit", 50, 1, 100), number(c, "offset", 0, 0, len(all))
	page := []Entry{}
	for _, e := range all[offset:min(offset+limit, len(all))] {
		page = append(page, e.Entry)
	}
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

// asked is what a search asked for, as the answer repeats it.
type asked struct {
	Q          string `json:"q,omitempty"`
	Capability string `json:"capability,omitempty"`
	Org        string `json:"org,omitempty"`
}

// registrySearch takes capability before org before q.
func (b *Bridge) registrySearch(c echo.Context) error {
	query := asked{c.QueryParam("q"), c.QueryParam("capability"), c.QueryParam("org")}
	if query == (asked{}) || len(query.Q)+len(query.Capability)+len(query.Org) > maxText {
		return refuse(c, http.StatusBadRequest, "Provide q, capability, or org parameter")
	}
	all, err := b.shelf.all(c.Request().Context())
	if err != nil {
		return err
	}
	limit, q := number(c, "limit", 20, 1, 50), strings.ToLower(query.Q)
	results := []Entry{}
	for _, e := range all {
		if len(results) == limit {
			break
		}
		hit := false
		switch {
		case query.Capability != "":
			hit = slices.Contains(e.Capabilities, query.Capability)
		case query.Org != "":
			hit = e.Org == query.Org
		default:
			hit = strings.Contains(e.words, q)
		}
		if hit {
			results = append(results, e.Entry)
		}
	}
	return httpapi.JSON(c, http.StatusOK, struct {
		Query   asked   `json:"query"`
		Results []Entry `json:"results"`
		Count   int     `json:"count"`
	}{query, results, len(results)})
}
