package hook

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"
)

// Pool bounds what runs at once (AM-75), and stops it: the owner's programs, and under other duties what answers by
// itself, such as a bridge (THREATS 45). It is safe for concurrent use.
type Pool struct {
	Stats Stats // what ran

	maxRunning, maxQueued int      // of each duty
	duties                sync.Map // *turns by duty

	mu     sync.Mutex      // held while work starts, so that Stop waits for that work
	ctx    context.Context // of all work; ended by Stop
	cancel context.CancelFunc
	id     string // differs after each Stop
	group  sync.WaitGroup
}

// NewPool returns a pool in which at most maxRunning runs of a duty run, and at most maxQueued run or wait.
func NewPool(maxRunning, maxQueued int) *Pool {
	p := &Pool{
		Stats:      Stats{routes: make(map[string]*RouteStats)},
		maxRunning: maxRunning, maxQueued: maxQueued,
	}
	p.open(context.Background())
	return p
}

// turns returns the turns of a duty. Runs of different duties never wait for each other.
func (p *Pool) turns(duty string) *turns {
	t, ok := p.duties.Load(duty)
	if !ok {
		t, _ = p.duties.LoadOrStore(duty, &turns{
			running: places{max: p.maxRunning, bySource: make(map[Source]int)}, queued: places{max: p.maxQueued, bySource: make(map[Source]int)},
		})
	}
	return t.(*turns)
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

// Load returns how many runs of a duty run, and how many wait for their turn.
func (p *Pool) Load(duty string) (running, waiting int) {
	t := p.turns(duty)
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.running.taken, len(t.waiting)
}

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

// Reserve takes room for one run before its message is accepted, or returns wire.ErrUnavailable because of
// [waiting.ErrNoPlace]. release gives the room back.
func (p *Pool) Reserve(t Turn) (release func(), err error) { return p.turns(t.Duty).reserve(t.Source) }

// AwaitTurn waits until a run may begin. The caller must call endTurn.
func (p *Pool) AwaitTurn(ctx context.Context, t Turn) (endTurn func(), err error) {
	return p.turns(t.Duty).await(ctx, t.Source)
}

// Stop ends the context of all work and waits for the work. The hooks' inbox items stay "running" until package node
// recovers them in the process that runs hooks next.
func (p *Pool) Stop() {
	p.mu.Lock()
	p.cancel()
	p.mu.Unlock()
	p.group.Wait()
}
