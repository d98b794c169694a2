package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/waiting"
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

// Config configures a prober. If HTTP is nil, it probes no endpoint.
type Config struct {
	HTTP      *client.HTTP
	Reach     client.Reach
	UserAgent string // identifies the directory to an operator who finds a probe in a log
	Cards     store.Cards
	// IsMailbox reports whether the endpoint of a card is its mailbox in the directory.
	IsMailbox func(wire.Card) bool
	// IsElsewhere reports whether another process probes.
	IsElsewhere func() bool
	// Save stores the result of a probe of card, unless its key or endpoint has changed meanwhile.
	Save    func(ctx context.Context, card wire.Card, answered bool) error
	Metrics *httpapi.Metrics
	Logger  *slog.Logger
}

// Prober fetches the cards of agents from their endpoints (AM-63). It is safe for concurrent use.
type Prober struct {
	cfg            Config
	queue          *Queue
	proven, missed *httpapi.Counter // probed endpoints
}

// New returns a prober with an empty queue.
func New(cfg Config) *Prober {
	const name, help = "endpoints_asked_total", "Probes of agent endpoints, by outcome."
	p := &Prober{cfg: cfg, queue: NewQueue(), proven: cfg.Metrics.Counter(name, help, "outcome", "proven"), missed: cfg.Metrics.Counter(name, help, "outcome", "missed")}
	cfg.Metrics.Gauge("endpoints_waiting", "Cards whose endpoint waits to be probed.", func() float64 { return float64(p.queue.Len()) })
	return p
}

// Queue returns the cards that wait for a probe.
func (p *Prober) Queue() *Queue { return p.queue }

// Run probes endpoints until ctx ends. It returns after the last probe has ended, because another process may probe
// from then on.
func (p *Prober) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { p.walk(ctx) })
	work := make(chan Target)
	for range maxProbes {
		running.Go(func() {
			for t := range work {
				p.Probe(ctx, t)
			}
		})
	}
	due := time.NewTimer(0)
	defer due.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-p.queue.Added():
		case <-due.C:
		}
		ready, nextAt := p.queue.Next(time.Now(), maxProbes)
		for _, t := range ready {
			select {
			case work <- t:
			case <-ctx.Done():
			}
		}
		if due.Stop(); !nextAt.IsZero() { // if the queue is empty, the next card wakes the loop
			due.Reset(time.Until(nextAt))
		}
		waiting.Pause(ctx, queuePause) // also after new cards, to handle many of them together
	}
	close(work)
}

// walk queues every card whose probe is due. A registration queues its card at once; the walk finds the cards that a
// restart or a full queue lost.
func (p *Prober) walk(ctx context.Context) {
	q := store.CardQuery{Limit: walkPage}
	for {
		q.Now = wire.Now()
		page, err := p.cfg.Cards.List(ctx, q)
		if err != nil && ctx.Err() == nil {
			p.cfg.Logger.WarnContext(ctx, "cannot list cards to probe", "err", err)
		}
		for _, c := range page.Cards {
			p.AddIfDue(c, q.Now)
		}
		wait := walkPause
		q.After = store.Position{}
		if page.Next != nil {
			q.After, wait = *page.Next, pagePause
		}
		if !waiting.Pause(ctx, wait) {
			return
		}
	}
}

// Add queues a card for a probe, unless another process probes. It skips mailboxes in this directory: their proof is
// the agent's relay connection (AM-66).
func (p *Prober) Add(card wire.Card) {
	if p.cfg.HTTP == nil || p.cfg.IsMailbox(card) || p.cfg.IsElsewhere() {
		return
	}
	p.queue.Add(Target{ID: string(card.ID), Host: listing.Host(card)})
}

// AddIfDue queues a card whose probe is due.
func (p *Prober) AddIfDue(c store.Card, now time.Time) {
	h, err := listing.ParseHead(c)
	if err == nil && h.IsProbeDue(c.ID, now) {
		if card, err := listing.ParseCard(c); err == nil {
			p.Add(card)
		}
	}
}

// Probe probes one endpoint and stores the result.
func (p *Prober) Probe(ctx context.Context, t Target) {
	held, err := p.cfg.Cards.Get(ctx, t.ID, wire.Now())
	if errors.Is(err, store.ErrNotFound) {
		return
	}
	var card wire.Card
	if err == nil {
		card, err = listing.ParseCard(held)
	}
	if err == nil && listing.Host(card) != t.Host {
		p.Add(card) // the endpoint moved, and its new host has its own pause
		return
	}
	if err == nil {
		probeCtx, cancel := context.WithTimeout(ctx, probeTimeout)
		probeErr := Check(probeCtx, p.cfg.HTTP, p.cfg.Reach, card, p.cfg.UserAgent)
		cancel()
		if ctx.Err() != nil {
			return // the server stops: this is not a miss
		}
		if probeErr == nil {
			p.proven.Inc()
		} else {
			p.missed.Inc()
		}
		p.cfg.Logger.DebugContext(ctx, "endpoint probed", "agent_id", card.ID, "err", probeErr)
		err = p.cfg.Save(ctx, card, probeErr == nil)
	}
	if err != nil && ctx.Err() == nil {
		p.cfg.Logger.WarnContext(ctx, "cannot probe endpoint", "agent_id", t.ID, "err", err)
	}
}

// Check fetches the endpoint of card as a directory does. The endpoint must return a card with the same id and key,
// within the size limit of a card. Check follows no redirects.
func Check(ctx context.Context, h *client.HTTP, reach client.Reach, card wire.Card, userAgent string) error {
	resp, body, err := h.Get(ctx, reach, card.Endpoint, http.Header{"User-Agent": {userAgent}}, wire.MaxCard)
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
