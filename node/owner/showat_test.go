package owner

import (
	"testing"

	"github.com/agentmesh/agentmesh/node/httpapi"
)

// TestFailureIsForTheOwner: the agent's door does not show how a hook failed, because its standard error may have
// secrets of the owner.
func TestFailureIsForTheOwner(t *testing.T) {
	item := Item{ID: "in_1", Failure: &HookFailure{Stderr: "token hunter2"}}
	if got := item.showAt(httpapi.DoorOfAgent); got.Failure != nil || got.ID != "in_1" {
		t.Errorf("the agent sees %+v", got)
	}
	for _, door := range []string{"cli", "page", "api"} {
		if got := item.showAt(door); got.Failure == nil {
			t.Errorf("the owner at %s does not see the failure", door)
		}
	}
}
