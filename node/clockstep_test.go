//go:build clockstep

package node_test

import (
	"bytes"
	"net/http"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/meshtest"
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
