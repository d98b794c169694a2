//go:build clockstep

package node_test

import (
	"bytes"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// TestClockStep: while the clock is wrong, no question expires and no stored answer is lost. When the clock is right
// again, no sender is locked out.
func TestClockStep(t *testing.T) {
	storetest.ClockSteps(t, func(t *testing.T, by time.Duration) {
		mesh := meshtest.InMemory(t)
		chris, sarah := mesh.Stranger("chris"), mesh.Node("sarah", mode(acl.Approval))
		sarah.Start()
		held := chris.Sign(in("conv_held", chris.Draft(sarah.ID(), wire.Deliver, hello)))
		must(t, sarah.Post(held), http.StatusAccepted)
		ask := theAsk(t, sarah)
		time.Sleep(time.Until(ask.Expires) - 30*time.Minute)

		storetest.StepClock(t, by)
		time.Sleep(25 * time.Minute) // several sweeps and alarms
		storetest.StepClock(t, 0)

		decide(t, sarah, ask, acl.Approve)
		answer := sarah.Post(held)
		must(t, answer, http.StatusOK)

		storetest.StepClock(t, by)
		for range 60 { // the messages of a conversation for an hour
			sarah.Post(chris.Sign(in("conv_busy", chris.Draft(sarah.ID(), wire.Deliver, hello))))
		}
		storetest.StepClock(t, 0)
		if again := sarah.Post(held); again.Status != http.StatusOK || !bytes.Equal(again.Body, answer.Body) {
			t.Errorf("a repeat: %d %s, want the stored answer", again.Status, again.Body)
		}
		must(t, sarah.Post(chris.Sign(in("conv_other", chris.Draft(sarah.ID(), wire.Deliver, hello)))), http.StatusOK)
		time.Sleep(2 * time.Minute)
		must(t, sarah.Post(chris.Sign(in("conv_busy", chris.Draft(sarah.ID(), wire.Deliver, hello)))), http.StatusOK)
	})
}

// TestClockStepOfTurns (AM-92): a clock that steps a day gives the agent at most the turns of one more day, and the turns
// of before count again when it is right.
func TestClockStepOfTurns(t *testing.T) {
	storetest.ClockSteps(t, func(t *testing.T, by time.Duration) {
		mesh := meshtest.InMemory(t)
		var runs atomic.Int32
		chris, sarah := mesh.Stranger("chris"), mesh.Node("sarah", bounded(&runs, func(a *rules.Autonomy) { a.Peer = 3 }))
		sarah.Start()
		for _, step := range []time.Duration{0, 25 * by, 0, 25 * by, 0} {
			storetest.StepClock(t, step)
			for range 5 {
				sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello)))
			}
			time.Sleep(20 * time.Minute) // several sweeps
		}
		want := int32(3)
		if by > 0 {
			want = 6
		}
		if n := runs.Load(); n != want || len(pendingAsks(t, sarah)) != 1 {
			t.Errorf("%d runs and %d questions, want %d runs", n, len(pendingAsks(t, sarah)), want)
		}
	})
}
