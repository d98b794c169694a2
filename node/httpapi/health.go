package httpapi

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/wire"
)

// health builds the health document of all parts of this process.
type health struct {
	version string

	mu        sync.Mutex
	parts     []part
	wellKnown func() wire.WellKnown
	exchange  string
}

// part is something in the process that can fail by itself, such as the store or a bridge.
type part struct {
	name  string
	probe func(context.Context) (any, error)
}

type healthDocument struct {
	Status   string `json:"status"`            // "ok" or "degraded"
	Service  string `json:"service,omitempty"` // set if Exchange is; MESS clients look for both (MESS section 10)
	Version  string `json:"version,omitempty"`
	Exchange string `json:"exchange_id,omitempty"`

	Parts map[string]any `json:"parts,omitempty"`
}

type partStatus struct {
	Status string `json:"status"`
}

const (
	probeTimeout = 2 * time.Second
	cacheBriefly = "public, max-age=300" // Cache-Control of documents that seldom change
)

// Health sets a part of /health and /readyz. Strangers see the result of probe, but not its error. A nil probe removes
// the part.
func (s *Server) Health(name string, probe func(context.Context) (any, error)) {
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	parts := slices.DeleteFunc(slices.Clone(s.health.parts), func(p part) bool { return p.name == name })
	if probe != nil {
		parts = append(parts, part{name, probe})
	}
	s.health.parts = parts
}

// Exchange sets the id of this process's MESS exchange, which /health shows. Empty: none.
func (s *Server) Exchange(id string) {
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	s.health.exchange = id
}

// WellKnown sets the document of /.well-known/agentmesh.json (AM-81). Without it the route answers 404.
func (s *Server) WellKnown(doc func() wire.WellKnown) {
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	s.health.wellKnown = doc
}

func (h *health) mount(e *echo.Echo, clients *clients) {
	// A process that answers is alive. So if a part fails, /health still answers 200, but /readyz does not.
	e.Match([]string{http.MethodGet, http.MethodHead}, "/health", func(c echo.Context) error {
		clients.recordProbe(c)
		doc, _ := h.document(c.Request().Context())
		Private(c)
		return JSON(c, http.StatusOK, doc)
	})
	e.Match([]string{http.MethodGet, http.MethodHead}, "/readyz", func(c echo.Context) error {
		doc, err := h.document(c.Request().Context())
		if err != nil {
			return wire.ErrUnavailable.Because(err)
		}
		Private(c)
		return JSON(c, http.StatusOK, doc)
	})
	e.Match([]string{http.MethodGet, http.MethodHead}, "/.well-known/agentmesh.json", func(c echo.Context) error {
		h.mu.Lock()
		doc := h.wellKnown
		h.mu.Unlock()
		if doc == nil {
			return wire.ErrRoute
		}
		c.Response().Header().Set("Cache-Control", cacheBriefly)
		return JSON(c, http.StatusOK, doc())
	}, AnyOrigin)
}

// ProcessStatus is the part of the owner's status that is about the process, not about its node.
type ProcessStatus struct {
	Roles   []string `json:"roles"`
	Profile string   `json:"profile"` // "local" or "public"
	URL     string   `json:"url"`     // where others reach the process
	// Parts is the state of every part of the process, by name, as /health shows it.
	Parts map[string]any `json:"parts"`
	// Clients is nil in the local profile.
	Clients *ClientStatus `json:"clients,omitempty"`
	// Database describes a database that several processes may share; nil for a database file.
	Database *DatabaseStatus `json:"database,omitempty"`
}

// DatabaseStatus names the processes that use one database, and its standbys.
type DatabaseStatus struct {
	Engine    string        `json:"engine"`
	Self      string        `json:"self"`      // the name of this process
	Instances []string      `json:"instances"` // the names of the connected processes
	Leases    []LeaseStatus `json:"leases"`
	Standbys  []string      `json:"standbys"`        // a description of each connected standby
	Error     string        `json:"error,omitempty"` // why the other fields are missing
}

// LeaseStatus names the process that holds a lease. Only that process does the work for which the lease exists.
type LeaseStatus struct {
	Name   string    `json:"name"`
	Holder string    `json:"holder"`
	Until  time.Time `json:"until"` // unless it is renewed
}

// Parts returns the state of every part, as /health shows it.
func (s *Server) Parts(ctx context.Context) map[string]any {
	doc, _ := s.health.document(ctx)
	return doc.Parts
}

// document probes every part. It returns the error of the first part that fails.
func (h *health) document(ctx context.Context) (healthDocument, error) {
	h.mu.Lock()
	parts, exchange := h.parts, h.exchange
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	doc := healthDocument{Status: "ok", Version: h.version, Exchange: exchange, Parts: make(map[string]any, len(parts))}
	if exchange != "" {
		doc.Service = "agentmesh"
	}
	var firstErr error
	for _, p := range parts {
		shown, err := p.probe(ctx)
		switch {
		case err != nil:
			doc.Status = "degraded"
			doc.Parts[p.name] = partStatus{"unavailable"}
			firstErr = cmp.Or(firstErr, err)
		case shown == nil:
			doc.Parts[p.name] = partStatus{"ok"}
		default:
			doc.Parts[p.name] = shown
		}
	}
	return doc, firstErr
}
