package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// retryLease is the time after which a [Session] tries again to acquire a lease that another process holds.
const retryLease = time.Second

// Session does duties while this process holds their leases. It renews all of them in one call. Start with
// [NewSession]; call [Session.Do] for each duty, and [Session.Run]. A session is safe for concurrent use.
type Session struct {
	leases Leases
	log    *slog.Logger

	mu        sync.Mutex
	held      map[Lease]*duty
	elsewhere map[string]bool // duties that another process has, by the name of the lease
}

// duty is a duty that this process does now.
type duty struct {
	until time.Time // time before which the lease has certainly not ended, by the clock of this process
	stop  context.CancelCauseFunc
}

// NewSession returns a session without duties.
func NewSession(leases Leases, log *slog.Logger) *Session {
	return &Session{leases: leases, log: log, held: make(map[Lease]*duty), elsewhere: make(map[string]bool)}
}

// IsElsewhere reports whether another process has the duty, as far as this process knows. Before [Session.Do] the answer
// is false.
func (s *Session) IsElsewhere(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.elsewhere[name]
}

// Held returns the lease of a duty that this process does now, or nil. A unit outside of the duty that counts on this
// process to do it has this lease as its Held.
func (s *Session) Held(name string) *Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	for lease := range s.held {
		if lease.Name == name {
			return &lease
		}
	}
	return nil
}

func (s *Session) setElsewhere(name string, elsewhere bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.elsewhere[name] = elsewhere
}

// IsCurrent reports whether the lease of the duty to which ctx belongs has certainly not ended. Check it before an
// effect outside of the store. Outside of a duty the answer is true.
func (s *Session) IsCurrent(ctx context.Context) bool {
	lease := LeaseOf(ctx)
	if lease == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.held[*lease]
	return d != nil && d.isCurrent(s.leases.TTL(), time.Now())
}

// isCurrent reports whether the lease has certainly not ended.
func (d *duty) isCurrent(ttl time.Duration, now time.Time) bool {
	return ttl == 0 || now.Before(d.until)
}

// Do does a duty whenever this process holds the lease with this name, until ctx ends. The context of work belongs to
// the lease, see [WithLease], and ends when the lease is lost, with [ErrLeaseLost] as its cause. Do waits for work to
// return, and then releases the lease. If work returns before that, the duty is done, and Do returns.
func (s *Session) Do(ctx context.Context, name string, work func(ctx context.Context)) {
	for ctx.Err() == nil {
		asked := time.Now()
		lease, err := s.leases.Acquire(ctx, name)
		if err != nil {
			if errors.Is(err, ErrLeaseTaken) {
				s.setElsewhere(name, true)
			} else if ctx.Err() == nil {
				s.log.Warn("acquire lease", "lease", name, "err", err)
			}
			wait(ctx, retryLease)
			continue
		}
		if s.do(ctx, lease, asked, work) {
			return
		}
	}
}

// do does a duty under a lease that was acquired after the time asked. It reports whether the duty is done.
func (s *Session) do(ctx context.Context, lease Lease, asked time.Time, work func(context.Context)) (done bool) {
	ctx, stop := context.WithCancelCause(WithLease(ctx, lease))
	defer stop(nil)
	s.mu.Lock()
	s.held[lease] = &duty{until: asked.Add(s.leases.TTL()), stop: stop}
	s.elsewhere[lease.Name] = false
	s.mu.Unlock()
	work(ctx)
	s.mu.Lock()
	delete(s.held, lease)
	s.elsewhere[lease.Name] = true // until the next attempt to acquire it
	s.mu.Unlock()
	if errors.Is(context.Cause(ctx), ErrLeaseLost) {
		s.log.Warn("lost a lease", "lease", lease.Name, "fence", lease.Fence)
		return false
	}
	if err := s.leases.Release(context.WithoutCancel(ctx), []Lease{lease}); err != nil {
		s.log.Warn("release lease", "lease", lease.Name, "err", err)
	}
	return true
}

// Run renews the leases of this session until ctx ends. If leases last as long as their handle, it returns at once.
func (s *Session) Run(ctx context.Context) {
	every := s.leases.TTL() / 3
	if every == 0 {
		return
	}
	for wait(ctx, every) {
		s.renew(ctx, every)
	}
}

// renew renews every lease once, and stops the duties whose lease is lost or may have ended.
func (s *Session) renew(ctx context.Context, timeout time.Duration) {
	asked := time.Now()
	var held []Lease
	s.mu.Lock()
	for lease, d := range s.held {
		if d.isCurrent(s.leases.TTL(), asked) {
			held = append(held, lease)
			continue
		}
		d.stop(ErrLeaseLost) // this process was suspended
	}
	s.mu.Unlock()
	if len(held) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	lost, err := s.leases.Renew(ctx, held)
	if err != nil {
		s.log.Warn("renew leases", "err", err) // the next round stops the duties whose lease may have ended
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, lease := range held {
		if d := s.held[lease]; d != nil && !slices.Contains(lost, lease) {
			d.until = asked.Add(s.leases.TTL())
		}
	}
	for _, lease := range lost {
		if d := s.held[lease]; d != nil {
			d.stop(fmt.Errorf("%w: %s", ErrLeaseLost, lease.Name))
		}
	}
}

// wait waits for d. It returns false if ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
