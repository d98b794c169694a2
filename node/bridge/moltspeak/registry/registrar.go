package registry

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

const (
	callTime  = 10 * time.Second
	maxAnswer = 1 << 20
)

// Remote is a foreign registry that a link names (MS-56). Its answers are untrusted.
type Remote struct {
	Base  string            // URL without /api/v1
	token client.Credential // guards our entry
	http  *client.HTTP
}

// call makes a request below /api/v1 and parses the JSON object in the answer.
func (r Remote) call(ctx context.Context, method, path string, body []byte) (int, wire.Value, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, r.Base+"/api/v1"+path, bytes.NewReader(body))
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
	raw, err := client.ReadAll(resp, maxAnswer)
	if err != nil {
		return 0, wire.Value{}, fmt.Errorf("the answer of the registry: %w", err)
	}
	v, err := wire.ParseForeign(raw, 20, message.MaxValues)
	if err != nil || v.Kind() != wire.Object {
		return 0, wire.Value{}, errors.New("the answer of the registry is not a JSON object")
	}
	return resp.StatusCode, v, nil
}

// Key returns the key that the registry lists for a name, or "" if the name is not listed.
func (r Remote) Key(ctx context.Context, name string) (string, error) {
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

// register creates or updates our entry, and checks that the registry lists our key in it.
func (r Remote) register(ctx context.Context, e Entry) error {
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
	listedKey, err := r.Key(ctx, e.ID)
	if err == nil && listedKey != e.PublicKey {
		err = errors.New("the registry lists another key under our name")
	}
	return err
}

// heartbeat renews our entry. It returns false if we are not listed.
func (r Remote) heartbeat(ctx context.Context, id string) (bool, error) {
	status, _, err := r.call(ctx, http.MethodPost, "/agents/"+url.PathEscape(id)+"/heartbeat", nil)
	if err == nil && status >= 300 && status != http.StatusNotFound {
		err = fmt.Errorf("the registry answered %d", status)
	}
	return status != http.StatusNotFound, err
}

// search finds agents. It skips invalid results. All text in the results is untrusted.
func (r Remote) search(ctx context.Context, query url.Values) ([]Entry, error) {
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
		out = append(out, Entry{
			ID: a.Name(), AgentName: a.Agent, Org: a.Org, PublicKey: e.GetStr("public_key"), Endpoint: e.GetStr("endpoint"),
			Description: e.GetStr("description"), Capabilities: capabilitiesIn(e), Status: e.GetStr("status"),
		})
	}
	return out, nil
}
