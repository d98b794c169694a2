//go:build slow

package main

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/meshtest"
)

// TestDamagedRowsAreNotServed changes a bit of a card, a message and an inbox item in the database. The process
// answers requests for them with 503 and serves everything else. check names the damaged rows (THREATS 37).
func TestDamagedRowsAreNotServed(t *testing.T) {
	t.Parallel()
	const whole, flipped = "nobody-reads-this", "nobody-reads-thiq"
	f := frontend{t: t, header: "X-Forwarded-For", client: http.DefaultClient, serve: &tlsServe{t: t, data: filepath.Join(t.TempDir(), "data")}}
	serve := func() {
		t.Helper()
		f.serve.run([]string{"--set", "access.mode=open"})
		f.address = "http://" + f.serve.info.Address
	}
	get := func(want int, path string) string {
		t.Helper()
		status, body := f.call(http.MethodGet, "127.0.0.1", path, nil)
		if status != want || strings.Contains(body, "nobody-reads") && status != http.StatusOK {
			t.Errorf("GET %s: %d %s, want %d", path, status, body, want)
		}
		return body
	}
	serve()
	healthy := f.register("127.0.0.1", "healthy")
	damaged := f.register("127.0.0.1", whole)
	const inbox = "inbox"
	for _, body := range []string{"hello", whole} {
		raw := f.message(healthy.ID, meshtest.Key("healthy"), body)
		if status, answer := f.post("127.0.0.1", "/agentmesh", raw); status != http.StatusOK {
			t.Fatalf("a message is answered %d %s", status, answer)
		}
	}
	ids := regexp.MustCompile(`"id": "(in_[^"]+)"`).FindAllStringSubmatch(string(runAt(t, f.serve.data, 0, inbox, "list", "--json")), -1)
	if len(ids) != 2 {
		t.Fatalf("the inbox has %v, want two items", ids)
	}
	get(http.StatusOK, "/v1/agents/"+string(damaged.ID))
	f.serve.stop()

	file := filepath.Join(f.serve.data, datadir.FileDatabase)
	data, err := os.ReadFile(file)
	if err != nil || !bytes.Contains(data, []byte(whole)) {
		t.Fatalf("the database has no %q, %v", whole, err)
	}
	if err := os.WriteFile(file, bytes.ReplaceAll(data, []byte(whole), []byte(flipped)), 0o600); err != nil {
		t.Fatal(err)
	}

	serve()
	get(http.StatusOK, "/v1/agents/"+string(healthy.ID))
	if body := get(http.StatusServiceUnavailable, "/v1/agents/"+string(damaged.ID)); !strings.Contains(body, `"retry":true`) {
		t.Errorf("the damaged card is answered %s", body)
	}
	if list := get(http.StatusOK, "/v1/agents?limit=100"); !strings.Contains(list, string(healthy.ID)) || strings.Contains(list, string(damaged.ID)) {
		t.Errorf("the list is %s, want it without the damaged card", list)
	}
	refused := 0
	for _, id := range ids {
		cmd := agentmeshAt(f.serve.data, inbox, "show", id[1])
		if out, err := cmd.CombinedOutput(); err != nil {
			refused++
			if cmd.ProcessState.ExitCode() != exit.TryAgain || bytes.Contains(out, []byte("nobody-reads")) {
				t.Errorf("the damaged item is answered %d %s", cmd.ProcessState.ExitCode(), out)
			}
		}
	}
	if refused != 1 {
		t.Errorf("%d of 2 items are refused, want the damaged one", refused)
	}
	f.serve.stop()
	out := runAt(t, f.serve.data, exit.No, "check")
	for _, row := range []string{"cards", "convs", "records"} {
		if !bytes.Contains(out, []byte("of "+row)) {
			t.Errorf("check does not name a row of %s: %s", row, out)
		}
	}
}

// runAt runs a command on a data directory, checks its exit code, and returns its output.
func runAt(t *testing.T, data string, exit int, args ...string) []byte {
	t.Helper()
	cmd := agentmeshAt(data, args...)
	out, _ := cmd.CombinedOutput() // the exit code is checked below
	if code := cmd.ProcessState.ExitCode(); code != exit {
		t.Fatalf("agentmesh %v exits %d, want %d: %s", args, code, exit, out)
	}
	return out
}
