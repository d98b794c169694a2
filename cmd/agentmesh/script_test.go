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
)

// TestScripts runs one script per command or flow; each says what a user types, sees and gets as exit code.
func TestScripts(t *testing.T) {
	testscript.Run(t, scriptParams("testdata"))
}

// scriptParams are how the scripts in dir run.
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
			env.Setenv("GORACE", os.Getenv("GORACE"))
			fixtures, err := filepath.Abs(fixtures)
			if err != nil {
				return err
			}
			env.Setenv("FIXTURES", fixtures)
			env.Values[referencesKey{}] = map[string]*meshtest.Reference{}
			env.Values[serversKey{}] = &servers{running: map[string]*exec.Cmd{}}
			return nil
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
		},
	}
}

// reference NAME starts a stand-in for the reference directory, which gives every card an id of its own, and puts its base
// URL into NAME_DIRECTORY. reference -restart NAME makes it forget every card.
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

// exits CODE COMMAND… runs a command and checks its exit code. Both outputs are shown in the log.
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

// exactly FILE compares standard output with a file but for the file's last line break.
func exactly(ts *testscript.TestScript, neg bool, args []string) {
	if got, want := ts.ReadFile("stdout"), strings.TrimSuffix(ts.ReadFile(args[0]), "\n"); got != want {
		ts.Fatalf("stdout is %q, want %q", got, want)
	}
}

// serversKey finds the servers of a script.
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

// start NAME ARGS… runs a serve with its data in a folder of that name on a free port, waits until it works, and
// sets NAME_URL, NAME_DIRECTORY, NAME_ENDPOINT and NAME_ID.
func start(ts *testscript.TestScript, neg bool, args []string) {
	name := args[0]
	server, err := startServe(ts.MkAbs(name), args[1:], scriptEnv(ts))
	ts.Check(err)
	where := server.where
	if where.Profile == "local" && !slices.Contains(args, "--directory") {
		ts.Check(server.awaitListed())
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
	ts.Setenv(name+"_URL", where.URL)
	ts.Setenv(name+"_PORT", where.Address)
	ts.Setenv(name+"_DIRECTORY", where.Directory)
	ts.Setenv(name+"_ENDPOINT", where.Endpoint)
	ts.Setenv(name+"_ID", string(where.AgentID))
	ts.Setenv(name+"_OWNER", where.OwnerAPI)
}

// scriptEnv is the environment of a script without the data directory that its commands default to.
func scriptEnv(ts *testscript.TestScript) []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "SystemRoot", "GORACE"} {
		env = append(env, name+"="+ts.Getenv(name))
	}
	if secret := ts.Getenv(config.EnvPassphrase); secret != "" {
		env = append(env, config.EnvPassphrase+"="+secret)
	}
	return env
}

// served is a serve in a process of its own. Its log may be read once it has ended.
type served struct {
	*exec.Cmd
	where daemon.Where
	log   *bytes.Buffer
}

// startServe starts this test binary as agentmesh serve and reads the line in which it says where it runs.
func startServe(data string, args, env []string) (*served, error) {
	cmd := exec.Command(agentmeshBinary(env), append([]string{"serve", "--json", "--data", data, "--listen", "127.0.0.1:0"}, args...)...)
	cmd.Dir, cmd.Env = filepath.Dir(data), env
	s := &served{Cmd: cmd, log: &bytes.Buffer{}}
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
		err = json.Unmarshal(line, &s.where)
	}
	if err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		return nil, fmt.Errorf("serve did not start: %w\n%s", err, s.log.Bytes())
	}
	return s, nil
}

// awaitListed waits until the server's own directory lists its agent. The list is asked, because others than the
// registrant may read a card by its id for a moment before lists have it. A server prints its line after some seconds in any
// case, and on a machine that does much else its agent may not be listed by then.
func (s *served) awaitListed() error {
	if s.where.Directory == "" || s.where.AgentID == "" {
		return nil
	}
	for end := time.Now().Add(time.Minute); ; <-time.After(20 * time.Millisecond) {
		resp, err := http.Get(s.where.Directory + "/agents?limit=100")
		if err == nil {
			var list []byte
			list, err = client.ReadAll(resp, 1<<20)
			if bytes.Contains(list, []byte(s.where.AgentID)) {
				return nil
			}
			err = errors.Join(err, errors.New("it is not in the list"))
		}
		if time.Now().After(end) {
			return fmt.Errorf("the directory does not list %s: %w", s.where.AgentID, err)
		}
	}
}

// agentmeshBinary is the copy of this test binary that testscript put first on the path under the command's name.
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

// halt NAME interrupts a serve and wants it to end well; halt -kill NAME kills it.
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

// http METHOD URL [FILE] [HEADER: VALUE]… makes a request and writes status and body to the file "answer". What is
// not of the owner API must be as openapi.yaml says.
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

// eventually PATTERN COMMAND… repeats a command until its standard output matches.
func eventually(ts *testscript.TestScript, neg bool, args []string) {
	pattern := regexp.MustCompile("(?m)" + args[0])
	deadline := time.After(time.Minute)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ts.Exec(args[1], args[2:]...)
		out := ts.ReadFile("stdout")
		if err == nil && pattern.MatchString(out) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			ts.Fatalf("%q never matched, last: %v\n%s", args[0], err, out)
		}
	}
}

// capture NAME PATTERN sets a variable to the first group of a pattern in the last standard output.
func capture(ts *testscript.TestScript, neg bool, args []string) {
	m := regexp.MustCompile("(?m)" + args[1]).FindStringSubmatch(ts.ReadFile("stdout"))
	if len(m) < 2 {
		ts.Fatalf("%q does not match %q", args[1], ts.ReadFile("stdout"))
	}
	ts.Setenv(args[0], m[1])
}
