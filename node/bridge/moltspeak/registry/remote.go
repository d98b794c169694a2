package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

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
