package registry

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	ns                   = "moltspeak/registry" // the namespace of the registrations, by agent@org
	registrationsPerHour = 20                   // from one address
	maxDocument          = 8 << 10              // bytes of a submission
	minBearer            = 16                   // bytes of a bearer token (MS-54)
	maxCapability        = 512                  // bytes: a card permits 128 characters
)

type fault struct {
	Error    string   `json:"error"`
	Required []string `json:"required,omitempty"`
	AgentID  string   `json:"agent_id,omitempty"`
}

type registrationAnswer struct {
	Success bool   `json:"success"`
	Agent   *Entry `json:"agent,omitempty"`
}

func refuse(c echo.Context, status int, text string) error {
	return httpapi.JSON(c, status, fault{Error: text})
}

// refuseFor refuses a request that may be repeated after wait.
func refuseFor(c echo.Context, wait time.Duration, text string) error {
	c.Response().Header().Set("Retry-After", strconv.FormatInt(wire.CeilSeconds(wait), 10))
	return refuse(c, http.StatusTooManyRequests, text)
}

// Directory is a directory of agent cards.
type Directory interface {
	Search(ctx context.Context, q client.Query) (wire.Listing, error)
}

// Config is the configuration of a [Server]. Records and Logger are required.
type Config struct {
	Records   store.Records
	Directory Directory // its cards with metadata.moltspeak are listed too; nil for none
	Addresses *httpapi.Addresses
	NoAuth    bool // accept any key from anybody, for development (MS-54)
	Local     bool // the local profile: registrations are not limited, and endpoints may be http
	Logger    *slog.Logger
}

// Server serves a registry: cards of a directory, which stay as they are, and agents that register.
type Server struct {
	cfg      Config
	accounts *credential.Registry[registration, *registration]

	reading sync.Mutex // held while the cards are read
	mu      sync.Mutex
	cards   []*Entry
	readAt  time.Time // when the cards were read
}

// NewServer returns a registry with the stored registrations.
func NewServer(ctx context.Context, cfg Config) (*Server, error) {
	s := &Server{cfg: cfg}
	perHour := registrationsPerHour
	if cfg.Local {
		perHour = 0
	}
	s.accounts = credential.NewRegistry[registration](credential.Config[*registration]{
		Records: cfg.Records, NS: ns, Mode: credential.Open, PerHour: perHour, Reserve: keepProven, Expires: until, Index: index,
	})
	return s, s.accounts.Load(ctx)
}

// Reload reads the registrations again, because another instance may have served the registry.
func (s *Server) Reload(ctx context.Context) { s.accounts.Reload(ctx, s.cfg.Logger) }

// ProveKey records that a registered agent signed a message with its registered key (MS-55).
func (s *Server) ProveKey(ctx context.Context, name, key string, now time.Time) {
	reg := s.accounts.Get(name)
	if reg == nil || reg.PublicKey != key || !reg.KeyUsed.IsZero() {
		return
	}
	err := s.accounts.Edit(ctx, name, func(reg *registration) error { reg.KeyUsed = now.UTC(); return nil })
	if err != nil {
		s.cfg.Logger.WarnContext(ctx, "moltspeak: cannot store the proof of a key", "agent", name, "err", err)
	}
}

// Mount adds the routes, which are those of the public MoltSpeak registry.
func (s *Server) Mount(e *echo.Echo) {
	g := e.Group("/api", s.guard)
	g.GET("/health", func(c echo.Context) error {
		return httpapi.JSON(c, http.StatusOK, struct {
			Status    string    `json:"status"`
			Timestamp time.Time `json:"timestamp"`
		}{"ok", time.Now().UTC()})
	})
	g.GET("/v1/stats", s.stats)
	g.GET("/v1/agents", s.getPage)
	g.POST("/v1/agents", s.add)
	g.GET("/v1/agents/:id", s.get)
	g.PUT("/v1/agents/:id", s.put)
	g.DELETE("/v1/agents/:id", s.remove)
	g.POST("/v1/agents/:id/heartbeat", s.heartbeat)
	g.GET("/v1/search", s.search)
}

// guard charges every request to the caller's address.
func (s *Server) guard(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if wait, ok := s.cfg.Addresses.Allow(httpapi.ClientAddr(c)); !ok {
			return refuseFor(c, wait, "Too many requests")
		}
		return next(c)
	}
}

func (s *Server) stats(c echo.Context) error {
	all := s.list(c.Request().Context())
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

func (s *Server) getPage(c echo.Context) error {
	all := s.list(c.Request().Context())
	limit, offset := intParam(c, "limit", 50, 1, 100), intParam(c, "offset", 0, 0, len(all))
	page := []Entry{}
	for _, e := range all[offset:min(offset+limit, len(all))] {
		page = append(page, *e)
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
func (s *Server) search(c echo.Context) error {
	query := searchQuery{c.QueryParam("q"), c.QueryParam("capability"), c.QueryParam("org")}
	if query == (searchQuery{}) || len(query.Q)+len(query.Capability)+len(query.Org) > message.MaxText {
		return refuse(c, http.StatusBadRequest, "Provide q, capability, or org parameter")
	}
	all := s.list(c.Request().Context())
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
			hit = strings.Contains(e.words, q)
		}
		if hit {
			results = append(results, *e)
		}
	}
	return httpapi.JSON(c, http.StatusOK, struct {
		Query   searchQuery `json:"query"`
		Results []Entry     `json:"results"`
		Count   int         `json:"count"`
	}{query, results, len(results)})
}
