package directory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// When endpoints are asked (AM-63).
const (
	askEvery   = 24 * time.Hour // again, less up to a tenth so that they spread
	askMissed  = time.Hour      // again after the first miss
	maxMisses  = 3              // clear the proof
	askTimeout = 15 * time.Second
	askAtOnce  = 8
	askPause   = time.Second      // between two looks at the line
	walkPause  = 30 * time.Second // between two walks through the cards
	pagePause  = 2 * time.Second  // between two pages of one: a million cards take about an hour
	walkPage   = 500
)

// Run does the directory's own work until ctx ends: it makes the key of the cursors, then asks endpoints whether they
// return the card that names them. It returns when none of that work is running.
func (r *Registry) Run(ctx context.Context) {
	r.makeCursorKey(ctx)
	if r.cfg.HTTP == nil {
		<-ctx.Done()
		return
	}
	var running sync.WaitGroup
	running.Go(func() { r.walk(ctx) })
	work := make(chan asked)
	for range askAtOnce {
		running.Go(func() {
			for a := range work {
				r.ask(ctx, a)
			}
		})
	}
	due := time.NewTimer(0)
	defer due.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-r.lineup.added:
		case <-due.C:
		}
		ready, again := r.lineup.next(time.Now(), askAtOnce)
		for _, a := range ready {
			select {
			case work <- a:
			case <-ctx.Done():
			}
		}
		if due.Stop(); !again.IsZero() { // else the next card wakes us
			due.Reset(time.Until(again))
		}
		pause(ctx, askPause) // also where cards came: a flood of them is looked at once
	}
	close(work)
	running.Wait()
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// walk puts every card that is due into the line. A new card is put there at once by its registration; the walk
// finds what a restart or a full line lost.
func (r *Registry) walk(ctx context.Context) {
	q := store.CardQuery{Limit: walkPage}
	for {
		q.Now = clock()
		page, err := r.cards.List(ctx, q)
		if err != nil && ctx.Err() == nil {
			r.log.WarnContext(ctx, "look for endpoints to ask", "err", err)
		}
		for _, c := range page.Cards {
			if m, err := parseMeta(c); err == nil && !q.Now.Before(m.due(c.ID)) {
				if card, err := r.stored(c); err == nil {
					r.askSoon(card)
				}
			}
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

// due is when the endpoint is to be asked: the zero time, and so at once, where it was never asked.
func (m meta) due(id string) time.Time {
	switch {
	case m.Probed.IsZero():
		return time.Time{}
	case m.Misses == 0:
		h := fnv.New32a()
		_, _ = h.Write([]byte(id)) // never fails
		return m.Probed.Add(askEvery - time.Duration(h.Sum32()%100)*askEvery/1000)
	case m.Misses < maxMisses:
		return m.Probed.Add(askMissed << (2 * (m.Misses - 1))) // 1 h, 4 h
	}
	return m.Probed.Add(askEvery)
}

// askSoon puts a card into the line. A mailbox of this directory is not asked: its proof is the relay connection of
// its agent (AM-66).
func (r *Registry) askSoon(card wire.Card) {
	if r.cfg.HTTP == nil || r.ownMailbox(card) {
		return
	}
	r.lineup.add(asked{string(card.ID), endpointHost(card)})
}

// ownMailbox says whether the endpoint of a card is its mailbox here: not that of another agent.
func (r *Registry) ownMailbox(card wire.Card) bool {
	return card.Endpoint == r.cfg.BaseURL+"/mailbox/"+string(card.ID)
}

// ask asks one endpoint and keeps what it found out.
func (r *Registry) ask(ctx context.Context, a asked) {
	held, err := r.cards.Get(ctx, a.id, clock())
	if errors.Is(err, store.ErrNotFound) {
		return
	}
	var card wire.Card
	if err == nil {
		card, err = r.stored(held)
	}
	if err == nil && endpointHost(card) != a.host {
		r.askSoon(card) // it moved meanwhile, and its new host has a pause of its own
		return
	}
	if err == nil {
		said := r.endpointSays(ctx, card)
		if ctx.Err() != nil {
			return // the server stops: nobody failed
		}
		if said == nil {
			r.counters.proven.Inc()
		} else {
			r.counters.missed.Inc()
		}
		r.log.DebugContext(ctx, "endpoint asked", "agent_id", card.ID, "err", said)
		err = r.keepAnswer(ctx, card, said == nil)
	}
	if err != nil && ctx.Err() == nil {
		r.log.WarnContext(ctx, "ask endpoint", "agent_id", a.id, "err", err)
	}
}

// endpointSays asks the endpoint of card for its card and says in how far that is another one.
func (r *Registry) endpointSays(ctx context.Context, card wire.Card) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	reach := client.Public
	if r.cfg.Local {
		reach = client.Loopback
	}
	return CheckEndpoint(ctx, r.cfg.HTTP, reach, card, r.userAgent())
}

// userAgent is fixed, so that an operator who finds it in a log knows whom to ask.
func (r *Registry) userAgent() string {
	return "agentmesh-directory (+" + r.cfg.BaseURL + "; proves endpoints, see AM-63)"
}

// CheckEndpoint GETs the endpoint of card as a directory does: it must return a card with the same id and key within
// the bounds of a card. A redirect is not followed.
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
		return fmt.Errorf("the endpoint answers %d", resp.StatusCode)
	}
	tree, err := wire.ParseObject(body)
	if err != nil {
		return fmt.Errorf("the endpoint answers no card: %w", err)
	}
	if got := tree.GetStr("agent_id"); got != string(card.ID) {
		return errors.New("the endpoint answers with the card of another agent")
	}
	return sameKey(card.PublicKey, tree.GetStr("public_key"))
}

// keepAnswer stores what was found out about card, unless its key or endpoint changed meanwhile.
func (r *Registry) keepAnswer(ctx context.Context, card wire.Card, answered bool) error {
	for range attempts {
		now := clock()
		held, err := r.cards.Get(ctx, string(card.ID), now)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		current, err := r.stored(held)
		if err != nil {
			return err
		}
		if current.Endpoint != card.Endpoint || sameKey(current.PublicKey, card.PublicKey) != nil {
			r.askSoon(current)
			return nil
		}
		m, err := parseMeta(held)
		if err != nil {
			return err
		}
		m.answered(answered, now)
		if held.Meta, err = m.encode(); err != nil {
			return err
		}
		held.Terms = m.termed(held.Terms, now)
		_, err = r.cards.Put(ctx, store.PutCard{Card: held, IfRev: held.Rev, Now: now})
		r.wrote(held.ID)
		if !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return errors.New("lost every race for the card")
}

// answered notes that the endpoint was asked, and whether it answered as it should.
func (m *meta) answered(well bool, now time.Time) {
	m.Probed = now
	if well {
		m.Endpoint, m.Alive, m.Misses = now, now, 0
		return
	}
	if m.Misses++; m.Misses >= maxMisses {
		m.Endpoint, m.Misses = time.Time{}, maxMisses
	}
}

func sameKey(a, b string) error {
	if a == b {
		return nil
	}
	x, err := signing.ParsePublicKey(a)
	if err != nil {
		return err
	}
	y, err := signing.ParsePublicKey(b)
	if err != nil {
		return fmt.Errorf("the endpoint answers with a key that cannot be read: %w", err)
	}
	if x.Kind() != y.Kind() || !bytes.Equal(x.Canonical(), y.Canonical()) {
		return errors.New("the endpoint answers with another key")
	}
	return nil
}
