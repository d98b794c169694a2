package daemon_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestHookEnvironment: the environment of a hook names the agent's door, although the configuration has none and no
// serve runs, so that a command in the hook is never the owner's (THREATS row 48).
func TestHookEnvironment(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the hook is a shell script")
	}
	src := config.Source{Settings: []config.Setting{{Key: "hooks", Value: `[{intent: "*", exec: [sh, -c, "env | grep AGENTMESH_ >&2; exit 1"]}]`}}}
	payload, err := wire.Parse([]byte(`{"action":"deliver","message":{"body":"hello"}}`))
	if err != nil {
		t.Fatal(err)
	}
	_, trial, err := daemon.TryHook(t.Context(), src, wire.Deliver, payload)
	if err != nil || !strings.HasPrefix(trial.Stderr, config.EnvAgentSocket+"=/") {
		t.Errorf("%v, environment %q", err, trial.Stderr)
	}
}
