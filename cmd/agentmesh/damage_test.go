//go:build slow

package main

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// TestDamagedRowsAreNotServed changes a bit of a card, a message and an inbox item in the database. The process
// answers requests for them with 503 and serves everything else. check names the damaged rows (THREATS 37).
func TestDamagedRowsAreNotServed(t *testing.T) {
	t.Parallel()
	const whole, flipped = "xqzjwvky", "xqzjwvkz" // no part of them is in another text, so a packed row holds all of it
	f := frontend{t: t, header: "X-Forwarded-For", client: http.DefaultClient, serve: &tlsServe{t: t, data: filepath.Join(t.TempDir(), "data")}}
	serve := func() {
		t.Helper()
		f.serve.run([]string{"--set", "access.mode=open"})
		f.address = "http://" + f.serve.info.Address
	}
	get := func(want int, path string) string {
		t.Helper()
		status, body := f.call(http.MethodGet, "127.0.0.1", path, nil)
		if status != want || strings.Contains(body, "xqzjwvk") && status != http.StatusOK {
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
			if cmd.ProcessState.ExitCode() != exit.TryAgain || bytes.Contains(out, []byte("xqzjwvk")) {
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

// TestMissingRowsAreFound changes the lowest set bit of the number of elements in each branch page, which hides many of 500
// replay records without damage to any row. check and serve notice each change, and neither crashes (THREATS 49).
func TestMissingRowsAreFound(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	mustRun(t, data, "init")
	file := datadir.Dir(data).Path(datadir.FileDatabase)
	db, err := bolt.Open(t.Context(), file, bolt.Config{})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for i := range 500 {
		answer := make([]byte, 300)
		rand.Read(answer) // so that the row is not packed
		replay := &store.Replay{Sender: "am_peer", MessageID: fmt.Sprint("msg_", i), Answer: answer, Expires: now.AddDate(1, 0, 0)}
		if _, err := db.Steps().Apply(t.Context(), store.Step{Now: now, Replay: replay}); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	mustRun(t, data, "compact") // leaves no older branch pages
	mustRun(t, data, "check")
	sound, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const pageSize, branch = 8 << 10, 1
	tried := 0
	for n := range len(sound) / pageSize {
		page := bytes.Clone(sound[n*pageSize:][:pageSize])
		if binary.NativeEndian.Uint64(page) != uint64(n) || binary.NativeEndian.Uint16(page[8:]) != branch {
			continue
		}
		tried++
		count := binary.NativeEndian.Uint16(page[10:])
		if binary.NativeEndian.PutUint16(page[10:], count&(count-1)); count&(count-1) == 0 {
			t.Fatalf("a page without any of its %d elements is easy to notice; take another number of records", count)
		}
		if err := os.WriteFile(file, slices.Concat(sound[:n*pageSize], page, sound[(n+1)*pageSize:]), 0o600); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			if out := runAt(t, data, exit.No, "check"); !bytes.Contains(out, []byte("replays has ")) {
				t.Errorf("check with a changed bit in page %d: %s", n, out)
			}
		}
		if out := runAt(t, data, exit.Config, "serve", "--listen", "127.0.0.1:0"); !bytes.Contains(out, []byte("replays has ")) {
			t.Errorf("serve with a changed bit in page %d: %s", n, out)
		}
	}
	if tried == 0 {
		t.Error("the database has no branch page")
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
