package discovery

import (
	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

type manifest struct {
	SpecVersion string  `json:"specVersion"`
	Host        host    `json:"host"`
	Entries     []Entry `json:"entries"`
}

type host struct {
	DisplayName string `json:"displayName"`
	Identifier  string `json:"identifier"`
}

const manifestAge = "public, max-age=3600"

// getManifest answers with the manifest: this registry, and what else the process serves. It does not list cards;
// clients search for them.
func (s *Service) getManifest(c echo.Context) error {
	if s.cfg.Local {
		return wire.ErrRoute
	}
	doc := manifest{SpecVersion: SpecVersion, Host: host{s.cfg.Name, "did:web:" + s.host}, Entries: []Entry{s.registryEntry()}}
	if s.extra != nil {
		for _, e := range s.extra() {
			e.Identifier = s.identifier(kindOf(e.Type), e.Identifier)
			e.TrustManifest = &TrustManifest{Identity: s.origin, IdentityType: "https"}
			doc.Entries = append(doc.Entries, e)
		}
	}
	httpapi.ServeDocument(c, TypeCatalog, manifestAge, wire.MustMarshal(doc))
	return nil
}

// kindOf returns the KIND part of the identifier (urn:air:HOST:KIND:NAME) of an entry with this type. Only entries that
// the process adds to the manifest need it.
func kindOf(entryType string) string {
	if entryType == TypeMCP {
		return "mcp"
	}
	return agentKind
}

// registryEntry returns the entry of this directory.
func (s *Service) registryEntry() Entry {
	return Entry{
		Identifier: s.identifier("registry", "agents"), DisplayName: s.cfg.Name, Type: TypeRegistry, URL: s.origin + Base,
		Description: "A directory of personal agents that accept messages. It verifies their keys and endpoints, and knows which of them answer.",
		RepresentativeQueries: []string{
			"find someone's personal agent", "find an agent by its capability", "which agents answer right now",
		},
		TrustManifest: &TrustManifest{Identity: s.origin, IdentityType: "https"},
	}
}

func (s *Service) getRobots(c echo.Context) error {
	if s.cfg.Local {
		return wire.ErrRoute
	}
	httpapi.ServeDocument(c, "text/plain; charset=utf-8", manifestAge, []byte("User-agent: *\nAllow: /\n\nAgentmap: "+s.origin+manifestPath+"\n"))
	return nil
}
