package directory

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/directory/probequeue"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Times and limits of probes (AM-63).
const (
	probeTimeout = 15 * time.Second
	maxProbes    = 8                // at once
	queuePause   = time.Second      // between two looks at the queue
	walkPause    = 30 * time.Second // between two walks over all cards
	pagePause    = 2 * time.Second  // between two pages of a walk: a million cards take about an hour
	walkPage     = 500
)

// Lease is the name of the lease under which one process has the duties of a directory, such as probes and mirroring.
const Lease = "directory"

// Run does the directory's background work until ctx ends: it makes the key of the cursors, stores the history, follows
// the other processes of the directory and, while this process has the lease, probes endpoints. It returns after all of
// this work has stopped.
func (r *Registry) Run(ctx context.Context) {
	// A list made while the disk is full would have no second page without the key.
	if _, err := r.cursors.Get(ctx); err != nil && ctx.Err() == nil {
		r.log.Error("cannot store the key for cursors: lists with a second page fail until the store works", "err", err)
	}
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { r.counters.days.Keep(ctx, r.recs, recordNS, "history", r.log) })
	running.Go(func() { followProcesses(ctx, r) })
	if r.cfg.HTTP == nil {
		return
	}
	r.cfg.Session.Do(ctx, Lease, func(ctx context.Context) { probeAll(ctx, r) })
}

// probeAll probes endpoints until ctx ends. It returns after all probes have ended, because another process may begin
// to probe then.
func probeAll(ctx context.Context, r *Registry) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { r.walkCards(ctx) })
	work := make(chan probequeue.Target)
	for range maxProbes {
		running.Go(func() {
			for a := range work {
				r.probe(ctx, a)
			}
		})
	}
	due := time.NewTimer(0)
	defer due.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-r.probeQueue.Added():
		case <-due.C:
		}
		ready, again := r.probeQueue.Next(time.Now(), maxProbes)
		for _, a := range ready {
			select {
			case work <- a:
			case <-ctx.Done():
			}
		}
		if due.Stop(); !again.IsZero() { // otherwise the next card wakes the loop
			due.Reset(time.Until(again))
		}
		pause(ctx, queuePause) // also after new cards, so that many of them are handled together
	}
	close(work)
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// walkCards queues every card whose probe is due. A registration queues its new card at once; the walk finds the cards
// that a restart or a full queue lost.
func (r *Registry) walkCards(ctx context.Context) {
	q := store.CardQuery{Limit: walkPage}
	for {
		q.Now = wire.Now()
		page, err := r.cards.List(ctx, q)
		if err != nil && ctx.Err() == nil {
			r.log.WarnContext(ctx, "cannot list cards to probe", "err", err)
		}
		for _, c := range page.Cards {
			r.queueIfDue(c, q.Now)
		}
		wait := walkPause
		q.After = store.Position{}
		if page.Next != nil {
			q.After, wait = *page.Next, pagePause
		}
		if pause(ctx, wait); ctx.Err() != nil {
			return
		}
	}
}

// queueProbe queues a card for a probe. A mailbox of this directory is not probed: its proof is the relay connection of
// its agent (AM-66).
func (r *Registry) queueProbe(card wire.Card) {
	if r.cfg.HTTP == nil || r.relay.Owns(card) || r.cfg.Session.IsElsewhere(Lease) {
		return
	}
	r.probeQueue.Add(probequeue.Target{ID: string(card.ID), Host: listing.Host(card)})
}

// queueIfDue queues a card whose probe is due.
func (r *Registry) queueIfDue(c store.Card, now time.Time) {
	m, err := listing.ParseMeta(c)
	if err == nil && m.IsProbeDue(c.ID, now) {
		if card, err := listing.ParseCard(c); err == nil {
			r.queueProbe(card)
		}
	}
}

// probe probes one endpoint and stores the result.
func (r *Registry) probe(ctx context.Context, a probequeue.Target) {
	held, err := r.cards.Get(ctx, a.ID, wire.Now())
	if errors.Is(err, store.ErrNotFound) {
		return
	}
	var card wire.Card
	if err == nil {
		card, err = listing.ParseCard(held)
	}
	if err == nil && listing.Host(card) != a.Host {
		r.queueProbe(card) // the endpoint moved, and its new host has its own pause
		return
	}
	if err == nil {
		failure := r.fetchAndCompare(ctx, card)
		if ctx.Err() != nil {
			return // the server stops, so this is not a miss
		}
		if failure == nil {
			r.counters.proven.Inc()
		} else {
			r.counters.missed.Inc()
		}
		r.log.DebugContext(ctx, "endpoint probed", "agent_id", card.ID, "err", failure)
		err = r.saveProbe(ctx, card, failure == nil)
	}
	if err != nil && ctx.Err() == nil {
		r.log.WarnContext(ctx, "cannot probe endpoint", "agent_id", a.ID, "err", err)
	}
}

// fetchAndCompare fetches the endpoint of card. It returns nil if the endpoint has a card with the same id and key.
func (r *Registry) fetchAndCompare(ctx context.Context, card wire.Card) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	reach := client.Public
	if r.cfg.Local {
		reach = client.Loopback
	}
	return CheckEndpoint(ctx, r.cfg.HTTP, reach, card, r.userAgent())
}

// userAgent identifies this directory, so that an operator who finds a probe in a log knows whom to contact.
func (r *Registry) userAgent() string {
	return "agentmesh-directory (+" + r.cfg.BaseURL + "; proves endpoints)"
}

// CheckEndpoint fetches the endpoint of card as a directory does. The endpoint must return a card with the same id and
// key, within the size limit of a card. Redirects are not followed.
func CheckEndpoint(ctx context.Context, h *client.HTTP, reach client.Reach, card wire.Card, userAgent string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, card.Endpoint, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", userAgent)
	resp, err := h.Do(ctx, reach, req)
	if err != nil {
		return err
	}
	body, err := client.ReadAll(resp, wire.MaxCard)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the endpoint answers with status %d", resp.StatusCode)
	}
	tree, err := wire.ParseObject(body)
	if err != nil {
		return fmt.Errorf("the endpoint does not answer with a card: %w", err)
	}
	if got := tree.GetStr("agent_id"); got != string(card.ID) {
		return errors.New("the endpoint answers with the card of another agent")
	}
	return listing.SameKey(card.PublicKey, tree.GetStr("public_key"))
}

// saveProbe stores the result of a probe of card, unless the key or the endpoint of the card has changed since then.
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
			r.queueProbe(current)
			return nil
		}
		m.AddProbe(answered, now)
		if held.Meta, err = m.Encode(); err != nil {
			return err
		}
		held.Terms = replaceCheckTerms(m, held.Terms, now)
		_, err = r.cards.Put(ctx, store.PutCard{Card: held, IfRev: held.Rev, Now: now})
		r.afterWrite(held.ID)
		if !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return errors.New("lost every race for the card")
}
