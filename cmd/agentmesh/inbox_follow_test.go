package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/owner"
)

// TestFollowShowsReleased: inbox list --follow shows a held item when the owner releases it, also one that came before
// the id in --after, and refuses an --after that is no id.
func TestFollowShowsReleased(t *testing.T) {
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "AGENTMESH_") })
	home := filepath.Join(t.TempDir(), "sarah")
	sarah, err := startServe(home, nil, env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sarah.Process.Signal(os.Interrupt); sarah.Wait() })
	away := filepath.Join(t.TempDir(), "chris")
	chris, err := startServe(away, []string{"--roles=node", "--directory=" + sarah.info.Directory}, env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { chris.Process.Signal(os.Interrupt); chris.Wait() })
	command := func(data string, args ...string) string {
		t.Helper()
		var out bytes.Buffer
		run(t.Context(), append([]string{"--data", data}, args...), strings.NewReader(""), &out, &out)
		return out.String()
	}
	for range 100 { // the node registers by itself, soon after its start
		if strings.Contains(command(home, "status", "--json"), `"state": "registered"`) {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	sent := command(away, "send", string(sarah.info.AgentID), "hello from afar", "--wait")
	var held owner.List[owner.Item]
	if err := json.Unmarshal([]byte(command(home, "inbox", "list", "--json")), &held); err != nil || len(held.Items) != 1 || held.Items[0].State != owner.ItemHeld {
		t.Fatalf("the inbox has %+v, %v, want a held item; send says: %s", held, err, sent)
	}
	if out := command(home, "inbox", "list", "--after", "nonsense"); !goldentest.Says(t, "--after nonsense", out) {
		t.Errorf("--after nonsense: %s", out)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var plain, after lockedBuffer
	var followers sync.WaitGroup
	defer followers.Wait()
	defer cancel()
	for out, more := range map[*lockedBuffer][]string{&plain: nil, &after: {"--after", held.Items[0].ID}} {
		followers.Go(func() {
			run(ctx, append([]string{"--data", home, "--json", "inbox", "list", "--follow"}, more...), strings.NewReader(""), out, out)
		})
	}
	for range 100 {
		if time.Sleep(100 * time.Millisecond); strings.Contains(plain.String(), `"held"`) {
			break
		}
	}
	time.Sleep(300 * time.Millisecond) // the other one has no output by which to know that it follows
	var asks owner.List[owner.Approval]
	if err := json.Unmarshal([]byte(command(home, "approvals", "list", "--json")), &asks); err != nil || len(asks.Items) != 1 {
		t.Fatalf("questions: %+v, %v", asks, err)
	}
	command(home, "approvals", "approve", asks.Items[0].ID)
	for range 100 {
		if time.Sleep(100 * time.Millisecond); strings.Contains(plain.String(), `"new"`) && strings.Contains(after.String(), `"new"`) {
			return
		}
	}
	t.Errorf("after the release, plain follow has\n%s\nand follow after the item has\n%s", plain.String(), after.String())
}
