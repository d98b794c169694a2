//go:build slow

package main

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
)

// onInstances has the scripts that TestScriptsOnInstances plays.
var onInstances = map[string]struct {
	end  string // the line before which the script stops, because what follows needs a database file or stops an instance
	then string // what is played instead
	drop string // lines that need the answer of a hook at once, which only the instance that runs the hooks can give
}{
	"walkthrough": { // with an approval and a hook
		end:  "# Both nodes stop",
		drop: " --wait\nstdout 'reply: accepted'",
	},
	"relay": {end: "# both are connected", then: `
# A message waits in the mailbox if its sender and the poll of its recipient are at two instances.
exec agentmesh send $sarah_ID --intent mesh.schedule @propose.json
capture conv 'in (conv_\S+)'
eventually 'they proposed another time: ' agentmesh conversations show $conv
exec agentmesh reply $conv @accept.json
eventually 'completed' agentmesh conversations show $conv
eventually 'completed' agentmesh conversations show $conv --data $WORK/sarah
# Each instance finds itself behind the proxy, which also sends requests to the others.
exec agentmesh doctor --data $WORK/hub --set roles=directory --set public_url=$hub_URL --set network.allow_private=127.0.0.0/8
stdout '(ok|warn) +clients +the pro'
exec agentmesh doctor --data $WORK/hub --set roles=directory --set public_url=$hub_URL --set network.allow_private=127.0.0.0/8
stdout '(ok|warn) +clients +the pro'
`},
	"agreements": {},
	"ownmail":    {},
}

// TestScriptsOnInstances plays scripts with three instances for each serve, which take turns.
func TestScriptsOnInstances(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t, "max_connections=600")
	dir := t.TempDir()
	for name, part := range onInstances {
		script, err := txtar.ParseFile(filepath.Join("testdata", name+".txtar"))
		if err != nil {
			t.Fatal(err)
		}
		if part.end != "" {
			before, _, found := strings.Cut(string(script.Comment), part.end)
			if !found {
				t.Fatalf("%s.txtar lacks the line %q", name, part.end)
			}
			script.Comment = []byte(before + part.then)
		}
		before, after, found := strings.Cut(string(script.Comment), part.drop)
		if !found {
			t.Fatalf("%s.txtar lacks the lines %q", name, part.drop)
		}
		script.Comment = []byte(before + after)
		if err := os.WriteFile(filepath.Join(dir, name+".txtar"), txtar.Format(script), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	params := scriptParams(dir)
	params.Cmds["start"] = startInstances
	setup := params.Setup
	params.Setup = func(env *testscript.Env) error {
		env.Setenv(envTestServer, server.URL("postgres"))
		turn := filepath.Join(env.WorkDir, "turn")
		env.Setenv(envTestTurn, turn)
		if err := os.WriteFile(turn, nil, 0o600); err != nil {
			return err
		}
		return setup(env)
	}
	testscript.Run(t, params)
}

// startInstances implements the script command "start NAME ARGS…" for three instances behind a reverse proxy.
func startInstances(ts *testscript.TestScript, neg bool, args []string) {
	var mu sync.Mutex
	var running []*serveProcess
	turn := 0
	front := newFront(func() *serveProcess { // instances ask it while the later ones still start
		mu.Lock()
		defer mu.Unlock()
		if len(running) == 0 {
			return new(serveProcess) // without an address: the front answers 502
		}
		turn++
		return running[turn%len(running)]
	})
	ts.Defer(front.Close)
	first := ts.MkAbs(args[0])
	flags := append([]string{"--set=public_url=" + front.URL, "--set=network.allow_private=127.0.0.0/8"}, args[1:]...)
	for _, mark := range []string{"", instanceMarks, instanceMarks + instanceMarks} {
		if mark != "" {
			if _, err := os.Stat(filepath.Join(first, "agentmesh.yaml")); err == nil {
				flags = append(flags, "--config="+filepath.Join(first, "agentmesh.yaml"))
			}
			ts.Check(copyKeys(first, first+mark))
		}
		server, err := startServe(first+mark, flags, scriptEnv(ts))
		ts.Check(err)
		ts.Defer(func() {
			server.Process.Kill()
			server.Wait()
		})
		mu.Lock()
		running = append(running, server)
		mu.Unlock()
	}
	info := running[0].info
	ts.Setenv(args[0]+"_URL", front.URL)
	ts.Setenv(args[0]+"_DIRECTORY", info.Directory)
	ts.Setenv(args[0]+"_ENDPOINT", info.Endpoint)
	ts.Setenv(args[0]+"_ID", string(info.AgentID))
}
