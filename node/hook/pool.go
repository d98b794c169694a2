package hook

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Pool bounds the hooks that run at once (AM-75), and stops them. It is safe for concurrent use.
type Pool struct {
	Retries Retries // of messages that wait for their hook
	Stats   Stats   // what ran

	slots chan struct{} // has an element for each hook that runs
	room  chan struct{} // has an element for each hook that runs or waits for its turn

	// The strangers' share of both: three quarters. The rest is left to known peers.
	strangerSlots, strangerRoom chan struct{}

	mu     sync.Mutex      // held while work starts, so that Stop waits for that work
	ctx    context.Context // of all work; ended by Stop
	cancel context.CancelFunc
	id     string // differs after each Stop
	group  sync.WaitGroup

	keys sync.Map // of the work that GoOnce runs
}

// NewPool returns a pool in which at most maxRunning hooks run, and at most maxQueued hooks run or wait.
func NewPool(maxRunning, maxQueued int) *Pool {
	p := &Pool{
		Retries: Retries{wake: make(chan struct{}, 1)}, Stats: Stats{routes: make(map[string]*RouteStats)},
		slots: make(chan struct{}, maxRunning), room: make(chan struct{}, maxQueued),
		strangerSlots: make(chan struct{}, maxRunning*3/4), strangerRoom: make(chan struct{}, maxQueued*3/4),
	}
	p.open(context.Background())
	return p
}

// open makes the pool accept work, whose context derives from ctx. The caller must hold mu, or be the only user.
func (p *Pool) open(ctx context.Context) {
	p.ctx, p.cancel = context.WithCancel(ctx)
	p.id = strings.ToLower(rand.Text()[:12])
}

// Run makes the context of later work derive from ctx, and stops the pool when ctx ends. A pool accepts work before
// Run too.
func (p *Pool) Run(ctx context.Context) {
	p.mu.Lock()
	if p.ctx.Err() != nil {
		p.open(ctx)
	} else {
		cancelEarly := p.cancel // ends the work that began before Run
		p.ctx, p.cancel = context.WithCancel(ctx)
		context.AfterFunc(p.ctx, cancelEarly)
	}
	p.mu.Unlock()
	<-ctx.Done()
	p.Stop()
}

// ID identifies the work of the pool since the last stop. If an inbox item has another id, the work on it has stopped.
func (p *Pool) ID() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.id
}

// Running returns how many hooks run.
func (p *Pool) Running() int { return len(p.slots) }

// Waiting returns how many hooks wait for their turn.
func (p *Pool) Waiting() int { return max(0, len(p.room)-len(p.slots)) }

// Stopped returns a channel that closes when the pool stops.
func (p *Pool) Stopped() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ctx.Done()
}

// Go runs work in the background with a context that Stop ends. If the pool is stopping, it returns false instead.
func (p *Pool) Go(work func(ctx context.Context)) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx := p.ctx
	if ctx.Err() != nil {
		return false
	}
	p.group.Go(func() { work(ctx) })
	return true
}

// GoOnce is [Pool.Go], unless work with the same key runs already.
func (p *Pool) GoOnce(key string, work func(ctx context.Context)) {
	if _, runs := p.keys.LoadOrStore(key, nil); runs {
		return
	}
	started := p.Go(func(ctx context.Context) {
		defer p.keys.Delete(key)
		work(ctx)
	})
	if !started {
		p.keys.Delete(key)
	}
}

// Reserve takes room for one hook before its message is accepted, or returns wire.ErrUnavailable. release gives the
// room back.
func (p *Pool) Reserve() (release func(), err error) {
	select {
	case p.room <- struct{}{}:
		return sync.OnceFunc(func() { <-p.room }), nil
	default:
		return nil, wire.ErrUnavailable
	}
}

// ReserveFor is [Pool.Reserve] for the hook of a message. If stranger is set, it takes room from the strangers' share,
// too.
func (p *Pool) ReserveFor(stranger bool) (release func(), err error) {
	if !stranger {
		return p.Reserve()
	}
	select {
	case p.strangerRoom <- struct{}{}:
	default:
		return nil, wire.ErrUnavailable
	}
	releaseRoom, err := p.Reserve()
	if err != nil {
		<-p.strangerRoom
		return nil, err
	}
	return sync.OnceFunc(func() { releaseRoom(); <-p.strangerRoom }), nil
}

// AwaitRoom is Reserve that waits for room instead of failing.
func (p *Pool) AwaitRoom(ctx context.Context) (release func(), err error) {
	select {
	case p.room <- struct{}{}:
		return sync.OnceFunc(func() { <-p.room }), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// AwaitTurn waits until a hook may run. endTurn frees the slot of the hook. A stranger's hook takes one of the
// strangers' slots first, so that a waiting stranger holds no slot that a known peer could use.
func (p *Pool) AwaitTurn(ctx context.Context, stranger bool) (endTurn func(), err error) {
	needed := []chan struct{}{p.slots}
	if stranger {
		needed = []chan struct{}{p.strangerSlots, p.slots}
	}
	for i, slots := range needed {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			for _, slots := range needed[:i] {
				<-slots
			}
			return nil, ctx.Err()
		}
	}
	return func() {
		for _, slots := range needed {
			<-slots
		}
	}, nil
}

// Stop ends the context of all work and waits for the work. The hooks' inbox items stay "running" until package node
// recovers them in the process that runs hooks next.
func (p *Pool) Stop() {
	p.mu.Lock()
	p.cancel()
	p.mu.Unlock()
	p.group.Wait()
}
