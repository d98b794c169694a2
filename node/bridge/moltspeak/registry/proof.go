package registry

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

const (
	proveAgain = 7 * 24 * time.Hour // how long after a proof an endpoint is not challenged again
	proveEvery = time.Hour          // minimum time between two challenges of one agent whose endpoint did not change
	proveTime  = 15 * time.Second
)

// proofs is the queue of registered agents whose endpoints are to be challenged. An agent has one place, however often
// its entry changes. If the queue is full, an agent is left out; its next heartbeat queues it again.
type proofs struct {
	queue   chan string
	waiting sync.Map // the agents in queue
}

func (p *proofs) ask(id string) {
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
	if !s.cache.hasUnprovenKey(name, key) {
		return
	}
	if err := s.changeEntry(ctx, name, now, func(k *registration) { k.Key = now.UTC() }); err != nil {
		s.cfg.Logger.WarnContext(ctx, "moltspeak: store the proof of a key", "agent", name, "err", err)
	}
}

// changeEntry changes a live entry of the registry. It does nothing if the entry is gone or was changed meanwhile.
func (s *Server) changeEntry(ctx context.Context, id string, now time.Time, change func(*registration)) error {
	var k registration
	rev, ok, err := store.ReadRecord(ctx, s.cfg.Records, ns, id, &k, now)
	if err != nil || !ok || k.Gone {
		return err
	}
	k.rev = rev
	change(&k)
	if err := s.save(ctx, k, now); err != nil && !errors.Is(err, store.ErrConflict) {
		return err
	}
	return nil
}

// proveEndpoint makes the endpoint of an entry sign a challenge with the key of the entry, unless it did so or was
// asked not long ago. A failure withdraws an earlier proof of the endpoint.
func (s *Server) proveEndpoint(ctx context.Context, id string, now time.Time) error {
	var k registration
	_, ok, err := store.ReadRecord(ctx, s.cfg.Records, ns, id, &k, now)
	if err != nil || !ok || k.Gone || k.Endpoint == "" || now.Sub(k.Answered) < proveAgain || now.Sub(k.Tried) < proveEvery {
		return err
	}
	calling, cancel := context.WithTimeout(ctx, proveTime)
	callErr := s.cfg.Challenge(calling, k.Entry, now)
	cancel()
	return errors.Join(callErr, s.changeEntry(ctx, id, now, func(it *registration) {
		if it.Endpoint != k.Endpoint {
			return // the endpoint changed meanwhile
		}
		it.Tried, it.Answered = now.UTC(), time.Time{}
		if callErr == nil {
			it.Key, it.Answered = it.Tried, it.Tried
		}
	}))
}
