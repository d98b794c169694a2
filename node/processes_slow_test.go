//go:build slow

package node_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
)

// TestStalledHolderCannotWrite: a process that stands still past its lease, during a delivery, cannot store the outcome
// of that delivery when it goes on.
func TestStalledHolderCannotWrite(t *testing.T) {
	t.Parallel()
	ps := startProcesses(t, 2, 0, open)
	began, goOn := make(chan struct{}, 10), make(chan struct{})
	var first sync.Once
	ps.wires.deliver = func(context.Context, bridge.Delivery) (bridge.Delivered, error) {
		stalled := false
		first.Do(func() { stalled = true })
		began <- struct{}{}
		if !stalled {
			return bridge.Delivered{}, nil
		}
		<-goOn
		return bridge.Delivered{}, &client.SendError{Status: http.StatusNotFound} // final
	}
	old := ps.holder()
	mustSend(t, old.Node, to("ann", "conv_one", "hello"), 0)
	<-began
	thaw := old.shaky.Freeze()
	other := ps.others(old)[0]
	within(t, takeover, "nobody took over", func() bool { return ps.holder() == other && other.delivered() == 1 })
	close(goOn)
	thaw()
	time.Sleep(300 * time.Millisecond)
	entries, _, err := other.Outbox(t.Context(), "", "", 10)
	if err != nil || len(entries) != 1 || entries[0].State != owner.SendDelivered {
		t.Errorf("outbox = %+v, %v, want the outcome of the new holder", entries, err)
	}
	sent := mustSend(t, old.Node, to("ann", "conv_one", "again"), 10*time.Second)
	if sent.State != owner.SendDelivered {
		t.Errorf("a message at the process that stood still is %s", sent.State)
	}
}
