//go:build clockstep

package node_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// TestClockStepOfTheOutbox: an attempt that fails while the clock is wrong is repeated after the intended pause, and
// the message is not given up an hour early.
func TestClockStepOfTheOutbox(t *testing.T) {
	storetest.ClockSteps(t, func(t *testing.T, by time.Duration) {
		pauses := []time.Duration{60 * time.Hour, 11*time.Hour + 30*time.Minute} // what the peer asks for; less than 72 hours together
		w := &wireTransport{}
		w.deliver = func(context.Context, bridge.Delivery) (bridge.Delivered, error) {
			if n := len(w.deliveries()); n <= len(pauses) {
				return bridge.Delivered{}, &client.SendError{Status: http.StatusServiceUnavailable, Retry: true, After: pauses[n-1]}
			}
			return bridge.Delivered{}, nil
		}
		l := loneNode(t, t.TempDir(), w)
		began := time.Now()
		mustSend(t, l.Node, to("ann", "conv_one", "hello"), 0)
		time.Sleep(59*time.Hour + 30*time.Minute)
		storetest.StepClock(t, by)
		time.Sleep(time.Hour)
		storetest.StepClock(t, 0)
		time.Sleep(11*time.Hour + 15*time.Minute)
		synctest.Wait()
		if entry := theEntry(t, l.Node); entry.State != owner.SendDelivered {
			t.Errorf("the message is %s: %v", entry.State, entry.Err)
		}
		for i, want := range []time.Duration{0, 60 * time.Hour, 71*time.Hour + 30*time.Minute} {
			if i >= len(w.at) || w.at[i].Sub(began).Round(time.Minute) != want {
				t.Errorf("attempts at %v since %v, want number %d after %v", w.at, began, i+1, want)
			}
		}
	})
}

// TestClockStepOfADoubtfulMessage: a message that may have arrived is sent again with its signature, which seems too
// old only because the clock is wrong.
func TestClockStepOfADoubtfulMessage(t *testing.T) {
	storetest.ClockSteps(t, func(t *testing.T, by time.Duration) {
		mesh := meshtest.InMemory(t)
		ann, sarah := mesh.Node("ann", open), mesh.Node("sarah", nil)
		var up atomic.Bool
		sarah.Connect(bridge.Kind{Name: "toy"}, carrier{carry: func(message []byte) ([]byte, error) {
			if !up.Load() {
				return nil, &client.SendError{Status: http.StatusBadGateway, Retry: true, Processed: true, After: 5 * time.Minute}
			}
			return ann.Post(message).Body, nil
		}})
		sarah.Start()
		mustSend(t, sarah.Node, outgoing(t, ann.ID(), "mesh.message", hello), 0)
		synctest.Wait()
		edit(t, sarah, "outbox", theEntry(t, sarah.Node).ID, `"maybe_processed":true`, `"maybe_processed":true,"resend_maybe_processed":true`)
		time.Sleep(4 * time.Minute)
		storetest.StepClock(t, by)
		time.Sleep(61 * time.Second) // includes the second attempt
		storetest.StepClock(t, 0)
		up.Store(true)
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		if entry := theEntry(t, sarah.Node); entry.State != owner.SendDelivered {
			t.Errorf("the message is %s: %v", entry.State, entry.Err)
		}
	})
}
