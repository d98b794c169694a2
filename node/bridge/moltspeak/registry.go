package moltspeak

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/quota"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/store"
)

const (
	nsRegistry     = "moltspeak/registry"
	maxRegistered  = 10_000
	maxRegistryDoc = 8 << 10
	minBearer      = 16 // MS-54

	registrationsPerHour = 20 // registrations from one address
)

// Entry is an agent in the registry façade (MS-53).
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

type registryFault struct {
	Error    string   `json:"error"`
	Required []string `json:"required,omitempty"`
	AgentID  string   `json:"agent_id,omitempty"`
}

type registrationAnswer struct {
	Success bool   `json:"success"`
	Agent   *Entry `json:"agent,omitempty"`
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

func refuse(c echo.Context, status int, text string) error {
	return httpapi.JSON(c, status, registryFault{Error: text})
}

// registryServer serves the registry façade: registered entries, and cards of a directory.
type registryServer struct {
	records       store.Records
	cache         *registryCache
	proofs        *proofs
	registrations *rate.Registrations // nil in the local profile
	noAuth, local bool
	log           *slog.Logger
	// challenge makes the endpoint of an entry prove the key of the entry.
	challenge func(ctx context.Context, e Entry, now time.Time) error
}

// newRegistryServer returns a registry that proves endpoints with challenge.
func newRegistryServer(cfg Config, challenge func(context.Context, Entry, time.Time) error) *registryServer {
	var cards Directory
	if len(cfg.Directories) > 0 {
		cards = cfg.Directories[0]
	}
	s := &registryServer{
		records: cfg.Store.Records(), cache: newRegistryCache(cfg.Store.Records(), cards), proofs: &proofs{queue: make(chan string, 256)},
		noAuth: cfg.NoAuth, local: cfg.Local, log: cfg.Logger, challenge: challenge,
	}
	if !cfg.Local {
		s.registrations = quota.NewRegistrations(registrationsPerHour, maxRegistered, keepClaimed)
	}
	return s
}

// mount adds the routes of the public registry (§9).
func (s *registryServer) mount(e *echo.Echo, addresses *httpapi.Addresses) {
	g := e.Group("/api", guard(addresses, func(c echo.Context, e *message.Error) error {
		retryAfter(c, e.Delay)
		return refuse(c, e.Status, "Too many requests")
	}))
	g.GET("/health", func(c echo.Context) error {
		return httpapi.JSON(c, http.StatusOK, struct {
			Status    string    `json:"status"`
			Timestamp time.Time `json:"timestamp"`
		}{"ok", time.Now().UTC()})
	})
	g.GET("/v1/stats", s.stats)
	g.GET("/v1/agents", s.list)
	g.POST("/v1/agents", s.add)
	g.GET("/v1/agents/:id", s.get)
	g.PUT("/v1/agents/:id", s.put)
	g.DELETE("/v1/agents/:id", s.remove)
	g.POST("/v1/agents/:id/heartbeat", s.heartbeat)
	g.GET("/v1/search", s.search)
}

func (s *registryServer) stats(c echo.Context) error {
	all, err := s.cache.list(c.Request().Context())
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
	}{len(all), len(orgs), message.Version})
}

// intParam reads a number from the query and limits it to low and high. If the number is missing or invalid, it uses
// fallback.
func intParam(c echo.Context, name string, fallback, low, high int) int {
	n, err := strconv.Atoi(c.QueryParam(name))
	if err != nil {
		n = fallback
	}
	return min(max(n, low), high)
}

func (s *registryServer) list(c echo.Context) error {
	all, err := s.cache.list(c.Request().Context())
	if err != nil {
		return err
	}
	limit, offset := intParam(c, "limit", 50, 1, 100), intParam(c, "offset", 0, 0, len(all))
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

// searchQuery is the query of a search. The answer repeats it.
type searchQuery struct {
	Q          string `json:"q,omitempty"`
	Capability string `json:"capability,omitempty"`
	Org        string `json:"org,omitempty"`
}

// search filters by only one parameter of the query: capability, or else org, or else q.
func (s *registryServer) search(c echo.Context) error {
	query := searchQuery{c.QueryParam("q"), c.QueryParam("capability"), c.QueryParam("org")}
	if query == (searchQuery{}) || len(query.Q)+len(query.Capability)+len(query.Org) > message.MaxText {
		return refuse(c, http.StatusBadRequest, "Provide q, capability, or org parameter")
	}
	all, err := s.cache.list(c.Request().Context())
	if err != nil {
		return err
	}
	limit, q := intParam(c, "limit", 20, 1, 50), strings.ToLower(query.Q)
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
			hit = strings.Contains(e.text, q)
		}
		if hit {
			results = append(results, e.Entry)
		}
	}
	return httpapi.JSON(c, http.StatusOK, struct {
		Query   searchQuery `json:"query"`
		Results []Entry     `json:"results"`
		Count   int         `json:"count"`
	}{query, results, len(results)})
}
