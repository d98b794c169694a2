package a2a_test

import (
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge/a2a"
	"github.com/agentmesh/agentmesh/node/owner"
)

// TestExpiry checks that a task fails when its conversation expires without an answer, and that a message afterwards
// opens another conversation in the same context.
func TestExpiry(t *testing.T) {
	t.Parallel()
	short := func(c *node.Config) { c.Idle = time.Second }
	h := serve(t, nil, short, func(c *a2a.Config) { c.Idle = time.Second })
	id := text(h.rpc("ann", "SendMessage", message("m1", `,"contextId":"c"`, "hello", later)), "result.task.id")
	time.Sleep(1100 * time.Millisecond)
	h.restart(nil, short) // a start compares all open tasks
	if v := h.await("ann", id, "TASK_STATE_FAILED"); text(v, "result.status.message.parts.0.text") != "nobody answered in time" {
		t.Errorf("after the expiry: %s", v.JSON())
	}
	v := h.rpc("ann", "SendMessage", message("m2", `,"contextId":"c"`, "hello again", later))
	if text(v, "result.task.contextId") != "c" || text(v, "result.task.id") == id {
		t.Errorf("a message afterwards: %s", v.JSON())
	}
}

// TestEndsByItself checks that an open task follows its conversation without a message and without a restart.
func TestEndsByItself(t *testing.T) {
	t.Parallel()
	short := func(c *node.Config) { c.Idle = 3 * time.Second }
	h := serve(t, nil, short, func(c *a2a.Config) { c.Idle = 3 * time.Second })
	v := h.rpc("ann", "SendMessage", message("m1", "", "hello", later))
	id, began := text(v, "result.task.id"), time.Now()
	next := h.bridge.MakeDue(t, id)
	if wait := next.Sub(began); wait < time.Second || wait > 3*time.Second {
		t.Errorf("an open task is compared again %v after its message, want when the conversation expires", wait)
	}
	if v := h.get("ann", id); text(v, "result.status.state") != "TASK_STATE_SUBMITTED" {
		t.Errorf("a comparison before the end: %s", v.JSON())
	}
	h.await("ann", id, "TASK_STATE_FAILED")
	if next := h.bridge.MakeDue(t, id); !next.IsZero() {
		t.Errorf("a task that has ended is compared again at %v", next)
	}

	id = text(h.rpc("ann", "SendMessage", message("m2", `,"contextId":"c2"`, "hello", later)), "result.task.id")
	list, err := h.node.OwnerAPI().ListConversations(t.Context(), owner.Query{Limit: 1})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%d conversations, %v", len(list.Items), err)
	}
	if err := h.node.OwnerAPI().DeleteConversation(t.Context(), string(list.Items[0].ID), ""); err != nil {
		t.Fatal(err)
	}
	h.await("ann", id, "TASK_STATE_CANCELED")
}
