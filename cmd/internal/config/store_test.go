package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestStorePassword checks that a connection string with a password is refused in the configuration, in both forms, and
// that the error does not contain it.
func TestStorePassword(t *testing.T) {
	for text, refused := range map[string]bool{
		"postgres://mesh@db/mesh":                   false,
		"host=db dbname=mesh":                       false,
		"file:database":                             false,
		"postgres://mesh:geheim@db/mesh":            true,
		"postgres://db/mesh?password=geheim":        true,
		"host=db PASSWORD = geheim":                 true,
		"postgres://db/mesh?a=b&sslpassword=geheim": true,
		"geheim": true,
		"postgres://mesh:geheim@db:not-a-port/mesh": true,
	} {
		c := Default()
		c.Store.Postgres = Connection(text)
		err := c.Check(nil)
		if (err != nil) != refused || err != nil && strings.Contains(err.Error(), "geheim") {
			t.Errorf("Check with store.postgres %q = %v, want refused %v", text, err, refused)
		}
	}
}

// TestConnectionString reads a connection string from a file beside the configuration.
func TestConnectionString(t *testing.T) {
	dir := t.TempDir()
	src := Source{File: filepath.Join(dir, "agentmesh.yaml")}
	if err := os.WriteFile(filepath.Join(dir, "database"), []byte("postgres://u:p@db/mesh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := src.ConnectionString("store.postgres", "file:database"); err != nil || got != "postgres://u:p@db/mesh" {
		t.Errorf("ConnectionString = %q, %v", got, err)
	}
	if _, err := src.ConnectionString("store.postgres", "file:missing"); err == nil {
		t.Error("ConnectionString accepts a missing file")
	}
}
