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

	// What strangers have of both. A quarter is left to known peers, however long strangers make hooks work.
	strangerSlots, strangerRoom chan struct{}

	mu      sync.Mutex
	stopped chan struct{} // closed by stop
	cancels map[*run]context.CancelFunc
	group   sync.WaitGroup
}

func newRuns() runs {
	return runs{
		slots: make(chan struct{}, maxHookRuns), room: make(chan struct{}, maxHookQueue),
		strangerSlots: make(chan struct{}, maxHookRuns*3/4), strangerRoom: make(chan struct{}, maxHookQueue*3/4),
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

// reserveFor is reserve for the message of a stranger, or of somebody known.
func (r *runs) reserveFor(stranger bool) (done func(), err error) {
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

// turn waits until a hook may run. A stranger's takes a slot of strangers first, so that those who wait for one hold
// none that known peers could use.
func (r *runs) turn(ctx context.Context, stranger bool) (leave func(), err error) {
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
