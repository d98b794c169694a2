package mailbox

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// TestTakeAtLastMoment: a message that a poll fetches just as its time to be fetched ends waits for the agent's reply.
// Otherwise the directory stores it too, and refuses the reply.
func TestTakeAtLastMoment(t *testing.T) {
	owner := [32]byte{1}
	for range 2000 {
		synctest.Test(t, func(t *testing.T) {
			c := NewConnections()
			c.Join(owner, true, true)
			o := &Transit{ID: "m_1", Message: wire.Message{To: "am_b"}}
			done := make(chan bool)
			go func() {
				_, ok := c.PassThrough(t.Context(), owner, o)
				done <- ok
			}()
			time.Sleep(takeWithin)
			fetched := len(c.Take(owner, "", "", 1)) == 1
			synctest.Wait()
			if waits := c.Find(owner, o.ID) != nil; waits != fetched {
				t.Errorf("fetched by a poll: %v, but the sender waits for the reply: %v", fetched, waits)
			}
			<-done
		})
		if t.Failed() {
			return
		}
	}
}
