// Package discovery shows a directory to other registries in the form of ARD (Agentic Resource Discovery): the
// manifest at its well-known paths, and searches below [Base]. docs/bridges/ard.md describes the mapping.
//
// The package only translates: every search is one call of [Config.Find], with the bounds and cursors of the
// directory. The code that depends on the version of ARD is in this package and in node/client/ard.go.
package discovery

import (
	"context"
	"net/url"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// The names that ARD 0.91 (2026-08-26) and its predecessor define. The well-known paths serve the same bytes.
const (
	SpecVersion = "1.0" // of the manifest format
	Base        = "/ard"

	manifestPath = "/.well-known/ard.json"
	catalogPath  = "/.well-known/ai-catalog.json" // of the predecessor, which many consumers still ask for
	robotsPath   = "/robots.txt"

	TypeCatalog  = "application/ai-catalog+json"
	TypeRegistry = "application/ai-registry+json"
	TypeA2A      = "application/a2a-agent-card+json"
	TypeMCP      = "application/mcp-server-card+json"
	TypeMesh     = "application/vnd.agentmesh.card+json" // of an agent that has no other protocol

	urnPrefix = "urn:air:"
)

// Config describes the directory behind the documents.
type Config struct {
	// BaseURL is the base of the directory's own API, "https://directory.example.com/v1".
	BaseURL string
	// Local selects the local profile. The service then has no manifest, because it has no public host name.
	Local bool
	// Name is the name of the directory, for people.
	Name string
	// Referrals are the ARD base URLs of other registries, such as mirrors of this directory, or the directory that
	// this one mirrors.
	Referrals []string
	// Find searches the directory.
	Find func(ctx context.Context, s Search) (Found, error)
	// Record returns the record of one agent, or [wire.ErrNoAgent].
	Record func(ctx context.Context, id wire.AgentID) (wire.CardRecord, error)
	// Guard limits how often an address may call.
	Guard echo.MiddlewareFunc
}

// Search is a search in the directory. An agent must have a word of Text, and match at least one value of each list
// that is not empty.
type Search struct {
	Text         string // agents with more of its words come first; "" matches every agent
	Capabilities []string
	Intents      []string
	Checks       []string // key, endpoint, alive
	Entry        []string // EntryA2A, EntryMesh
	Limit        int
	Cursor       string
}

// The kinds of entries, by which the directory finds agents.
const (
	EntryA2A  = "a2a"
	EntryMesh = "agentmesh"
)

// Found is one page of a search.
type Found struct {
	Agents []Agent
	Cursor string // "" on the last page
}

// Agent is a found agent.
type Agent struct {
	Card         wire.Value
	Verification wire.Verification
	Score        int // 0 to 100
}

// Service serves the documents of a directory. It is safe for concurrent use.
type Service struct {
	cfg    Config
	origin string // "https://directory.example.com"
	host   string // the publisher in identifiers
	extra  func() []Entry
}

// New returns a service. extra returns the other entries of the manifest, besides the registry. The Identifier of each
// is only the NAME in urn:air:HOST:KIND:NAME. extra may be nil.
func New(cfg Config, extra func() []Entry) *Service {
	s := &Service{cfg: cfg, origin: strings.TrimSuffix(cfg.BaseURL, "/v1"), host: "localhost", extra: extra}
	if u, err := url.Parse(cfg.BaseURL); err == nil && u.Hostname() != "" && !strings.Contains(u.Hostname(), ":") { // a URN cannot contain an IPv6 address
		s.host = strings.ToLower(u.Hostname())
	}
	return s
}

// Mount adds the routes.
func (s *Service) Mount(e *echo.Echo) {
	add := func(method, path string, h echo.HandlerFunc) {
		h = answerErrors(s.cfg.Guard(h))
		if !s.cfg.Local { // in the local profile, pages of other origins may not read (AM-82)
			h = httpapi.AnyOrigin(h)
		}
		e.Add(method, path, h)
	}
	for path, h := range map[string]echo.HandlerFunc{
		manifestPath: s.getManifest, catalogPath: s.getManifest, robotsPath: s.getRobots,
		Base + "/agents": s.listAgents, Base + "/agents/:urn": s.getAgent,
	} {
		add("GET", path, h)
		add("HEAD", path, h)
	}
	add("POST", Base+"/search", s.postSearch)
	add("POST", Base+"/explore", s.postExplore)
}

// Links adds the link relations of the manifest to a response, so that a crawler of the front page finds the manifest.
func (s *Service) Links(c echo.Context) {
	if !s.cfg.Local {
		c.Response().Header()["Link"] = []string{`<` + manifestPath + `>; rel="ard"`, `<` + catalogPath + `>; rel="ai-catalog"`}
	}
}
