package directory

import (
	"context"
	"errors"
	"sync"

	"github.com/agentmesh/agentmesh/directory/a2arelay"
	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/directory/mailbox"
	"github.com/agentmesh/agentmesh/directory/moderation"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Lease is the name of the lease of the process that probes and mirrors. Only one process at a time has it.
const Lease = "directory"

// Run does the directory's background work until ctx ends: it makes the key of the cursors, stores the history, follows
// the other processes of the directory and, while this process has the lease, probes endpoints. It returns after all of
// this work has stopped.
func (r *Registry) Run(ctx context.Context) {
	// Store the key now: a list needs it for its second page, even if the disk is full by then.
	if _, err := r.cursors.Get(ctx); err != nil && ctx.Err() == nil {
		r.cfg.Logger.Error("cannot store the key for cursors: lists of more than one page fail until the store works", "err", err)
	}
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { followProcesses(ctx, r) })
	if r.cfg.HTTP != nil {
		r.cfg.Session.Do(ctx, Lease, r.prober.Run)
	}
}

// followProcesses applies the changes of other processes of the directory until ctx ends.
func followProcesses(ctx context.Context, r *Registry) {
	for change := range r.cfg.Store.Watch(ctx, store.WatchCards, moderation.BansNS, mailbox.MailNS, mailbox.OffersNS, a2arelay.NSTasks) {
		switch change.NS {
		case store.WatchCards:
			r.afterWrite(change.Key)
			now := wire.Now()
			if held, err := r.cards.Get(ctx, change.Key, now); err == nil { // otherwise the prober's walk over all cards finds it later
				r.prober.AddIfDue(held, now)
			}
		case moderation.BansNS:
			r.bans.Invalidate()
		case mailbox.MailNS, mailbox.OffersNS:
			if err := r.relay.ApplyChange(ctx, change.NS, change.Key); err != nil {
				r.cfg.Logger.WarnContext(ctx, "cannot read mail that another process stored", "err", err)
			}
		case a2arelay.NSTasks:
			if err := r.calls.ApplyChange(ctx, change.Key); err != nil {
				r.cfg.Logger.WarnContext(ctx, "cannot read a task that another process stored", "err", err)
			}
		default: // the store may not have reported some changes
			r.bans.Invalidate()
			r.views.clear()
			r.changed.Broadcast()
			r.calls.InvalidateCounts()
			r.relay.Invalidate()
		}
	}
}

// saveProbe stores the result of a probe of card. If the card's endpoint or key has changed meanwhile, it queues a
// probe of the new card instead.
func (r *Registry) saveProbe(ctx context.Context, card wire.Card, answered bool) error {
	for range attempts {
		now := wire.Now()
		held, err := r.cards.Get(ctx, string(card.ID), now)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		current, m, err := listing.Parse(held)
		if err != nil {
			return err
		}
		if current.Endpoint != card.Endpoint || listing.SameKey(current.PublicKey, card.PublicKey) != nil {
			r.prober.Add(current)
			return nil
		}
		m.AddProbe(answered, now)
		held.Meta = m.Encode()
		held.Terms = replaceCheckTerms(m, held.Terms, now)
		_, err = r.cards.Put(ctx, store.PutCard{Card: held, IfRev: held.Rev, Now: now})
		r.afterWrite(held.ID)
		if !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return errors.New("lost every race for the card")
}
