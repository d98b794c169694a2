package link

import (
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
)

const (
	joinAfter    = 2 * time.Second  // without a welcome the join is said in words (MEW-L1)
	welcomeBy    = 15 * time.Second // without one by then it is no gateway
	steadyAfter  = time.Minute      // a link that stood so long starts over with the short wait
	echoPatience = 10 * time.Second // for our own envelope to come back
	linkWorkers  = 4
	linkQueue    = 256    // envelopes to us that wait for one worker
	maxPeople    = 10_000 // of a space that we keep track of
	maxShown     = 500    // streams that we keep track of
	// Bytes of what is only shown to the owner: of one stream, and of what all participants may do.
	maxShownBytes = 16 << 10
	maxCapsBytes  = 16 << 20
	maxEchoes     = 1024    // envelopes of ours that wait for their echo
	maxWelcome    = 4 << 20 // bytes of a welcome; nothing else may be larger than [MaxEnvelope] (MEW-Q4)
)

// Link connects the node with a space that somebody else hosts. What comes in is for the node is done by workers, in the order
// of each sender.
type Link struct {
	b         *Bridge
	cfg       *bridge.Link
	principal string
	meter     *bridge.LinkMeter
	log       *slog.Logger
	records   *records
	space     *membership
	shares    chan struct{} // something is new in what the space sees
	notices   notices

	seed    maphash.Seed
	queues  [linkWorkers]chan job
	dropped atomic.Uint64 // envelopes to us that found no room

	marks sync.Mutex // one acknowledgement at a time
}

// job is an envelope that is for the node.
type job struct {
	e   envelope.Envelope
	raw []byte
	at  time.Time
}

func (b *Bridge) newLink(cfg bridge.Link) (*Link, error) {
	target, err := socketTarget(cfg)
	if err != nil {
		return nil, err
	}
	if b.cfg.Tokens[cfg.Name] == "" {
		return nil, errors.New("needs token_file or token_env")
	}
	log := b.log.With("link", cfg.Name)
	l := &Link{
		b: b, cfg: &cfg, principal: Principal(cfg.Name), meter: bridge.NewLinkMeter(cfg.Policy.Limits), log: log,
		records: &records{cfg.Name, b.cfg.Records, log}, shares: make(chan struct{}, 1), seed: maphash.MakeSeed(),
	}
	for i := range l.queues {
		l.queues[i] = make(chan job, linkQueue)
	}
	l.space = &membership{
		cfg: &b.cfg, link: &cfg, token: b.cfg.Tokens[cfg.Name], target: target, log: log, records: l.records,
		receive: l.queue, joinedSpace: l.shareSoon, wake: make(chan struct{}, 1),
		state: bridge.LinkConnecting, since: time.Now(), echoes: make(map[string]chan outcome),
	}
	return l, nil
}

// Status returns how the connection stands.
func (l *Link) Status() bridge.LinkStatus { return l.space.status() }

// View returns the space behind the link, as far as a participant sees it.
func (l *Link) View() view.Space { return l.space.view() }

// Watch starts a feed. It must be closed.
func (l *Link) Watch() *view.Feed { return l.space.feeds.Watch() }

// Name returns the id of this node in the space.
func (l *Link) Name() string { return l.space.name() }

// Connect has the link try now, also one that is down.
func (l *Link) Connect() { l.space.connect() }

// run keeps the link connected until ctx ends (MEW-L1).
func (l *Link) run(ctx context.Context) error {
	if err := l.space.recall(ctx); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, q := range l.queues {
		g.Go(func() error {
			for {
				select {
				case j := <-q:
					l.work(ctx, j)
				case <-ctx.Done():
					return nil
				}
			}
		})
	}
	if l.b.cfg.Steps != nil {
		g.Go(func() error { l.sharing(ctx); return nil })
	}
	g.Go(func() error { l.space.keepUp(ctx); return nil })
	return g.Wait()
}

// queue gives a job to the worker of its sender. What finds no room is gone, as it is in MEW for whoever is not there.
func (l *Link) queue(j job) {
	select {
	case l.queues[maphash.String(l.seed, j.e.From)%linkWorkers] <- j:
	default:
		if n := l.dropped.Add(1); n&(n-1) == 0 {
			l.log.Warn("envelopes to this node found no room", "dropped", n)
		}
	}
}
