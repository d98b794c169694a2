package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/waiting"
)

// retryLease is the time after which a [Session] tries again to acquire a lease that another process holds.
const retryLease = time.Second

// retryLeaseSoon is the same for a lease that the other process is about to release.
const retryLeaseSoon = 100 * time.Millisecond

// Session does duties, such as delivering the outbox, while this process holds their leases. It renews all leases in
// one call. Start with [NewSession], and call [Session.Do] for each duty. A session is safe for concurrent use.
type Session struct {
	leases Leases
	log    *slog.Logger

	turn sync.Mutex // held to acquire or release a lease, so that work does not begin under a lease that is being released

	mu           sync.Mutex
	held         map[Lease]*heldLease
	stopRenewing chan struct{}   // closed to end the renewals; nil: there is nothing to renew
	elsewhere    map[string]bool // duties that another process may have, by the name of the lease
}

// heldLease is a lease that this process holds.
type heldLease struct {
	until time.Time                             // time before which the lease has certainly not ended, by the clock of this process
	work  map[*context.CancelCauseFunc]struct{} // the functions that stop the work under the lease
}

// NewSession returns a session without duties.
func NewSession(leases Leases, log *slog.Logger) *Session {
	return &Session{leases: leases, log: log, held: make(map[Lease]*heldLease), elsewhere: make(map[string]bool)}
}

// IsElsewhere reports whether another process may have the duty, as far as this process knows. The answer is false
// before the first attempt to acquire the lease, and true from its loss or release until the session acquires it again.
func (s *Session) IsElsewhere(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.elsewhere[name]
}

// Held returns the lease of a duty that this process does now, or nil. Use it in the Held of a [Step] or [Change] that is
// not part of the duty, but must fail if another process does the duty.
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

// IsCurrent reports whether the lease of the duty to which ctx belongs has certainly not ended. Check it before an
// effect outside of the store. Outside of a duty the answer is true.
func (s *Session) IsCurrent(ctx context.Context) bool {
	lease := LeaseOf(ctx)
	if lease == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.held[*lease]
	return h != nil && h.isCurrent(s.leases.TTL(), time.Now())
}

func (h *heldLease) isCurrent(ttl time.Duration, now time.Time) bool {
	return ttl == 0 || now.Before(h.until)
}

// Do does a duty whenever this process holds the lease with this name, until ctx ends. The context of work belongs to
// the lease, see [WithLease], and ends when the lease is lost, with [ErrLeaseLost] as its cause. Do waits for work to
// return, and then releases the lease, unless other work still runs under it. If work returns before the lease is
// lost, the duty is done, and Do returns.
func (s *Session) Do(ctx context.Context, name string, work func(ctx context.Context)) {
	for ctx.Err() == nil {
		askedAt := time.Now()
		lease, err := s.acquire(ctx, name)
		if err != nil {
			if !errors.Is(err, ErrLeaseTaken) && ctx.Err() == nil {
				s.log.Warn("lease not acquired; tries again", "lease", name, "err", err)
			}
			waiting.Pause(ctx, retryLease)
			continue
		}
		if s.do(ctx, lease, askedAt, work) {
			return
		}
	}
}

// Claim acquires the lease with this name now, for a duty that the caller begins later. If another process holds the
// lease, the error is [ErrLeaseTaken]. duty is a context as [Session.Do] passes it to work, but does not end with ctx. The
// caller must call end, which ends duty and releases the lease, unless other work still runs under the lease.
func (s *Session) Claim(ctx context.Context, name string) (duty context.Context, end func(), err error) {
	askedAt := time.Now()
	lease, err := s.acquire(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	dutyCtx, done := make(chan context.Context), make(chan struct{})
	go func() {
		defer close(done)
		s.do(ctx, lease, askedAt, func(duty context.Context) {
			dutyCtx <- duty
			<-duty.Done()
		})
	}()
	return <-dutyCtx, func() { stop(); <-done }, nil
}

// ClaimSoon is [Session.Claim], but waits up to patience for another process to release the lease.
func (s *Session) ClaimSoon(ctx context.Context, name string, patience time.Duration) (duty context.Context, end func(), err error) {
	for giveUp := time.Now().Add(patience); ; {
		duty, end, err = s.Claim(ctx, name)
		if !errors.Is(err, ErrLeaseTaken) || time.Now().After(giveUp) || !waiting.Pause(ctx, retryLeaseSoon) {
			return duty, end, err
		}
	}
}

// acquire acquires a lease and locks s.turn. After an error, s.turn is not locked.
func (s *Session) acquire(ctx context.Context, name string) (Lease, error) {
	s.turn.Lock()
	lease, err := s.leases.Acquire(ctx, name)
	if err != nil {
		s.turn.Unlock()
	}
	if errors.Is(err, ErrLeaseTaken) {
		s.mu.Lock()
		s.elsewhere[name] = true
		s.mu.Unlock()
	}
	return lease, err
}

// do does a duty under a lease, and reports whether the duty is done. askedAt is a time before the lease was acquired.
// The caller has locked s.turn, and do unlocks it.
func (s *Session) do(ctx context.Context, lease Lease, askedAt time.Time, work func(context.Context)) (done bool) {
	ctx, stop := context.WithCancelCause(WithLease(ctx, lease))
	defer stop(nil)
	s.mu.Lock()
	h := s.held[lease]
	if h == nil {
		h = &heldLease{until: askedAt.Add(s.leases.TTL()), work: make(map[*context.CancelCauseFunc]struct{})}
		s.held[lease] = h
	}
	h.work[&stop] = struct{}{}
	s.elsewhere[lease.Name] = false
	if every := s.leases.TTL() / 3; every > 0 && s.stopRenewing == nil {
		s.stopRenewing = make(chan struct{})
		go s.keepRenewing(s.stopRenewing, every)
	}
	s.mu.Unlock()
	s.turn.Unlock()
	work(ctx)
	s.turn.Lock()
	defer s.turn.Unlock()
	s.mu.Lock()
	delete(h.work, &stop)
	last := len(h.work) == 0
	if last {
		delete(s.held, lease)
		s.elsewhere[lease.Name] = true // until the next attempt to acquire the lease
	}
	if len(s.held) == 0 && s.stopRenewing != nil {
		close(s.stopRenewing)
		s.stopRenewing = nil
	}
	s.mu.Unlock()
	if errors.Is(context.Cause(ctx), ErrLeaseLost) {
		s.log.Warn("lease lost; its duty ends here", "lease", lease.Name, "fence", lease.Fence)
		return false
	}
	if !last {
		return true
	}
	if err := s.leases.Release(context.WithoutCancel(ctx), []Lease{lease}); err != nil {
		s.log.Warn("lease not released; it ends by itself", "lease", lease.Name, "err", err)
	}
	return true
}

// keepRenewing renews the leases of this session until stop is closed.
func (s *Session) keepRenewing(stop <-chan struct{}, every time.Duration) {
	ticker := time.Tick(every)
	for {
		select {
		case <-stop:
			return
		case <-ticker:
			s.renew(every)
		}
	}
}

// renew renews every lease once, and stops the duties whose lease is lost or may have ended.
func (s *Session) renew(timeout time.Duration) {
	askedAt := time.Now()
	var held []Lease
	s.mu.Lock()
	for lease, h := range s.held {
		if h.isCurrent(s.leases.TTL(), askedAt) {
			held = append(held, lease)
			continue
		}
		s.lose(lease, h) // renewals failed, or this process was suspended
	}
	s.mu.Unlock()
	if len(held) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	lost, err := s.leases.Renew(ctx, held)
	if err != nil {
		s.log.Warn("leases not renewed; duties stop when theirs end", "err", err) // the next round stops the duties whose lease may have ended
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, lease := range held {
		if h := s.held[lease]; h != nil && !slices.Contains(lost, lease) {
			h.until = askedAt.Add(s.leases.TTL())
		}
	}
	for _, lease := range lost {
		if h := s.held[lease]; h != nil {
			s.lose(lease, h)
		}
	}
}

// lose ends the contexts of the work whose lease is lost. The caller must hold s.mu.
func (s *Session) lose(lease Lease, h *heldLease) {
	s.elsewhere[lease.Name] = true
	for stop := range h.work {
		(*stop)(fmt.Errorf("%w: %s", ErrLeaseLost, lease.Name))
	}
}
