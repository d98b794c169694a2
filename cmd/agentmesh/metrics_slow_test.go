//go:build slow

package main

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
)

// TestMetricsOfPostgres: an alert on agentmesh_store_writable also works on PostgreSQL.
func TestMetricsOfPostgres(t *testing.T) {
	database := pgtest.New(t)
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "AGENTMESH_") })
	server, token := serveOwner(t, env, "--set=store.postgres="+database.URL("postgres"))
	if status, body := scrapeOwner(t, server.info, token); status != http.StatusOK || !strings.Contains(body, "\nagentmesh_store_writable 1\n") {
		t.Errorf("a scrape = %d, without agentmesh_store_writable 1", status)
	}
	database.Kill()
	if status, body := scrapeOwner(t, server.info, token); status != http.StatusOK || !strings.Contains(body, "\nagentmesh_store_writable 0\n") {
		t.Errorf("a scrape without the database = %d, without agentmesh_store_writable 0", status)
	}
}
