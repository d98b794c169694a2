//go:build slow

package postgres

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// TestPooler runs the suite through PgBouncer in transaction mode, with one handle and with several. Notifications have
// a direct connection.
func TestPooler(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t, "max_connections=400")
	const most = 200 // databases; each test has one of its own
	users := make([]string, most)
	for i := range users {
		users[i] = fmt.Sprintf("u%d", i)
	}
	pooler, prepared := pgtest.NewPooler(t, server, users...)
	mode := "" // of prepared statements
	if !prepared {
		mode = "&default_query_exec_mode=exec"
	}
	var used atomic.Int64
	database := func(t *testing.T) Config {
		n := int(used.Add(1)) - 1
		if n >= most {
			t.Fatalf("the tests need more than %d databases", most)
		}
		return Config{URL: pooler.URL(users[n]) + mode, ListenURL: server.UserURL(users[n]), Name: "test"}
	}
	t.Run("Store", func(t *testing.T) {
		t.Parallel()
		storetest.RunScenarios(t, func(t *testing.T) store.Store { return open(t, database(t)) }) // several handles run the rest, too
	})
	t.Run("Shared", func(t *testing.T) {
		t.Parallel()
		storetest.RunShared(t, func(t *testing.T, ttl time.Duration) storetest.Shared {
			cfg := database(t)
			cfg.LeaseTTL = ttl
			return sharedHandles(t, cfg)
		})
	})
}

// TestPoolerSettings checks that the settings in the documentation for users behind a pooler are all that a connection
// without a pooler has.
func TestPoolerSettings(t *testing.T) {
	t.Parallel()
	s := open(t, Config{URL: pgtest.Database(t)})
	page, err := os.ReadFile("../../docs/several-instances.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(strings.TrimSpace(pgtest.UserSettings)) {
		name, value, _ := strings.Cut(strings.TrimPrefix(strings.TrimSuffix(strings.TrimSpace(line), ";"), "alter role USER set "), " = ")
		if text := strings.ReplaceAll(strings.TrimSpace(line), "USER", "mesh"); !strings.Contains(string(page), text) {
			t.Errorf("the documentation lacks %q", text)
		}
		var same bool
		if err := s.pool.QueryRow(t.Context(), "select setting = $2 from pg_settings where name = $1", name, value).Scan(&same); err != nil || !same {
			t.Errorf("%s is not %s without a pooler: %v", name, value, err)
		}
	}
}
