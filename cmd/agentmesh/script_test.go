package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi/apitest"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
)

// quickScripts are the scripts that run without the tag slow. Most others start several servers or dozens of commands.
var quickScripts = []string{"calendar", "completion", "config", "demo", "init", "message", "walkthrough"}

// TestScripts runs the scripts in testdata, one for each command or flow. Each script has the commands of a user with
// their output and exit codes.
func TestScripts(t *testing.T) {
	params := scriptParams("testdata")
	if !slow {
		setup := params.Setup
		params.Setup = func(env *testscript.Env) error {
			if !slices.Contains(quickScripts, strings.TrimPrefix(filepath.Base(env.WorkDir), "script-")) {
				env.T().Skip("runs with -tags slow")
			}
			return setup(env)
		}
	}
	if server := testServer(t); server != "" {
		setup := params.Setup
		params.Setup = func(env *testscript.Env) error {
			env.Setenv(envTestServer, server)
			if reason := fileOnly[strings.TrimPrefix(filepath.Base(env.WorkDir), "script-")]; reason != "" {
				env.T().Skip(reason)
			}
			return setup(env)
		}
	}
	testscript.Run(t, params)
}

func scriptParams(dir string) testscript.Params {
	return testscript.Params{
		Dir:                 dir,
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("AGENTMESH_DATA", filepath.Join(env.WorkDir, "data"))
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("XDG_CONFIG_HOME", env.WorkDir)
			for _, name := range []string{"GORACE", "GOGC"} {
				env.Setenv(name, os.Getenv(name))
			}
			env.Values[referencesKey{}] = map[string]*meshtest.Reference{}
			env.Values[serversKey{}] = &servers{running: map[string]*exec.Cmd{}}
			return nil
		},
		Condition: func(name string) (bool, error) {
			if name == "postgres" {
				return pgtest.Installed(), nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits":      exits,
			"exactly":    exactly,
			"start":      start,
			"halt":       halt,
			"http":       request,
			"eventually": eventually,
			"capture":    capture,
			"gateway":    startOpenClaw,
			"reference":  reference,
			"postgres":   startPostgres,
		},
	}
}

// reference implements the script command "reference NAME". The command starts a stand-in for the reference directory,
// which assigns its own id to every card, and sets NAME_DIRECTORY to its base URL. "reference -restart NAME" makes it
// forget every card.
func reference(ts *testscript.TestScript, neg bool, args []string) {
	running := ts.Value(referencesKey{}).(map[string]*meshtest.Reference)
	switch {
	case !neg && len(args) == 2 && args[0] == "-restart":
		running[args[1]].Restart()
	case !neg && len(args) == 1:
		running[args[0]] = &meshtest.Reference{}
		srv := httptest.NewServer(running[args[0]])
		ts.Defer(srv.Close)
		ts.Setenv(args[0]+"_DIRECTORY", srv.URL+"/v1")
	default:
		ts.Fatalf("usage: reference [-restart] name")
	}
}

type referencesKey struct{}

// startPostgres implements the script command "postgres NAME [SETTING=VALUE…]". It starts a PostgreSQL server and sets
// NAME_DATABASE to its connection string. "! postgres NAME" kills the server.
func startPostgres(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) == 0 || neg && len(args) > 1 {
		ts.Fatalf("usage: [!] postgres name [setting=value...]")
	}
	variable := args[0] + "_DATABASE"
	if neg {
		server, _ := postgresServers.Load(ts.Getenv(variable))
		server.(*pgtest.Server).Stop()
		return
	}
	server, err := pgtest.Start(args[1:]...)
	ts.Check(err)
	ts.Defer(server.Stop)
	ts.Setenv(variable, server.URL("postgres"))
	postgresServers.Store(server.URL("postgres"), server)
}

// postgresServers has the servers that scripts have started, by their connection strings.
var postgresServers sync.Map

// exits implements the script command "exits CODE COMMAND…". It runs a command and checks its exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits code command [args...]")
	}
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	if err != nil {
		code = -1
		if e, ok := err.(*exec.ExitError); ok {
			code = e.ExitCode()
		}
	}
	if got := fmt.Sprint(code); got != args[0] {
		ts.Fatalf("exit code %s, want %s", got, args[0])
	}
}

// exactly implements the script command "exactly FILE": standard output is the file without its last line break.
func exactly(ts *testscript.TestScript, neg bool, args []string) {
	if got, want := ts.ReadFile("stdout"), strings.TrimSuffix(ts.ReadFile(args[0]), "\n"); got != want {
		ts.Fatalf("stdout is %q, want %q", got, want)
	}
}

type serversKey struct{}

// servers are the serve processes that a script started.
type servers struct {
	mu      sync.Mutex
	running map[string]*exec.Cmd
}

func (s *servers) take(name string) *exec.Cmd {
	s.mu.Lock()
	defer s.mu.Unlock()
	cmd := s.running[name]
	delete(s.running, name)
	return cmd
}

// start implements the script command "start NAME ARGS…". It runs a serve on a free port, with its data in the folder
// NAME, waits until it answers, and sets NAME_URL, NAME_DIRECTORY, NAME_ENDPOINT and NAME_ID.
func start(ts *testscript.TestScript, neg bool, args []string) {
	name := args[0]
	server, err := startServe(ts.MkAbs(name), args[1:], scriptEnv(ts))
	ts.Check(err)
	info := server.info
	if info.Profile == "local" && !slices.Contains(args, "--directory") {
		ts.Check(server.awaitListing())
	}
	s := ts.Value(serversKey{}).(*servers)
	s.mu.Lock()
	s.running[name] = server.Cmd
	s.mu.Unlock()
	ts.Defer(func() {
		if cmd := s.take(name); cmd != nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
	})
	ts.Setenv(name+"_URL", info.URL)
	ts.Setenv(name+"_PORT", info.Address)
	ts.Setenv(name+"_DIRECTORY", info.Directory)
	ts.Setenv(name+"_ENDPOINT", info.Endpoint)
	ts.Setenv(name+"_ID", string(info.AgentID))
	ts.Setenv(name+"_OWNER", info.OwnerAPI)
}

// scriptEnv returns the environment of a script, without the default data directory of its commands.
func scriptEnv(ts *testscript.TestScript) []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "SystemRoot", "GORACE", "GOGC", envTestServer} {
		env = append(env, name+"="+ts.Getenv(name))
	}
	if secret := ts.Getenv(config.EnvPassphrase); secret != "" {
		env = append(env, config.EnvPassphrase+"="+secret)
	}
	return env
}

// lockedBuffer collects the output of a process. It may be read while the process runs.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// serveProcess is a serve in a process of its own.
type serveProcess struct {
	*exec.Cmd
	info daemon.ServeInfo
	log  *lockedBuffer
}

// startServe starts this test binary as agentmesh serve and reads the line with its addresses.
func startServe(data string, args, env []string) (*serveProcess, error) {
	cmd := exec.Command(agentmeshBinary(env), append([]string{"serve", "--json", "--data", data, "--listen", "127.0.0.1:0"}, args...)...)
	cmd.Dir, cmd.Env = filepath.Dir(data), env
	s := &serveProcess{Cmd: cmd, log: &lockedBuffer{}}
	cmd.Stderr = s.log
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &s.info)
	}
	if err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		return nil, fmt.Errorf("serve did not start: %w\n%s", err, s.log)
	}
	return s, nil
}

// awaitListing waits until the server's own directory lists its agent. It reads the list, because a card can be read by
// its id shortly before the list has it. The server waits for this, too, but only for a few seconds, which may be too
// short on a busy machine.
func (s *serveProcess) awaitListing() error {
	if s.info.Directory == "" || s.info.AgentID == "" {
		return nil
	}
	for end := time.Now().Add(time.Minute); ; <-time.After(20 * time.Millisecond) {
		resp, err := http.Get(s.info.Directory + "/agents?limit=100")
		if err == nil {
			var list []byte
			list, err = client.ReadAll(resp, 1<<20)
			if bytes.Contains(list, []byte(s.info.AgentID)) {
				return nil
			}
			err = errors.Join(err, errors.New("the agent is not in the list"))
		}
		if time.Now().After(end) {
			return fmt.Errorf("the directory does not list %s: %w", s.info.AgentID, err)
		}
	}
}

// agentmeshBinary returns the copy of this test binary that testscript put first in PATH under the command's name.
func agentmeshBinary(env []string) string {
	path, _ := config.Lookup(env, "PATH")
	for _, dir := range filepath.SplitList(path) {
		for _, name := range []string{"agentmesh", "agentmesh.exe"} {
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
				return filepath.Join(dir, name)
			}
		}
	}
	return "agentmesh"
}

// halt implements the script command "halt NAME", which interrupts a serve and checks that it exits without an error,
// and "halt -kill NAME", which kills it.
func halt(ts *testscript.TestScript, neg bool, args []string) {
	kill := args[0] == "-kill"
	name := args[len(args)-1]
	cmd := ts.Value(serversKey{}).(*servers).take(name)
	if cmd == nil {
		ts.Fatalf("no serve named %s runs", name)
	}
	if kill {
		ts.Check(cmd.Process.Kill())
		cmd.Wait()
		return
	}
	ts.Check(cmd.Process.Signal(os.Interrupt))
	ts.Check(cmd.Wait())
}

// request implements the script command "http METHOD URL [FILE] [HEADER: VALUE]…". It makes a request and writes status
// and body to the file "answer". Except for the owner API, request and answer must conform to openapi.yaml.
func request(ts *testscript.TestScript, neg bool, args []string) {
	var sent string
	if len(args) > 2 && args[2] != "" {
		sent = ts.ReadFile(args[2])
	}
	req, err := http.NewRequest(args[0], args[1], strings.NewReader(sent))
	ts.Check(err)
	if sent != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if len(args) > 3 {
		for _, h := range args[3:] {
			name, value, _ := strings.Cut(h, ": ")
			req.Header.Set(name, value)
		}
	}
	resp, err := http.DefaultClient.Do(req)
	ts.Check(err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	ts.Check(err)
	answer := fmt.Sprintf("%d\n%s\n", resp.StatusCode, data)
	ts.Logf("%s", answer)
	if !strings.HasPrefix(req.URL.Path, "/owner") {
		ts.Check(apitest.Compare(req, []byte(sent), resp.StatusCode, resp.Header, data))
	}
	ts.Check(os.WriteFile(ts.MkAbs("answer"), []byte(answer), 0o600))
}

// eventually implements the script command "eventually PATTERN COMMAND…". It repeats a command until its output
// matches.
func eventually(ts *testscript.TestScript, neg bool, args []string) {
	pattern := regexp.MustCompile("(?m)" + args[0])
	deadline := time.After(time.Minute)
	for {
		err := ts.Exec(args[1], args[2:]...)
		out := ts.ReadFile("stdout")
		if err == nil && pattern.MatchString(out) {
			return
		}
		select {
		case <-time.After(150 * time.Millisecond): // a process costs about as much CPU time
		case <-deadline:
			ts.Fatalf("%q never matched, last: %v\n%s", args[0], err, out)
		}
	}
}

// capture implements the script command "capture NAME PATTERN". It sets a variable to the first group of the pattern in
// the last standard output.
func capture(ts *testscript.TestScript, neg bool, args []string) {
	m := regexp.MustCompile("(?m)" + args[1]).FindStringSubmatch(ts.ReadFile("stdout"))
	if len(m) < 2 {
		ts.Fatalf("%q does not match %q", args[1], ts.ReadFile("stdout"))
	}
	ts.Setenv(args[0], m[1])
}

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !done(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited two minutes for %s", what)
		}
	}
}
