// Package pgtest starts a PostgreSQL server for tests.
//
// Call [Main] in TestMain, and [Database] in a test. The server runs while the tests of the package run, without a
// network address, in a temporary folder.
package pgtest

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Server is a running server.
type Server struct {
	Dir      string   // folder of the socket and of the data
	settings []string // in addition to baseSettings
	args     []string // of the program postgres
	cmd      *exec.Cmd
	log      bytes.Buffer
	done     chan struct{}
}

// baseSettings are the settings of every server. No server has a network address.
var baseSettings = []string{"listen_addresses=", "max_connections=200", "shared_buffers=32MB"}

var (
	once     sync.Once
	shared   *Server
	startErr error
	schemas  atomic.Int64
)

// Main runs the tests of a package, and then stops the server if a test started it. It returns the exit code. More
// parallel tests run at once than there are processors, because they mostly wait; the flag -parallel overrides the number.
func Main(m *testing.M) int {
	flag.Set("test.parallel", "8")
	defer func() {
		if shared != nil {
			shared.Stop()
		}
	}()
	return m.Run()
}

// Database returns the connection string of a new, empty schema, which costs less than a database of its own. Without
// PostgreSQL on this machine, the test is skipped, or fails if the environment has AGENTMESH_TOOLS=required.
func Database(t testing.TB) string {
	t.Helper()
	requireBinaries(t)
	once.Do(func() { shared, startErr = Start() })
	if startErr != nil {
		t.Fatal(startErr)
	}
	name := fmt.Sprintf("test%d", schemas.Add(1))
	if err := shared.Exec("create schema " + name); err != nil {
		t.Fatal(err)
	}
	return shared.URL("postgres") + "&options=" + url.QueryEscape("-csearch_path="+name)
}

// Schema makes a schema in a database unless the schema exists, and returns the connection string for the schema.
// database is the connection string of the database.
func Schema(database, name string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "create schema if not exists "+name)
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "23505" { // another process was faster
		err = nil
	}
	return database + "&options=" + url.QueryEscape("-csearch_path="+name), err
}

// New starts a separate server for one test. The test may stop it.
func New(t testing.TB, settings ...string) *Server {
	t.Helper()
	requireBinaries(t)
	s, err := Start(settings...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// Installed reports whether a server can be started on this machine. It is always true with AGENTMESH_TOOLS=required,
// so that the start fails if PostgreSQL is missing.
func Installed() bool {
	_, err := find("initdb")
	return err == nil || os.Getenv("AGENTMESH_TOOLS") == "required"
}

func requireBinaries(t testing.TB) {
	t.Helper()
	if _, err := find("initdb"); err != nil {
		if os.Getenv("AGENTMESH_TOOLS") == "required" {
			t.Fatalf("PostgreSQL is not installed (AGENTMESH_TOOLS=required): %v", err)
		}
		t.Skip("PostgreSQL is not installed")
	}
}

// find returns the path of a program of PostgreSQL. Debian keeps the programs out of the PATH.
func find(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if len(found) == 0 {
		return "", fmt.Errorf("%s: %w", name, exec.ErrNotFound)
	}
	return found[len(found)-1], nil
}

// Start starts a server with these settings ("name=value").
func Start(settings ...string) (*Server, error) {
	dir, err := os.MkdirTemp("", "pg") // the path of a socket has at most about 100 bytes
	if err != nil {
		return nil, err
	}
	return StartIn(dir, settings...)
}

// StartIn starts a server in an existing, empty folder. [Server.Stop] removes the folder with its contents.
func StartIn(dir string, settings ...string) (*Server, error) {
	return start(dir, settings, "initdb", "-A", "trust", "-U", "mesh", "--no-sync", "-E", "UTF8", "--locale=C")
}

// Standby starts a synchronous standby: from now on, the server confirms a commit only when the standby has it on disk.
func (s *Server) Standby() (*Server, error) {
	dir, err := os.MkdirTemp("", "pg")
	if err != nil {
		return nil, err
	}
	standby, err := start(dir, s.settings, "pg_basebackup", "-h", s.Dir, "-U", "mesh", "-R", "-X", "stream", "-C", "-S", "standby", "-c", "fast", "--no-sync")
	if err != nil {
		return nil, err
	}
	// ALTER SYSTEM cannot be in a transaction with another statement.
	for _, sql := range []string{"alter system set synchronous_standby_names = '*'", "select pg_reload_conf()"} {
		if err == nil {
			err = s.Exec(sql)
		}
	}
	for deadline := time.Now().Add(30 * time.Second); err == nil; time.Sleep(50 * time.Millisecond) {
		// This divides by zero until there is a synchronous standby.
		if err = s.Exec("select 1/count(*) from pg_stat_replication where sync_state = 'sync'"); err == nil {
			return standby, nil
		}
		if time.Now().Before(deadline) {
			err = nil // try again
		}
	}
	standby.Stop()
	return nil, fmt.Errorf("start a standby: %w\n%s", err, standby.log.String())
}

// Promote makes a standby a primary.
func (s *Server) Promote() error { return s.Exec("select pg_promote()") }

func start(dir string, settings []string, program string, args ...string) (*Server, error) {
	s := &Server{Dir: dir, settings: settings}
	if err := s.create(program, args); err != nil {
		s.Stop()
		return nil, fmt.Errorf("start PostgreSQL: %w\n%s", err, s.log.String())
	}
	return s, nil
}

// create makes the data with program, which is initdb or pg_basebackup, and starts the server.
func (s *Server) create(program string, args []string) error {
	if err := giveToServer(s.Dir); err != nil {
		return err
	}
	path, err := find(program)
	if err != nil {
		return err
	}
	data := filepath.Join(s.Dir, "data")
	cmd := exec.Command(path, append(args, "-D", data)...)
	cmd.Dir, cmd.SysProcAttr = s.Dir, processAttributes()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", program, err, out)
	}
	s.args = []string{"-D", data, "-k", s.Dir}
	for _, setting := range slices.Concat(baseSettings, s.settings) {
		s.args = append(s.args, "-c", setting)
	}
	return s.Restart()
}

// Restart starts the server, for the first time or after Kill or Crash.
func (s *Server) Restart() error {
	postgres, err := find("postgres")
	if err != nil {
		return err
	}
	s.cmd, s.done = exec.Command(postgres, s.args...), make(chan struct{})
	s.cmd.Dir, s.cmd.SysProcAttr, s.cmd.Stdout, s.cmd.Stderr = s.Dir, processAttributes(), &s.log, &s.log
	if err := s.cmd.Start(); err != nil {
		return err
	}
	cmd, done := s.cmd, s.done
	go func() {
		_ = cmd.Wait() // if the server ended by itself, the tests fail
		close(done)
	}()
	for deadline := time.Now().Add(30 * time.Second); ; {
		err := s.Exec("select 1")
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Kill ends the server at once, without a checkpoint. Its data stay.
func (s *Server) Kill() {
	if s.cmd != nil && s.cmd.Process != nil {
		_ = s.cmd.Process.Signal(quit) // it may have ended
		<-s.done
	}
}

// Crash kills all processes of the server with SIGKILL, as if its machine failed. Its data stay.
func (s *Server) Crash() {
	killAll(s.cmd.Process.Pid)
	<-s.done
}

// Stop ends the server at once and removes its folder.
func (s *Server) Stop() {
	s.Kill()
	_ = os.RemoveAll(s.Dir) // a temporary folder
}

// URL returns the connection string of a database.
func (s *Server) URL(database string) string {
	return (&url.URL{Scheme: "postgres", User: url.User("mesh"), Path: "/" + database, RawQuery: url.Values{"host": {s.Dir}}.Encode()}).String()
}

// URLs returns the connection string of a database on whichever of two servers is the primary.
func URLs(database string, a, b *Server) string {
	return (&url.URL{Scheme: "postgres", User: url.User("mesh"), Path: "/" + database, RawQuery: url.Values{
		"host": {a.Dir + "," + b.Dir}, "target_session_attrs": {"read-write"},
	}.Encode()}).String()
}

// Exec executes statements in the database postgres, several of them in one transaction.
func (s *Server) Exec(sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

// MakeDatabase makes a database whose data are in an existing folder.
func (s *Server) MakeDatabase(name, dir string) error {
	if err := giveToServer(dir); err != nil {
		return err
	}
	if err := s.Exec("create tablespace " + name + " location '" + dir + "'"); err != nil {
		return err
	}
	return s.Exec("create database " + name + " tablespace " + name)
}

// Query returns the first column of each row of a query. database is a connection string.
func Query(database, sql string) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// CPU returns the processor time of the processes of the server that [Database] started, including those that have
// ended, or 0 on systems without /proc.
func CPU() time.Duration {
	if shared == nil {
		return 0
	}
	server := shared.cmd.Process.Pid
	var times []string
	if fields := readStat(fmt.Sprintf("/proc/%d/stat", server)); fields != nil {
		times = fields[11:15] // user and system time of the process, and of its children that have ended
	}
	for _, fields := range children(server) {
		times = append(times, fields[11:13]...)
	}
	var ticks int64
	for _, text := range times {
		n, _ := strconv.ParseInt(text, 10, 64)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond // Linux counts 100 ticks in a second
}

// children returns the result of [readStat] for each child of a process, by process id, or nothing without /proc.
func children(parent int) map[int][]string {
	found := make(map[int][]string)
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		if fields := readStat(path); fields != nil && fields[1] == strconv.Itoa(parent) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			found[pid] = fields
		}
	}
	return found
}

// readStat returns the fields of /proc/PID/stat from the third on, or nil if the process has ended.
func readStat(path string) []string {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 15 {
		return nil
	}
	return fields
}
