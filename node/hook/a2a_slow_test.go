//go:build slow

package hook_test

import (
	"testing"

	"github.com/agentmesh/agentmesh/node/hook"
)

// TestA2ALostAnswers: a lost answer about a task is asked for again, and the message is not sent again.
func TestA2ALostAnswers(t *testing.T) {
	t.Parallel()
	h, g := a2aHook(t, &a2aGateway{final: status("COMPLETED", "ok"), polls: 2, lose: 2})
	var states []hook.TaskState
	call := aCall(t)
	call.Progress = func(r hook.Result) { states = append(states, r.Task.State) }
	got, err := h.Handle(t.Context(), call)
	if err != nil || got.Payload == nil || len(g.ids) != 1 || len(states) == 0 {
		t.Errorf("Handle = %+v, %v, messages %v, progress %v", got, err, g.ids, states)
	}
}
