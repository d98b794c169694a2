package moltspeak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	registryTime  = 10 * time.Second
	registryBody  = 1 << 20
	registryRound = 10 * time.Minute // between two checks of the registries
	heartbeatGap  = time.Hour        // between two heartbeats
)

// RegistryState is the state of our registration in a foreign registry.
type RegistryState struct {
	URL        string    `json:"url"`
	Registered time.Time `json:"registered,omitzero"` // when the registry last confirmed it; zero: never
	Error      string    `json:"error,omitempty"`     // the error of the last attempt
}

// remoteRegistry is a foreign registry that a link names (MS-56). Its answers are untrusted.
type remoteRegistry struct {
	base  string
	token client.Credential // guards our entry there
	http  *client.HTTP
}

// call makes a request below /api/v1 and parses the JSON object in the answer.
func (r remoteRegistry) call(ctx context.Context, method, path string, body []byte) (int, wire.Value, error) {
	ctx, cancel := context.WithTimeout(ctx, registryTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, r.base+"/api/v1"+path, bytes.NewReader(body))
	if err != nil {
		return 0, wire.Value{}, err
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if method != http.MethodGet && r.token != "" {
		req.Header.Set("Authorization", "Bearer "+string(r.token))
	}
	resp, err := r.http.Do(ctx, client.Owner, req)
	if err != nil {
		return 0, wire.Value{}, fmt.Errorf("the registry does not answer: %w", err)
	}
	raw, err := client.ReadAll(resp, registryBody)
	if err != nil {
		return 0, wire.Value{}, fmt.Errorf("the answer of the registry: %w", err)
	}
	v, err := wire.ParseForeign(raw, 20, message.MaxValues)
	if err != nil || v.Kind() != wire.Object {
		return 0, wire.Value{}, errors.New("the answer of the registry is not a JSON object")
	}
	return resp.StatusCode, v, nil
}

// key returns the key that the registry lists for a name, or "" if the name is not listed.
func (r remoteRegistry) key(ctx context.Context, name string) (string, error) {
	status, v, err := r.call(ctx, http.MethodGet, "/agents/"+url.PathEscape(name), nil)
	switch {
	case err != nil:
		return "", err
	case status == http.StatusNotFound:
		return "", nil
	case status != http.StatusOK:
		return "", fmt.Errorf("the registry answered %d", status)
	}
	agent, _ := v.Get("agent")
	if agent.GetStr("id") != name {
		return "", errors.New("the registry answered with another agent")
	}
	return agent.GetStr("public_key"), nil
}

// register creates or updates our entry.
func (r remoteRegistry) register(ctx context.Context, e Entry) error {
	body := wire.Obj(wire.TextField("agent_name", e.AgentName), wire.TextField("org", e.Org), wire.TextField("public_key", e.PublicKey),
		wire.TextField("endpoint", e.Endpoint), wire.Field("capabilities", wire.Texts(e.Capabilities)))
	status, _, err := r.call(ctx, http.MethodPost, "/agents", body.JSON())
	if err == nil && status == http.StatusConflict { // we are registered, or somebody else has the name
		status, _, err = r.call(ctx, http.MethodPut, "/agents/"+url.PathEscape(e.ID), body.Without("agent_name", "org", "public_key").JSON())
	}
	if err == nil && status >= 300 {
		err = fmt.Errorf("the registry answered %d", status)
	}
	if err != nil {
		return err
	}
	listed, err := r.key(ctx, e.ID)
	if err == nil && listed != e.PublicKey {
		err = errors.New("the registry lists another key under our name")
	}
	return err
}

// heartbeat renews our entry. It returns false if we are not listed.
func (r remoteRegistry) heartbeat(ctx context.Context, id string) (bool, error) {
	status, _, err := r.call(ctx, http.MethodPost, "/agents/"+url.PathEscape(id)+"/heartbeat", nil)
	if err == nil && status >= 300 && status != http.StatusNotFound {
		err = fmt.Errorf("the registry answered %d", status)
	}
	return status != http.StatusNotFound, err
}

// search finds agents. It skips invalid results. All text in the results is untrusted.
func (r remoteRegistry) search(ctx context.Context, query url.Values) ([]Entry, error) {
	status, v, err := r.call(ctx, http.MethodGet, "/search?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("the registry answered %d", status)
	}
	results, _ := v.Get("results")
	out := []Entry{}
	for e := range results.Elems() {
		a, ok := message.ParseName(e.GetStr("id"))
		if !ok || len(out) == 50 {
			continue
		}
		entry := Entry{
			ID: a.Name(), AgentName: a.Agent, Org: a.Org, PublicKey: e.GetStr("public_key"), Endpoint: e.GetStr("endpoint"),
			Description: e.GetStr("description"), Capabilities: []string{}, Status: e.GetStr("status"),
		}
		caps, _ := e.Get("capabilities")
		for c := range caps.Elems() {
			if s, ok := c.Str(); ok && len(entry.Capabilities) < message.MaxList {
				entry.Capabilities = append(entry.Capabilities, s)
			}
		}
		out = append(out, entry)
	}
	return out, nil
}

// registrar keeps our agent registered in the registries that links name.
type registrar struct {
	links        []bridge.Link
	http         *client.HTTP
	token        func(base string) client.Credential // returns the token that guards our entry in a registry; may be nil
	self         Entry
	reachableURL func(where string) string // URL of our endpoint for a registry; "" if the registry cannot call us
	log          *slog.Logger

	mu     sync.Mutex
	states map[string]RegistryState // by base URL
}

// registries returns the registries that links name, without duplicates.
func (g *registrar) registries() []remoteRegistry {
	var out []remoteRegistry
	for _, l := range g.links {
		if r, ok := g.registryOf(l.Name); ok && !slices.ContainsFunc(out, func(o remoteRegistry) bool { return o.base == r.base }) {
			out = append(out, r)
		}
	}
	return out
}

// registryOf returns the registry that a link names.
func (g *registrar) registryOf(link string) (remoteRegistry, bool) {
	i := slices.IndexFunc(g.links, func(l bridge.Link) bool { return l.Name == link && l.RegistryURL != "" })
	if i < 0 {
		return remoteRegistry{}, false
	}
	base := strings.TrimSuffix(strings.TrimRight(g.links[i].RegistryURL, "/"), "/api/v1")
	r := remoteRegistry{base: base, http: g.http}
	if g.token != nil {
		r.token = g.token(base)
	}
	return r, true
}

// search searches the registry of a link.
func (g *registrar) search(c echo.Context, _ owner.None) (owner.List[Entry], error) {
	var none owner.List[Entry]
	r, ok := g.registryOf(c.QueryParam("link"))
	if !ok {
		return none, &wire.Error{Code: wire.InvalidMessage, Status: http.StatusNotFound, Message: "there is no such link with a registry_url"}
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

// run keeps our agent registered until ctx ends.
func (g *registrar) run(ctx context.Context) {
	tick := time.Tick(registryRound)
	for {
		for _, r := range g.registries() {
			if g.reachableURL(r.base) != "" {
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

// renew registers our agent, or sends a heartbeat if one is due.
func (g *registrar) renew(ctx context.Context, r remoteRegistry, now time.Time) {
	g.mu.Lock()
	state := g.states[r.base]
	g.mu.Unlock()
	if now.Sub(state.Registered) < heartbeatGap {
		return
	}
	listed, err := !state.Registered.IsZero(), error(nil)
	if listed {
		listed, err = r.heartbeat(ctx, g.self.ID)
	}
	if !listed && err == nil {
		err = r.register(ctx, g.self)
	}
	if ctx.Err() != nil {
		return
	}
	state.URL, state.Error = r.base, ""
	if err != nil {
		state.Error = err.Error()
		g.log.WarnContext(ctx, "moltspeak: registration in a registry failed", "registry", r.base, "err", err)
	} else {
		state.Registered = now.UTC()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.states[r.base] = state
}

// list returns the state of our registrations.
func (g *registrar) list() []RegistryState {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.SortedFunc(maps.Values(g.states), func(x, y RegistryState) int { return strings.Compare(x.URL, y.URL) })
}
