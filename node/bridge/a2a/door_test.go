package a2a_test

import (
	"context"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/a2a/door/doortest"
	"github.com/agentmesh/agentmesh/node/hook"
)

// TestDoor runs the tests of all back ends of the door.
func TestDoor(t *testing.T) {
	h := serve(t, agent(func(context.Context, hook.Call) (hook.Answer, error) { return hook.Answer{Async: true}, nil }), nil, nil)
	doortest.Run(t, doortest.Target{URL: h.base, Token: h.token("ann"), Lists: true})
}
