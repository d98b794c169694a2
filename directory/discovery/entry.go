package discovery

import (
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Entry is an entry of ARD: the description of one agent, server or registry.
type Entry struct {
	Identifier            string            `json:"identifier"` // urn:air:HOST:KIND:NAME
	DisplayName           string            `json:"displayName"`
	Type                  string            `json:"type"`
	URL                   string            `json:"url"`
	Description           string            `json:"description,omitempty"`
	Tags                  []string          `json:"tags,omitempty"`
	Capabilities          []string          `json:"capabilities,omitempty"`
	RepresentativeQueries []string          `json:"representativeQueries,omitempty"` // 2 to 5
	Metadata              map[string]string `json:"metadata,omitempty"`
	TrustManifest         *TrustManifest    `json:"trustManifest,omitempty"`
}

// TrustManifest has the identity behind an entry and what the directory checked about it.
type TrustManifest struct {
	Identity     string        `json:"identity"` // at the host in the identifier of the entry
	IdentityType string        `json:"identityType"`
	Attestations []Attestation `json:"attestations,omitempty"`
}

// Attestation is a fact that the directory checked, and where its proof is.
type Attestation struct {
	Type      string `json:"type"`
	URI       string `json:"uri"`
	MediaType string `json:"mediaType"`
}

// attestations lists the checks of the directory. stamp is the key of the check's time in the metadata of an entry.
var attestations = []struct{ kind, check, stamp string }{
	{"agentmesh-key", "key", "key_proven_at"},
	{"agentmesh-endpoint", "endpoint", "endpoint_proven_at"},
	{"agentmesh-alive", "alive", "alive_at"},
}

// urn matches an identifier. Its groups are the publisher and the rest, which starts with a colon.
var urn = regexp.MustCompile(`^urn:air:([a-zA-Z0-9.-]+)((?::[a-zA-Z0-9._-]+)+)$`)

// identifier returns the URN of an entry of this directory.
func (s *Service) identifier(kind, name string) string {
	return urnPrefix + s.host + ":" + kind + ":" + name
}

// agentKind is the KIND in the identifier of an agent. The NAME is then the agent id.
const agentKind = "agent"

const maxA2A = 2048 // bytes of a URL

// A2ACard returns the URL of the A2A card that an agent card names in metadata.a2a, or "". The URL must have the
// scheme, host and port of the agent's endpoint, because the directory checks only the endpoint.
func A2ACard(card wire.Value) string {
	metadata, _ := card.Get("metadata")
	text := metadata.GetStr("a2a")
	u, err := url.Parse(text)
	if err != nil || text == "" || len(text) > maxA2A || u.User != nil || u.Fragment != "" {
		return ""
	}
	endpoint, err := url.Parse(card.GetStr("endpoint"))
	if err != nil || u.Scheme != endpoint.Scheme || !strings.EqualFold(u.Host, endpoint.Host) {
		return ""
	}
	return text
}

// agentEntry returns the entry of an agent. Its URL is that of the A2A card if the agent has one, otherwise that of the
// agent card.
func (s *Service) agentEntry(card wire.Value, verification wire.Verification) Entry {
	id := card.GetStr("agent_id")
	record := s.cfg.BaseURL + "/agents/" + id + "/record"
	e := Entry{
		Identifier: s.identifier(agentKind, id), DisplayName: card.GetStr("name"), Type: TypeMesh, URL: s.cfg.BaseURL + "/agents/" + id,
		Description: card.GetStr("description"), Tags: card.GetTexts("intents"), Capabilities: card.GetTexts("capabilities"),
		Metadata:      map[string]string{"agent_id": id},
		TrustManifest: &TrustManifest{Identity: s.cfg.BaseURL + "/agents/" + id, IdentityType: "https"},
	}
	if cardURL := A2ACard(card); cardURL != "" {
		e.Type, e.URL = TypeA2A, cardURL
	}
	for i, at := range []*time.Time{verification.Key, verification.Endpoint, verification.Alive} { // in the order of attestations
		if at != nil {
			e.Metadata[attestations[i].stamp] = wire.FormatTime(*at)
			e.TrustManifest.Attestations = append(e.TrustManifest.Attestations, Attestation{attestations[i].kind, record, "application/json"})
		}
	}
	return e
}

// withQueries returns the entry with examples of queries that find the agent.
func (e Entry) withQueries() Entry {
	e.RepresentativeQueries = []string{"find the agent " + e.DisplayName, "write to " + e.DisplayName}
	for _, name := range e.Capabilities[:min(len(e.Capabilities), 3)] {
		e.RepresentativeQueries = append(e.RepresentativeQueries, "find an agent for "+name)
	}
	return e
}
