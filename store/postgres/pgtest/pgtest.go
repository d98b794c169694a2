// Package pgtest starts a PostgreSQL server for tests.
//
// Call [Main] in TestMain, and [Database] in a test. The server runs while the tests of the package run, without a
// network address, in a temporary folder.
package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
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
	Dir  string // folder of the socket and of the data
	args []string
	cmd  *exec.Cmd
	log  bytes.Buffer
	done chan struct{}
}

var (
	once     sync.Once
	shared   *Server
	startErr error
	schemas  atomic.Int64
)

// Main runs the tests of a package, and then stops the server if a test started it. It returns the exit code.
func Main(m *testing.M) int {
	defer func() {
		if shared != nil {
			shared.Stop()
		}
	}()
	return m.Run()
}

// Database returns the connection string of a new, empty schema, which costs less than a database of its own. Without PostgreSQL on this machine, the test is
// skipped, or fails if the environment has AGENTMESH_TOOLS=required.
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

// Schema makes a schema in a database unless it exists, and returns the connection string for it.
func Schema(database, name string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "create schema if not exists "+name)
	var made *pgconn.PgError
	if errors.As(err, &made) && made.Code == "23505" { // another process was faster
		err = nil
	}
	return database + "&options=" + url.QueryEscape("-csearch_path="+name), err
}

// New starts a server of its own for a test, which the test may stop.
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

// Installed reports whether a server can be started on this machine. It is always true with AGENTMESH_TOOLS=required, so
// that the start fails if PostgreSQL is missing.
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
	s := &Server{Dir: dir}
	if err := s.start(settings); err != nil {
		s.Stop()
		return nil, fmt.Errorf("start PostgreSQL: %w\n%s", err, s.log.String())
	}
	return s, nil
}

func (s *Server) start(settings []string) error {
	if err := allow(s.Dir); err != nil {
		return err
	}
	initdb, err := find("initdb")
	if err != nil {
		return err
	}
	data := filepath.Join(s.Dir, "data")
	cmd := exec.Command(initdb, "-D", data, "-A", "trust", "-U", "mesh", "--no-sync", "-E", "UTF8", "--locale=C")
	cmd.Dir, cmd.SysProcAttr = s.Dir, attributes()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	s.args = []string{"-D", data, "-k", s.Dir, "-c", "listen_addresses=", "-c", "max_connections=200", "-c", "shared_buffers=32MB"}
	for _, setting := range settings {
		s.args = append(s.args, "-c", setting)
	}
	return s.Restart()
}

// Restart starts the server again after Kill.
func (s *Server) Restart() error {
	postgres, err := find("postgres")
	if err != nil {
		return err
	}
	s.cmd, s.done = exec.Command(postgres, s.args...), make(chan struct{})
	s.cmd.Dir, s.cmd.SysProcAttr, s.cmd.Stdout, s.cmd.Stderr = s.Dir, attributes(), &s.log, &s.log
	if err := s.cmd.Start(); err != nil {
		return err
	}
	cmd, done := s.cmd, s.done
	go func() {
		_ = cmd.Wait() // the tests see what is wrong
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

// Stop ends the server at once and removes its folder.
func (s *Server) Stop() {
	s.Kill()
	_ = os.RemoveAll(s.Dir) // a temporary folder
}

// URL returns the connection string of a database.
func (s *Server) URL(database string) string {
	return (&url.URL{Scheme: "postgres", User: url.User("mesh"), Path: "/" + database, RawQuery: url.Values{"host": {s.Dir}}.Encode()}).String()
}

// Exec executes one statement in the database postgres.
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

// CPU returns the processor time of the processes of the server that [Database] started, or 0 on systems without /proc.
func CPU() time.Duration {
	if shared == nil {
		return 0
	}
	var ticks int64
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended
		}
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(fields) < 13 || fields[1] != strconv.Itoa(shared.cmd.Process.Pid) {
			continue
		}
		for _, field := range fields[11:13] { // user and system time
			n, _ := strconv.ParseInt(field, 10, 64)
			ticks += n
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
