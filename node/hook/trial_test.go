package hook_test

import (
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestTryUnknownAction checks that a trial warns of a payload that no agent sends with the intent.
func TestTryUnknownAction(t *testing.T) {
	for action, known := range map[string]bool{"deliver": true, "accept": false} {
		payload := hook.TextPayload(wire.Deliver, "hello").With("action", wire.Text(action))
		call, err := hook.NewTrialCall("am_sarah", wire.Deliver, payload)
		if err != nil {
			t.Fatal(err)
		}
		got := hook.Try(t.Context(), hook.Exec{Argv: []string{"/bin/cat", "/dev/null"}}, call)
		if warns := strings.Contains(got.Verdict, "the intent does not define the action"); !got.OK || warns == known {
			t.Errorf("action %s: %v, %s", action, got.OK, got.Verdict)
		}
	}
}
