package node

import (
	"context"
	"sync"

	"github.com/agentmesh/agentmesh/node/wire"
)

// runPool bounds the hooks that run at once (AM-75) and stops them.
type runPool struct {
	slots chan struct{} // one for each hook that runs
	room  chan struct{} // one for each hook that runs or waits for its turn

	// The strangers' share of both: three quarters. The rest is left to known peers.
	strangerSlots, strangerRoom chan struct{}

	mu      sync.Mutex
	stopped chan struct{} // closed by stop
	cancels map[*run]context.CancelFunc
	group   sync.WaitGroup
}

func newRunPool() runPool {
	return runPool{
		slots: make(chan struct{}, maxHookRuns), room: make(chan struct{}, maxHookQueue),
		strangerSlots: make(chan struct{}, maxHookRuns*3/4), strangerRoom: make(chan struct{}, maxHookQueue*3/4),
		stopped: make(chan struct{}), cancels: make(map[*run]context.CancelFunc),
	}
}

func (r *runPool) isStopping() bool {
	select {
	case <-r.stopped:
		return true
	default:
		return false
	}
}

// reserve takes room for one hook before its message is accepted, or returns wire.ErrUnavailable; done gives it back.
func (r *runPool) reserve() (done func(), err error) {
	select {
	case r.room <- struct{}{}:
		return sync.OnceFunc(func() { <-r.room }), nil
	default:
		return nil, wire.ErrUnavailable
	}
}

// reserveFor is reserve for the message of a stranger or of a known peer.
func (r *runPool) reserveFor(stranger bool) (done func(), err error) {
	if !stranger {
		return r.reserve()
	}
	select {
	case r.strangerRoom <- struct{}{}:
	default:
		return nil, wire.ErrUnavailable
	}
	give, err := r.reserve()
	if err != nil {
		<-r.strangerRoom
		return nil, err
	}
	return sync.OnceFunc(func() { give(); <-r.strangerRoom }), nil
}

// awaitTurn waits until a hook may run; leave ends its turn. A stranger's hook takes one of the strangers' slots
// first, so that a stranger who waits holds no slot that a known peer could use.
func (r *runPool) awaitTurn(ctx context.Context, stranger bool) (leave func(), err error) {
	taken := []chan struct{}{r.slots}
	if stranger {
		taken = []chan struct{}{r.strangerSlots, r.slots}
	}
	for i, slots := range taken {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			for _, slots := range taken[:i] {
				<-slots
			}
			return nil, ctx.Err()
		}
	}
	return func() {
		for _, slots := range taken {
			<-slots
		}
	}, nil
}

// awaitRoom is reserve that waits for room instead of failing.
func (r *runPool) awaitRoom(ctx context.Context) (done func(), err error) {
	select {
	case r.room <- struct{}{}:
		return sync.OnceFunc(func() { <-r.room }), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// stop cancels the running hooks and waits for them. Their items stay "running", and the next start recovers them.
func (r *runPool) stop() {
	r.mu.Lock()
	close(r.stopped)
	for _, cancel := range r.cancels {
		cancel()
	}
	r.mu.Unlock()
	r.group.Wait()
}
