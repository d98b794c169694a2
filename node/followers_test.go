package node_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/owner"
)

// TestManyFollowersFail: when a message fails for good, all messages that wait behind it in its conversation fail,
// however many they are (AM-47).
func TestManyFollowersFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const queued = 620
		release := make(chan struct{})
		w := &wireTransport{}
		w.deliver = func(context.Context, bridge.Delivery) (bridge.Delivered, error) {
			<-release
			return bridge.Delivered{}, errors.New("no such participant")
		}
		l := loneNode(t, t.TempDir(), w)
		defer l.stop()
		for i := range queued {
			mustSend(t, l.Node, to("ann", "conv_1", fmt.Sprint(i)), 0)
		}
		told := make(chan owner.Sent, 1)
		go func() {
			sent, _ := l.Send(t.Context(), to("ann", "conv_1", "the last"), time.Hour)
			told <- sent
		}()
		synctest.Wait()
		began := time.Now()
		close(release)
		if sent := <-told; sent.State != owner.SendFailed || time.Since(began) > time.Minute {
			t.Errorf("the sender of the last message got %+v after %v", sent, time.Since(began))
		}
		synctest.Wait()
		if got := w.deliveries(); len(got) != 1 {
			t.Errorf("%d messages were sent, want the first alone", len(got))
		}
		entries, _, err := l.Outbox(t.Context(), owner.SendFailed, "", 1000)
		if err != nil || len(entries) != queued+1 {
			t.Errorf("%d entries have failed, %v; want %d", len(entries), err, queued+1)
		}
	})
}
