package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
)

// The entry in the MCP registry. Only the owner of the repository can publish in the namespace io.github.agentmesh.
const (
	mcpServerFile = "server.json"
	mcpServerName = "io.github.agentmesh/agentmesh"
	mcpSchema     = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
	repository    = "https://github.com/agentmesh/agentmesh"
)

// mcpServer is what the MCP registry publishes about `agentmesh mcp`. It names no package, because none of our
// archives is a package in the registry's sense. People install the program as the README says.
type mcpServer struct {
	Schema      string `json:"$schema"`
	Name        string `json:"name"`
	Title       string `json:"title"`
	Description string `json:"description"` // at most 100 characters
	Version     string `json:"version"`
	Website     string `json:"websiteUrl"`
	Repository  struct {
		URL    string `json:"url"`
		Source string `json:"source"`
	} `json:"repository"`
}

// writeMCPServer writes server.json, which mcp-publisher accepts.
func writeMCPServer(dir, version string) error {
	s := mcpServer{
		Schema: mcpSchema, Name: mcpServerName, Title: "AgentMesh", Version: strings.TrimPrefix(version, "v"), Website: repository,
		Description: "Find other people's agents, and exchange signed messages with them for your owner.",
	}
	s.Repository.URL, s.Repository.Source = repository, "github"
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, mcpServerFile), append(data, '\n'), 0o644)
}
