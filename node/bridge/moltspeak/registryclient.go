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

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	registryTime  = 10 * time.Second
	registryBody  = 1 << 20
	registryRound = 10 * time.Minute // between looks at the registries
	heartbeatFor  = time.Hour
)

// RegistryState is how we stand in a registry of others.
type RegistryState struct {
	URL        string    `json:"url"`
	Registered time.Time `json:"registered,omitzero"` // when it last confirmed us; zero: never
	Error      string    `json:"error,omitempty"`     // of the last attempt
}

// remote is a registry that a link names (MS-56). What it says is a stranger's word.
type remote struct {
	base  string
	token client.Credential // that guards our entry there
	http  *client.HTTP
}

// call makes a request below /api/v1 and reads the object that comes back.
func (r remote) call(ctx context.Context, method, path string, body []byte) (int, wire.Value, error) {
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
		return 0, wire.Value{}, errors.New("the registry answered no JSON object")
	}
	return resp.StatusCode, v, nil
}

// key returns the key that the registry lists for a name; "" where it lists none.
func (r remote) key(ctx context.Context, name string) (string, error) {
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

// register lists us, or brings our entry up to date.
func (r remote) register(ctx context.Context, e Entry) error {
	body := wire.Obj(wire.TextField("agent_name", e.AgentName), wire.TextField("org", e.Org), wire.TextField("public_key", e.PublicKey),
		wire.TextField("endpoint", e.Endpoint), wire.Field("capabilities", wire.Texts(e.Capabilities)))
	status, _, err := r.call(ctx, http.MethodPost, "/agents", body.JSON())
	if err == nil && status == http.StatusConflict { // by us, or the name is somebody else's
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

// heartbeat says that we live; false where we are not listed.
func (r remote) heartbeat(ctx context.Context, id string) (bool, error) {
	status, _, err := r.call(ctx, http.MethodPost, "/agents/"+url.PathEscape(id)+"/heartbeat", nil)
	if err == nil && status >= 300 && status != http.StatusNotFound {
		err = fmt.Errorf("the registry answered %d", status)
	}
	return status != http.StatusNotFound, err
}

// search finds agents. Whatever is no agent is left out; texts are the registry's.
func (r remote) search(ctx context.Context, query url.Values) ([]Entry, error) {
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

// registrar keeps us in the registries that links name.
type registrar struct {
	links []bridge.Link
	http  *client.HTTP
	token func(base string) client.Credential // that guards our entry in a registry; nil: none
	self  Entry
	told  func(where string) string // our endpoint as a registry can call it, "" if it cannot
	log   *slog.Logger

	mu     sync.Mutex
	states map[string]RegistryState // by base URL
}

// remotes returns the registries that links name, each once.
func (g *registrar) remotes() []remote {
	var out []remote
	for _, l := range g.links {
		if r, ok := g.remote(l.Name); ok && !slices.ContainsFunc(out, func(o remote) bool { return o.base == r.base }) {
			out = append(out, r)
		}
	}
	return out
}

// remote returns the registry that a link names.
func (g *registrar) remote(link string) (remote, bool) {
	i := slices.IndexFunc(g.links, func(l bridge.Link) bool { return l.Name == link && l.RegistryURL != "" })
	if i < 0 {
		return remote{}, false
	}
	base := strings.TrimSuffix(strings.TrimRight(g.links[i].RegistryURL, "/"), "/api/v1")
	r := remote{base: base, http: g.http}
	if g.token != nil {
		r.token = g.token(base)
	}
	return r, true
}

// run keeps us in the registries that links name, until ctx ends.
func (g *registrar) run(ctx context.Context) {
	tick := time.NewTicker(registryRound)
	defer tick.Stop()
	for {
		for _, r := range g.remotes() {
			if g.told(r.base) != "" {
				g.listIn(ctx, r, time.Now())
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// listIn registers us, or sends the heartbeat that is due.
func (g *registrar) listIn(ctx context.Context, r remote, now time.Time) {
	g.mu.Lock()
	state := g.states[r.base]
	g.mu.Unlock()
	if now.Sub(state.Registered) < heartbeatFor {
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
		g.log.WarnContext(ctx, "moltspeak: a registry does not list us", "registry", r.base, "err", err)
	} else {
		state.Registered = now.UTC()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.states[r.base] = state
}

// list returns how we stand in the registries.
func (g *registrar) list() []RegistryState {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.SortedFunc(maps.Values(g.states), func(x, y RegistryState) int { return strings.Compare(x.URL, y.URL) })
}
