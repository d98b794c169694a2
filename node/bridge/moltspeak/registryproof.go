package moltspeak

import (
	"context"
	"errors"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

const (
	proveAgain = 7 * 24 * time.Hour // how long an answer of an endpoint counts
	proveEvery = time.Hour          // at most, for one agent
	proveTime  = 15 * time.Second
)

// proofs are the agents of the registry whose endpoint is to be asked. A full queue drops: a heartbeat asks again.
type proofs chan string

func (p proofs) ask(id string) {
	select {
	case p <- id:
	default:
	}
}

// proveEndpoints asks endpoints of the registry for their keys, one after the other, until ctx ends.
func (s *registryServer) proveEndpoints(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case id := <-s.proofs:
			if err := s.proveEndpoint(ctx, id, time.Now()); err != nil && ctx.Err() == nil {
				s.log.InfoContext(ctx, "moltspeak: an endpoint of the registry is not proven", "agent", id, "err", err)
			}
		}
	}
}

// proveKey notes that an agent of the registry signed a message with the key that it registered (MS-55).
func (s *registryServer) proveKey(ctx context.Context, name, key string, now time.Time) {
	if !s.shelf.claims(name, key) {
		return
	}
	if err := s.changeEntry(ctx, name, now, func(k *kept) { k.Key = now.UTC() }); err != nil {
		s.log.WarnContext(ctx, "moltspeak: keep the proof of a key", "agent", name, "err", err)
	}
}

// changeEntry changes a live entry of the registry.
func (s *registryServer) changeEntry(ctx context.Context, id string, now time.Time, change func(*kept)) error {
	var k kept
	rev, ok, err := readRecord(ctx, s.records, nsRegistry, id, &k, now)
	if err != nil || !ok || k.Gone {
		return err
	}
	k.rev = rev
	change(&k)
	if err := s.keep(ctx, k, now); err != nil && !errors.Is(err, store.ErrConflict) {
		return err
	}
	return nil
}

// proveEndpoint has the endpoint of an entry sign a challenge with the key of the entry. An answer that was good once
// and is not any more takes the proof back.
func (s *registryServer) proveEndpoint(ctx context.Context, id string, now time.Time) error {
	var k kept
	_, ok, err := readRecord(ctx, s.records, nsRegistry, id, &k, now)
	if err != nil || !ok || k.Gone || k.Endpoint == "" || now.Sub(k.Answered) < proveAgain || now.Sub(k.Tried) < proveEvery {
		return err
	}
	callErr := s.challenge(ctx, k.Entry, now)
	return errors.Join(callErr, s.changeEntry(ctx, id, now, func(it *kept) {
		if it.Endpoint != k.Endpoint {
			return // it is another one by now
		}
		it.Tried, it.Answered = now.UTC(), time.Time{}
		if callErr == nil {
			it.Key, it.Answered = it.Tried, it.Tried
		}
	}))
}
