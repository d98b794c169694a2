package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestMCPServer: server.json has what the registry requires: a namespace, a short description, one exact version.
func TestMCPServer(t *testing.T) {
	dir := t.TempDir()
	if err := writeMCPServer(dir, "v0.1.0"); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, mcpServerFile))
	if err != nil {
		t.Fatal(err)
	}
	var s mcpServer
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$`).MatchString(s.Name) || len(s.Name) > 200 {
		t.Errorf("name %q", s.Name)
	}
	if n := len(s.Description); n == 0 || n > 100 {
		t.Errorf("the description has %d characters", n)
	}
	if s.Version != "0.1.0" || s.Schema != mcpSchema || s.Repository.URL == "" {
		t.Errorf("server.json is %s", data)
	}
}
