package registry

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	checkGap     = 10 * time.Minute // between two checks of the registries
	heartbeatGap = time.Hour        // between two heartbeats
)

// State is the state of our registration in a foreign registry.
type State struct {
	URL        string    `json:"url"`
	Registered time.Time `json:"registered,omitzero"` // when the registry last confirmed the registration; zero: never
	Error      string    `json:"error,omitempty"`     // the error of the last attempt
}

// Registrar keeps our agent registered in the registries of the links. All fields except Token are required.
type Registrar struct {
	Self   Entry // our entry
	Links  func() []bridge.Link
	HTTP   *client.HTTP
	Token  func(base string) client.Credential // returns the token that guards our entry in a registry; may be nil
	Logger *slog.Logger
	// Reachable reports whether a registry at base can call our endpoint. We register only in those.
	Reachable func(base string) bool

	mu     sync.Mutex
	states map[string]State // by base URL
}

// Registries returns the registries of the links, without duplicates.
func (g *Registrar) Registries() []Remote {
	var out []Remote
	for _, l := range g.Links() {
		if r, ok := g.registryOf(l.Name); ok && !slices.ContainsFunc(out, func(o Remote) bool { return o.Base == r.Base }) {
			out = append(out, r)
		}
	}
	return out
}

// registryOf returns the registry of a link.
func (g *Registrar) registryOf(link string) (Remote, bool) {
	links := g.Links()
	i := slices.IndexFunc(links, func(l bridge.Link) bool { return l.Name == link && l.RegistryURL != "" })
	if i < 0 {
		return Remote{}, false
	}
	base := strings.TrimSuffix(strings.TrimRight(links[i].RegistryURL, "/"), "/api/v1")
	r := Remote{Base: base, http: g.HTTP}
	if g.Token != nil {
		r.token = g.Token(base)
	}
	return r, true
}

// Search searches the registry of a link. It serves the owner API.
func (g *Registrar) Search(c echo.Context, _ owner.None) (owner.List[Entry], error) {
	var none owner.List[Entry]
	r, ok := g.registryOf(c.QueryParam("link"))
	if !ok {
		return none, &wire.Error{Code: wire.InvalidMessage, Status: http.StatusNotFound, Message: "no link with this name has a registry_url"}
	}
	query := url.Values{"limit": {"50"}}
	for _, key := range []string{"capability", "org", "q"} {
		if s := c.QueryParam(key); s != "" {
			query.Set(key, s)
		}
	}
	found, err := r.search(c.Request().Context(), query)
	if err != nil {
		return none, &wire.Error{Code: wire.AgentUnavailable, Status: http.StatusBadGateway, Message: "the registry cannot be searched now"}
	}
	return owner.List[Entry]{Items: found}, nil
}

// Run keeps our agent registered until ctx ends.
func (g *Registrar) Run(ctx context.Context) {
	tick := time.Tick(checkGap)
	for {
		for _, r := range g.Registries() {
			if g.Reachable(r.Base) {
				g.renew(ctx, r, time.Now())
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
	}
}

// renew registers our agent in a registry, or sends a heartbeat if the agent is registered already and one is due.
func (g *Registrar) renew(ctx context.Context, r Remote, now time.Time) {
	g.mu.Lock()
	state := g.states[r.Base]
	g.mu.Unlock()
	if now.Sub(state.Registered) < heartbeatGap {
		return
	}
	listed, err := !state.Registered.IsZero(), error(nil)
	if listed {
		listed, err = r.heartbeat(ctx, g.Self.ID)
	}
	if !listed && err == nil {
		err = r.register(ctx, g.Self)
	}
	if ctx.Err() != nil {
		return
	}
	state.URL, state.Error = r.Base, ""
	if err != nil {
		state.Error = err.Error()
		g.Logger.WarnContext(ctx, "moltspeak: registration in a registry failed", "registry", r.Base, "err", err)
	} else {
		state.Registered = now.UTC()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.states == nil {
		g.states = make(map[string]State)
	}
	g.states[r.Base] = state
}

// States returns the state of our registrations.
func (g *Registrar) States() []State {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.SortedFunc(maps.Values(g.states), func(x, y State) int { return strings.Compare(x.URL, y.URL) })
}
