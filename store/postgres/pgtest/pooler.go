package pgtest

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Pooler is a running PgBouncer in transaction mode in front of a server.
type Pooler struct {
	dir string
	cmd *exec.Cmd
}

// poolerConfig is the configuration of PgBouncer as in docs/several-instances.md. The transactions of one client may
// run on different server connections, so the settings of a session are set for the role instead (see [UserSettings]).
const poolerConfig = `
[databases]
%s
[pgbouncer]
listen_addr =
listen_port = 5432
unix_socket_dir = %s
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 500
log_connections = 0
log_disconnections = 0
%s
ignore_startup_parameters = idle_in_transaction_session_timeout,lock_timeout,jit,enable_seqscan,enable_bitmapscan,max_parallel_workers_per_gather,plan_cache_mode
`

// UserSettings are the statements that set for a role, called USER, what a client cannot set through a pooler.
const UserSettings = `
alter role USER set idle_in_transaction_session_timeout = 2000;
alter role USER set lock_timeout = 5000;
alter role USER set jit = off;
alter role USER set enable_seqscan = off;
alter role USER set enable_bitmapscan = off;
alter role USER set max_parallel_workers_per_gather = 0;
alter role USER set plan_cache_mode = force_generic_plan;
`

// NewPooler starts PgBouncer in front of s. It creates each of the users as a role with [UserSettings] and with a
// schema of the same name; see [Pooler.URL]. prepared reports whether PgBouncer supports prepared statements; an older
// version needs default_query_exec_mode=exec. Without PgBouncer, the test is skipped, or fails if the environment has
// AGENTMESH_TOOLS=required.
func NewPooler(t testing.TB, s *Server, users ...string) (p *Pooler, prepared bool) {
	t.Helper()
	pgbouncer, err := exec.LookPath("pgbouncer")
	if err != nil {
		if pgbouncer = "/usr/sbin/pgbouncer"; !isFile(pgbouncer) { // the PATH of a plain user lacks this folder
			if os.Getenv("AGENTMESH_TOOLS") == "required" {
				t.Fatal("PgBouncer is not installed (AGENTMESH_TOOLS=required)")
			}
			t.Skip("PgBouncer is not installed")
		}
	}
	version, err := exec.CommandContext(t.Context(), pgbouncer, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(version), "PgBouncer %d.%d", &major, &minor); err != nil {
		t.Fatalf("version of PgBouncer %q: %v", version, err)
	}
	prepared = major > 1 || minor >= 21
	t.Logf("%s supports prepared statements: %v", strings.SplitN(string(version), "\n", 2)[0], prepared)
	var databases, statements strings.Builder
	for _, user := range users {
		fmt.Fprintf(&databases, "%s = host=%s dbname=postgres user=%s\n", user, s.Dir, user)
		settings := strings.ReplaceAll("create role USER login; create schema USER authorization USER;"+UserSettings, "USER", user)
		statements.WriteString(settings)
	}
	if err := s.Exec(statements.String()); err != nil {
		t.Fatal(err)
	}
	extra := ""
	if prepared {
		extra = "max_prepared_statements = 200"
	}
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	p = &Pooler{dir: dir}
	t.Cleanup(p.stop)
	file := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(file, fmt.Appendf(nil, poolerConfig, databases.String(), dir, extra), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := giveToServer(dir); err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.Command(pgbouncer, file)
	p.cmd.Dir, p.cmd.SysProcAttr, p.cmd.Stdout, p.cmd.Stderr = dir, processAttributes(), t.Output(), t.Output()
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); !isSocket(filepath.Join(dir, ".s.PGSQL.5432")); {
		if time.Now().After(deadline) {
			t.Fatal("PgBouncer did not start within 30 s")
		}
		time.Sleep(20 * time.Millisecond)
	}
	return p, prepared
}

// URL returns the connection string of a user through the pooler. For each user, PgBouncer offers the database postgres
// under the name of the user.
func (p *Pooler) URL(user string) string {
	return (&url.URL{Scheme: "postgres", User: url.User(user), Path: "/" + user, RawQuery: url.Values{"host": {p.dir}, "sslmode": {"disable"}}.Encode()}).String()
}

func (p *Pooler) stop() {
	if p.cmd != nil && p.cmd.Process != nil {
		_ = p.cmd.Process.Signal(quit)
		_ = p.cmd.Wait() // the error says only that a signal ended the process
	}
	_ = os.RemoveAll(p.dir) // a temporary folder
}

// UserURL returns the connection string of a user without the pooler.
func (s *Server) UserURL(user string) string {
	return (&url.URL{Scheme: "postgres", User: url.User(user), Path: "/postgres", RawQuery: url.Values{"host": {s.Dir}}.Encode()}).String()
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func isSocket(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&os.ModeSocket != 0
}
