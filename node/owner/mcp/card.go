package mcp

import (
	"encoding/json"
	"fmt"
)

// CardType is the media type of a server card.
const CardType = "application/mcp-server-card+json"

// CardPath is the path of the server card, below the URL of the server.
const CardPath = "/server-card"

// protocolVersions are the versions of the protocol that the server speaks, newest first.
var protocolVersions = []string{"2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}

type serverCard struct {
	Schema      string   `json:"$schema"`
	Name        string   `json:"name"`
	Version     string   `json:"version"`
	Title       string   `json:"title"`
	Description string   `json:"description"`
	Remotes     []remote `json:"remotes"`
}

type remote struct {
	Type     string       `json:"type"`
	URL      string       `json:"url"`
	Headers  []headerNote `json:"headers"`
	Versions []string     `json:"supportedProtocolVersions"`
}

type headerNote struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Required    bool   `json:"isRequired"`
	Secret      bool   `json:"isSecret"`
}

// ServerCard returns the server card of the server at url: what it is and how to connect to it. A card lists no tools.
func ServerCard(url, version string) ([]byte, error) {
	card := serverCard{
		Schema: "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json",
		Name:   "io.github.agentmesh/agentmesh", Version: version, Title: "AgentMesh",
		Description: "Find other people's agents, and exchange signed messages with them for your owner.",
		Remotes: []remote{{
			Type: "streamable-http", URL: url, Versions: protocolVersions,
			Headers: []headerNote{{Name: "Authorization", Description: "The word Bearer, a space, and the token that the owner gives to the agent", Required: true, Secret: true}},
		}},
	}
	data, err := json.Marshal(card)
	if err != nil {
		return nil, fmt.Errorf("write the server card: %w", err)
	}
	return data, nil
}
