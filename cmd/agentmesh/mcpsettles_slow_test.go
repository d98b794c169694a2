//go:build slow

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/node/owner"
)

// TestMCPSettles: an agent settles an appointment with a program behind a hook, in at most 6 calls and without either owner.
func TestMCPSettles(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "program")
	// the call has the whole conversation, so the newest step is looked for first
	script := "#!/bin/sh\ncase $(cat) in\n" + `*'"payload":{"action":"accept"'*) echo '{"payload":{"action":"accept"}}' ;;` + "\n" +
		`*) echo '{"payload":{"action":"counter","event":{"selected_time":"2036-02-21T10:00:00Z","duration":"45m"}}}' ;;` + "\nesac\n"
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	s := startMCPWith(t, "[{intent: mesh.schedule, exec: ['"+program+"']}]")
	sarah := s.call("mesh_find_agents", map[string]any{"query": "Sarah"})["agents"].([]any)[0].(map[string]any)["agent"]
	event := map[string]any{"title": "Coffee", "proposed_times": []string{"2036-02-21T10:00:00Z", "2036-02-21T14:00:00Z"}, "duration": "30m"}
	sent := s.call("mesh_send", map[string]any{"to": sarah, "intent": "mesh.schedule", "data": map[string]any{"action": "propose", "event": event}, "wait_seconds": 20})
	if text, _ := json.Marshal(sent); sent["status"] != "replied" || !strings.Contains(string(text), "45m") {
		t.Fatalf("sent = %s", text)
	}
	accepted := s.call("mesh_reply", map[string]any{"conversation": sent["conversation"], "data": map[string]any{"action": "accept"}, "wait_seconds": 20})
	if accepted["status"] != "replied" {
		t.Fatalf("accepted = %v", accepted)
	}
	for _, side := range []string{s.mine, s.theirs} {
		waitFor(t, "the agreed event at "+side, func() bool {
			view, err := daemon.Fetch(t.Context(), ownerClient(t, side), owner.Call[daemon.CalendarView]{Method: "GET", Path: "calendar"})
			return err == nil && len(view.Agreed) == 1 && view.Agreed[0].Duration == 45*time.Minute
		})
	}
	if s.calls > 6 {
		t.Errorf("the session took %d calls", s.calls)
	}
	t.Logf("%d calls, %d bytes", s.calls, s.size)
}
