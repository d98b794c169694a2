package a2a_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/wire"
)

// slowMesh waits after it has accepted a close.
type slowMesh struct {
	bridge.Mesh
	accepted func()
}

func (m slowMesh) Accept(ctx context.Context, in bridge.Inbound) (bridge.Outcome, error) {
	out, err := m.Mesh.Accept(ctx, in)
	if in.Payload.GetStr("action") == wire.ActionClose {
		m.accepted()
	}
	return out, err
}

// TestCancelOfAHookThatFails checks that the task is canceled if its hook fails because the caller has canceled, also
// if the bridge learns of the failure first.
func TestCancelOfAHookThatFails(t *testing.T) {
	closed := make(chan struct{})
	h := serve(t, agent(func(context.Context, hook.Call) (hook.Answer, error) {
		<-closed
		return hook.Answer{}, errors.New("nobody waits any more")
	}), nil, nil)
	h.stop()
	h.wrap = func(m bridge.Mesh) bridge.Mesh {
		return slowMesh{m, func() {
			close(closed)
			<-time.After(300 * time.Millisecond)
		}}
	}
	h.start()
	id := text(h.rpc("ann", "SendMessage", message("m1", "", "a", later)), "result.task.id")
	if v := h.rpc("ann", "CancelTask", `{"id":"`+id+`"}`); text(v, "result.status.state") != "TASK_STATE_CANCELED" {
		t.Errorf("cancel: %s", v.JSON())
	}
}

// TestCancel checks that a cancel ends the task and the conversation, and that the context goes on in another
// conversation.
func TestCancel(t *testing.T) {
	h := serve(t, nil, nil, nil)
	id := text(h.rpc("ann", "SendMessage", message("m1", `,"contextId":"c"`, "a", later)), "result.task.id")
	if v := h.rpc("ann", "CancelTask", `{"id":"`+id+`"}`); text(v, "result.status.state") != "TASK_STATE_CANCELED" {
		t.Fatalf("cancel: %s", v.JSON())
	}
	if v := h.rpc("ann", "CancelTask", `{"id":"`+id+`"}`); text(v, "error.data.0.reason") != "TASK_NOT_CANCELABLE" {
		t.Errorf("cancel again: %s", v.JSON())
	}
	second := text(h.rpc("ann", "SendMessage", message("m2", `,"contextId":"c"`, "b", later)), "result.task.id")
	if status, _, body := h.request("ann", "POST", h.base+"/tasks/"+second+":cancel", ""); status != 200 || text(parse(t, body), "status.state") != "TASK_STATE_CANCELED" {
		t.Errorf("cancel over HTTP+JSON: %d %s", status, body)
	}
}
