package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
)

// ARDEntry is a search result of a registry of ARD, Agentic Resource Discovery (docs/bridges/ard.md). The registry
// chooses all its texts, so they are untrusted.
type ARDEntry struct {
	Identifier   string   `json:"identifier"`
	Name         string   `json:"name"`
	Type         string   `json:"type"`
	URL          string   `json:"url,omitempty"`
	Description  string   `json:"description,omitempty"`
	Capabilities []string `json:"capabilities,omitempty"`
	Score        int      `json:"score"`
	Source       string   `json:"source,omitempty"`
	// Address is the address to which our owner can send the agent a message: "a2a:https://…" for an A2A agent, or "".
	Address string `json:"address,omitempty"`
}

// Bounds of a registry's answer.
const (
	maxARDAnswer       = 2 << 20
	maxARDValues       = 200_000
	maxARDEntries      = 100
	maxARDText         = 1000 // characters of each text
	maxARDToken        = 8 << 10
	maxARDCapabilities = 64
)

// The paths and media types of ARD.
const (
	ardManifest     = "/.well-known/ard.json"
	ardOldManifest  = "/.well-known/ai-catalog.json"
	a2aCardType     = "application/a2a-agent-card+json"
	a2aCardPath     = "/.well-known/agent-card.json"
	ardRegistryType = "application/ai-registry" // or with +json
)

type ardRequest struct {
	Query struct {
		Text   string              `json:"text"`
		Filter map[string][]string `json:"filter,omitempty"`
	} `json:"query"`
	Federation string `json:"federation"`
	PageSize   int    `json:"pageSize,omitempty"`
	PageToken  string `json:"pageToken,omitempty"`
}

// SearchARD asks a registry of ARD for agents, and returns the entries and the token of the next page. registry is the
// base URL of the registry, or only a domain or a URL without a path; then the domain's manifest gives the base
// URL. All calls may reach only public addresses ([Public]). In the local profile, a registry on this machine may be
// called too ([Loopback]).
func SearchARD(ctx context.Context, h *HTTP, registry string, q Query) ([]ARDEntry, string, error) {
	if !strings.Contains(registry, "://") {
		registry = "https://" + registry
	}
	u, err := url.Parse(registry)
	if err != nil || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, "", errors.New("a registry is a URL such as https://registry.example/ard, or a domain")
	}
	c := ardClient{http: h, reach: h.reachOf(IsLoopbackURL(u))}
	base, err := c.findBase(ctx, u)
	if err != nil {
		return nil, "", err
	}
	r := ardRequest{Federation: "none", PageSize: q.Limit, PageToken: q.Cursor}
	r.Query.Text = q.Text
	r.Query.Filter = map[string][]string{}
	if len(q.Capabilities) > 0 {
		r.Query.Filter["capabilities"] = q.Capabilities
	}
	for _, intent := range q.Intents {
		r.Query.Filter["tags"] = append(r.Query.Filter["tags"], string(intent))
	}
	body, err := json.Marshal(r)
	if err != nil {
		return nil, "", fmt.Errorf("write the search: %w", err)
	}
	answer, err := c.call(ctx, http.MethodPost, base+"/search", body)
	if err != nil {
		return nil, "", err
	}
	results, ok := answer.Get("results")
	if !ok || results.Kind() != wire.Array {
		return nil, "", errors.New("the registry's answer has no results")
	}
	list := []ARDEntry{}
	for v := range results.Elems() {
		if len(list) == maxARDEntries {
			break
		}
		list = append(list, parseARDEntry(v))
	}
	return list, wire.OneLine(answer.GetStr("pageToken"), maxARDToken), nil
}

// ardClient calls a registry. The URL that the owner typed decides the reach of all calls, even of calls to URLs that
// the registry names.
type ardClient struct {
	http  *HTTP
	reach Reach
}

// findBase returns the base URL of a registry, without /search: registry itself if it has a path, otherwise the URL in
// the manifest of its domain.
func (c ardClient) findBase(ctx context.Context, registry *url.URL) (string, error) {
	base := strings.TrimSuffix(strings.TrimRight(registry.String(), "/"), "/search")
	if registry.Path != "" && registry.Path != "/" {
		return base, nil
	}
	doc, err := c.call(ctx, http.MethodGet, base+ardManifest, nil)
	if err != nil {
		if older, olderErr := c.call(ctx, http.MethodGet, base+ardOldManifest, nil); olderErr == nil {
			doc, err = older, nil
		}
	}
	if err != nil {
		return "", err
	}
	entries, _ := doc.Get("entries")
	for e := range entries.Elems() {
		if strings.TrimSuffix(e.GetStr("type"), "+json") == ardRegistryType && e.GetStr("url") != "" {
			return strings.TrimSuffix(strings.TrimRight(e.GetStr("url"), "/"), "/search"), nil
		}
	}
	return "", errors.New("the domain's manifest lists no registry")
}

func (c ardClient) call(ctx context.Context, method, target string, body []byte) (wire.Value, error) {
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return wire.Value{}, fmt.Errorf("call the registry: %w", err)
	}
	req.Header.Set("Accept", "application/json, application/ai-catalog+json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(ctx, c.reach, req)
	if err != nil {
		return wire.Value{}, err
	}
	data, err := ReadAll(resp, maxARDAnswer)
	if err != nil {
		return wire.Value{}, err
	}
	answer, err := wire.ParseForeign(data, wire.MaxDepth, maxARDValues)
	switch {
	case resp.StatusCode != http.StatusOK && err == nil && answer.GetStr("message") != "":
		return wire.Value{}, fmt.Errorf("the registry refuses with status %d: %s", resp.StatusCode, wire.OneLine(answer.GetStr("message"), 200))
	case resp.StatusCode != http.StatusOK:
		return wire.Value{}, fmt.Errorf("the registry answers with status %d", resp.StatusCode)
	case err != nil:
		return wire.Value{}, fmt.Errorf("the registry does not answer with JSON: %w", err)
	}
	return answer, nil
}

// parseARDEntry returns the fields of an entry that people need, each on one line and of bounded length.
func parseARDEntry(v wire.Value) ARDEntry {
	text := func(key string) string { return wire.OneLine(v.GetStr(key), maxARDText) }
	e := ARDEntry{
		Identifier: text("identifier"), Name: text("displayName"), Type: text("type"), URL: text("url"), Description: text("description"), Source: text("source"),
	}
	if score, ok := v.Get("score"); ok {
		digits, _ := score.Num()
		e.Score, _ = strconv.Atoi(digits) // a score that is not a whole number counts as 0
	}
	capabilities := v.GetTexts("capabilities")
	for _, s := range capabilities[:min(len(capabilities), maxARDCapabilities)] {
		e.Capabilities = append(e.Capabilities, wire.OneLine(s, maxARDText))
	}
	// If OneLine changed the URL, e.URL is not the real one and cannot be an address.
	u, err := url.Parse(v.GetStr("url"))
	if e.Type == a2aCardType && err == nil && u.Scheme == "https" && u.Host != "" && u.User == nil && v.GetStr("url") == e.URL && !strings.ContainsAny(e.URL, " ") {
		e.Address = "a2a:" + strings.TrimSuffix(e.URL, a2aCardPath)
	}
	return e
}
