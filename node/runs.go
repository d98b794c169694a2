package node

import (
	"context"
	"sync"

	"github.com/agentmesh/agentmesh/node/wire"
)

// runs bounds the hooks under way (AM-75) and stops them.
type runs struct {
	slots chan struct{} // one for each hook that runs
	room  chan struct{} // one for each hook that runs or waits for its turn

	mu      sync.Mutex
	stopped chan struct{} // closed by stop
	cancels map[*run]context.CancelFunc
	group   sync.WaitGroup
}

func newRuns() runs {
	return runs{
		slots: make(chan struct{}, maxHookRuns), room: make(chan struct{}, maxHookQueue),
		stopped: make(chan struct{}), cancels: make(map[*run]context.CancelFunc),
	}
}

func (r *runs) stopping() bool {
	select {
	case <-r.stopped:
		return true
	default:
		return false
	}
}

// reserve takes room for one hook before its message is accepted; done gives it back.
func (r *runs) reserve() (done func(), err error) {
	select {
	case r.room <- struct{}{}:
		return sync.OnceFunc(func() { <-r.room }), nil
	default:
		return nil, wire.ErrUnavailable
	}
}

// await is reserve for who has time: it waits for room.
func (r *runs) await(ctx context.Context) (done func(), err error) {
	select {
	case r.room <- struct{}{}:
		return sync.OnceFunc(func() { <-r.room }), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// stop ends the hooks under way and waits for them. What they were working on stays "running" in the store and is
// recovered at the next start.
func (r *runs) stop() {
	r.mu.Lock()
	close(r.stopped)
	for _, cancel := range r.cancels {
		cancel()
	}
	r.mu.Unlock()
	r.group.Wait()
}
