package hook_test

import (
	"testing"

	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestTryUnknownAction checks that a trial warns of a payload that no agent sends with the intent.
func TestTryUnknownAction(t *testing.T) {
	for _, action := range []string{"deliver", "accept"} {
		payload := hook.TextPayload(wire.Deliver, "hello").With("action", wire.Text(action))
		call, err := hook.NewTrialCall("am_sarah", wire.Deliver, payload)
		if err != nil {
			t.Fatal(err)
		}
		got := hook.Try(t.Context(), hook.Exec{Argv: []string{"/bin/cat", "/dev/null"}}, call)
		if !got.OK || !goldentest.Says(t, action, got.Verdict) {
			t.Errorf("action %s: %v, %s", action, got.OK, got.Verdict)
		}
	}
}
