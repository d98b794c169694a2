//go:build slow && !race

package node_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestHangingPeer: nearly ten thousand messages to a peer that never answers delay a message to another peer by less than a
// second, also after a restart, when all of them are due.
func TestHangingPeer(t *testing.T) {
	const waiting = 9_920 // the node refuses more than 10,000
	dir, arrived := t.TempDir(), make(chan time.Time, 10)
	hang := &wireTransport{deliver: func(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
		if d.To == to("ann", "c", "").To {
			arrived <- time.Now()
			return bridge.Delivered{}, nil
		}
		<-ctx.Done()
		return bridge.Delivered{}, ctx.Err()
	}}
	l := loneNode(t, dir, hang)
	var senders sync.WaitGroup
	for s := range 16 {
		senders.Go(func() {
			for i := range waiting / 16 {
				mustSend(t, l.Node, to("mallory", wire.ConversationID(fmt.Sprint("conv_", s, "_", i)), "hello"), 0)
			}
		})
	}
	senders.Wait()
	for _, when := range []string{"while they wait", "after a restart"} {
		began := time.Now()
		mustSend(t, l.Node, to("ann", wire.NewConversationID(), "hello"), 0)
		select {
		case at := <-arrived:
			t.Logf("%s: %v", when, at.Sub(began))
			if at.Sub(began) > time.Second {
				t.Errorf("%s a message to another peer took %v", when, at.Sub(began))
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s a message to another peer does not arrive", when)
		}
		l.stop()
		l = loneNode(t, dir, hang)
	}
}
