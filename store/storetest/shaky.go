package storetest

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// Shaky is a handle that a test can make behave as if its process were suspended or killed, and whose calls take time
// as over a network. Methods that Shaky does not define itself, such as Cards, are unaffected.
type Shaky struct {
	store.Store
	delay time.Duration // each call waits up to this long

	mu      sync.Mutex
	running chan struct{} // closed unless the process is suspended
	dead    bool
}

// NewShaky returns a shaky handle over s. Each call waits up to delay.
func NewShaky(s store.Store, delay time.Duration) *Shaky {
	running := make(chan struct{})
	close(running)
	return &Shaky{Store: s, delay: delay, running: running}
}

// Freeze makes calls wait until thaw is called, as if the process were suspended.
func (s *Shaky) Freeze() (thaw func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	running := make(chan struct{})
	s.running = running
	return func() { close(running) }
}

// Kill makes calls fail from now on, as if the process were killed. Its leases are not released.
func (s *Shaky) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead = true
}

// Revive makes calls work again after Kill, as if only the network had failed.
func (s *Shaky) Revive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead = false
}

// Ping implements [store.Store].
func (s *Shaky) Ping(ctx context.Context) error {
	if err := s.enter(); err != nil {
		return err
	}
	return s.Store.Ping(ctx)
}

// enter waits while the process is suspended, and then for the delay. It fails if the process was killed.
func (s *Shaky) enter() error {
	s.mu.Lock()
	running := s.running
	s.mu.Unlock()
	<-running
	if s.delay > 0 {
		time.Sleep(rand.N(s.delay))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return store.ErrUnavailable
	}
	return nil
}

// Steps implements [store.Store].
func (s *Shaky) Steps() store.Steps { return shakySteps{s.Store.Steps(), s} }

// Records implements [store.Store].
func (s *Shaky) Records() store.Records { return shakyRecords{s.Store.Records(), s} }

// Leases implements [store.Store].
func (s *Shaky) Leases() store.Leases { return shakyLeases{s.Store.Leases(), s} }

// Close implements [store.Store]. It does nothing, like a process that was killed.
func (s *Shaky) Close() error { return nil }

type shakySteps struct {
	store.Steps
	s *Shaky
}

func (w shakySteps) Apply(ctx context.Context, step store.Step) (store.Applied, error) {
	if err := w.s.enter(); err != nil {
		return store.Applied{}, err
	}
	return w.Steps.Apply(ctx, step)
}

func (w shakySteps) FindReplay(ctx context.Context, sender, messageID string, now time.Time) (store.Replay, error) {
	if err := w.s.enter(); err != nil {
		return store.Replay{}, err
	}
	return w.Steps.FindReplay(ctx, sender, messageID, now)
}

func (w shakySteps) Conversation(ctx context.Context, key store.ConvKey, now time.Time) (store.Conversation, error) {
	if err := w.s.enter(); err != nil {
		return store.Conversation{}, err
	}
	return w.Steps.Conversation(ctx, key, now)
}

type shakyRecords struct {
	store.Records
	s *Shaky
}

func (r shakyRecords) Apply(ctx context.Context, changes []store.Change, now time.Time) error {
	if err := r.s.enter(); err != nil {
		return err
	}
	return r.Records.Apply(ctx, changes, now)
}

func (r shakyRecords) Get(ctx context.Context, ns, key string, now time.Time) (store.Record, error) {
	if err := r.s.enter(); err != nil {
		return store.Record{}, err
	}
	return r.Records.Get(ctx, ns, key, now)
}

func (r shakyRecords) List(ctx context.Context, ns, term, after string, limit int, now time.Time) (store.RecordPage, error) {
	if err := r.s.enter(); err != nil {
		return store.RecordPage{}, err
	}
	return r.Records.List(ctx, ns, term, after, limit, now)
}

func (r shakyRecords) ListBackward(ctx context.Context, ns, term, before string, limit int, now time.Time) (store.RecordPage, error) {
	if err := r.s.enter(); err != nil {
		return store.RecordPage{}, err
	}
	return r.Records.ListBackward(ctx, ns, term, before, limit, now)
}

func (r shakyRecords) Due(ctx context.Context, ns string, until time.Time, skip []string, limit int) ([]store.Record, time.Time, error) {
	if err := r.s.enter(); err != nil {
		return nil, time.Time{}, err
	}
	return r.Records.Due(ctx, ns, until, skip, limit)
}

func (r shakyRecords) Count(ctx context.Context, ns, term string, limit int, now time.Time) (int, error) {
	if err := r.s.enter(); err != nil {
		return 0, err
	}
	return r.Records.Count(ctx, ns, term, limit, now)
}

type shakyLeases struct {
	store.Leases
	s *Shaky
}

func (l shakyLeases) Acquire(ctx context.Context, name string) (store.Lease, error) {
	if err := l.s.enter(); err != nil {
		return store.Lease{}, err
	}
	return l.Leases.Acquire(ctx, name)
}

func (l shakyLeases) Renew(ctx context.Context, held []store.Lease) ([]store.Lease, error) {
	if err := l.s.enter(); err != nil {
		return nil, err
	}
	return l.Leases.Renew(ctx, held)
}

func (l shakyLeases) Release(ctx context.Context, held []store.Lease) error {
	if err := l.s.enter(); err != nil {
		return err
	}
	return l.Leases.Release(ctx, held)
}

func (l shakyLeases) List(ctx context.Context) ([]store.LeaseState, error) {
	if err := l.s.enter(); err != nil {
		return nil, err
	}
	return l.Leases.List(ctx)
}
