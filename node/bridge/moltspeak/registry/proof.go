package registry

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	proveAgain = 7 * 24 * time.Hour // time from a proof of an endpoint to its next challenge
	proveEvery = time.Hour          // minimum time between two challenges of one agent whose endpoint did not change
	proveTime  = 15 * time.Second   // longest time for one challenge
)

// proofs is the queue of registered agents whose endpoints are to be challenged. An agent has one place, however often
// its entry changes. If the queue is full, an agent is left out; its next heartbeat queues it again.
type proofs struct {
	queue   chan string
	waiting sync.Map // the agents in queue
}

// add queues an agent, unless it is in the queue already.
func (p *proofs) add(id string) {
	if _, waits := p.waiting.LoadOrStore(id, true); waits {
		return
	}
	select {
	case p.queue <- id:
	default:
		p.waiting.Delete(id)
	}
}

// Run challenges the endpoints in the queue, one after the other, until ctx ends.
func (s *Server) Run(ctx context.Context) {
	s.accounts.Reload(ctx, s.cfg.Logger) // another instance may have served the registry
	for {
		select {
		case <-ctx.Done():
			return
		case id := <-s.proofs.queue:
			s.proofs.waiting.Delete(id)
			if err := s.proveEndpoint(ctx, id, time.Now()); err != nil && ctx.Err() == nil {
				s.cfg.Logger.InfoContext(ctx, "moltspeak: the endpoint of a registered agent did not prove its key", "agent", id, "err", err)
			}
		}
	}
}

// ProveKey records that a registered agent signed a message with its registered key (MS-55).
func (s *Server) ProveKey(ctx context.Context, name, key string, now time.Time) {
	reg := s.accounts.Get(name)
	if reg == nil || reg.PublicKey != key || !reg.KeyUsed.IsZero() {
		return
	}
	err := s.accounts.Edit(ctx, name, func(reg *registration) error { reg.KeyUsed = now.UTC(); return nil })
	if err != nil {
		s.cfg.Logger.WarnContext(ctx, "moltspeak: cannot store the proof of a key", "agent", name, "err", err)
	}
}

// proveEndpoint makes the endpoint of an entry sign a challenge with the key of the entry, unless it did so or was
// asked not long ago. A failure withdraws an earlier proof of the endpoint.
func (s *Server) proveEndpoint(ctx context.Context, id string, now time.Time) error {
	reg := s.accounts.Get(id)
	if reg == nil || reg.Endpoint == "" || now.Sub(reg.Answered) < proveAgain || now.Sub(reg.Tried) < proveEvery {
		return nil
	}
	challengeCtx, cancel := context.WithTimeout(ctx, proveTime)
	callErr := s.cfg.Challenge(challengeCtx, *reg.entry, now)
	cancel()
	return errors.Join(callErr, s.accounts.Edit(ctx, id, func(it *registration) error {
		if it.Endpoint != reg.Endpoint {
			return nil // the endpoint changed meanwhile
		}
		it.Tried, it.Answered = now.UTC(), time.Time{}
		if callErr == nil {
			it.KeyUsed, it.Answered = it.Tried, it.Tried
		}
		return nil
	}))
}
