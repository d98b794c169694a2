package node_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestConversationsTakeTurns: of many conversations with one peer, each with letters that wait, none is delivered to its
// end while others have not begun, and one that was put off has its turn when it is due.
func TestConversationsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const convs, each = 8, 10
		hold := make(chan struct{})
		failed := false
		w := &wireTransport{}
		w.deliver = func(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
			<-hold
			time.Sleep(time.Second)
			if d.Message.Conversation == "conv_0" && !failed {
				failed = true
				return bridge.Delivered{}, &client.SendError{Retry: true}
			}
			return bridge.Delivered{}, nil
		}
		l := loneNode(t, t.TempDir(), w)
		defer l.stop()
		for n := range each {
			for conv := range convs {
				mustSend(t, l.Node, to("ann", wire.ConversationID(fmt.Sprintf("conv_%d", conv)), fmt.Sprint(n)), 0)
			}
		}
		close(hold)
		time.Sleep(convs*each*time.Second + time.Minute)
		synctest.Wait()
		if len(w.seen) != convs*each+1 {
			t.Fatalf("%d deliveries, want %d", len(w.seen), convs*each+1)
		}
		seen := map[wire.ConversationID]int{}
		for i, d := range w.seen {
			conv := d.Message.Conversation
			seen[conv]++
			for other := range convs {
				behind := seen[wire.ConversationID(fmt.Sprintf("conv_%d", other))]
				if other > 0 && conv != "conv_0" && seen[conv]-behind > 2 {
					t.Fatalf("delivery %d: %s is at its letter %d, conv_%d at %d", i, conv, seen[conv], other, behind)
				}
			}
			if conv == "conv_0" && seen[conv] == 2 && w.at[i].Sub(w.at[0]) > 10*time.Second {
				t.Errorf("the letter that was put off for five seconds had its turn after %v", w.at[i].Sub(w.at[0]))
			}
		}
	})
}
