//go:build slow

package a2a_test

import (
	"testing"

	"github.com/agentmesh/agentmesh/acl"
)

// TestPushSurvives checks that a notification that failed is sent again, also after a restart.
func TestPushSurvives(t *testing.T) {
	t.Parallel()
	h := serve(t, echo(t), approval, nil)
	hook := newWebhook(t)
	hook.fail.Store(1 << 20)
	id := text(h.rpc("ann", "SendMessage", message("m1", "", "hello", later+`,"taskPushNotificationConfig":{"url":"`+hook.URL+`"}`)), "result.task.id")
	h.decide(acl.Approve)
	h.await("ann", id, "TASK_STATE_COMPLETED")
	hook.fail.Store(0)
	h.restart(echo(t), approval)
	v := hook.await(t, "TASK_STATE_COMPLETED")
	if text(v, "task.artifacts.0.parts.0.text") != "you said: hello" {
		t.Errorf("after a restart: %s", v.JSON())
	}
}
