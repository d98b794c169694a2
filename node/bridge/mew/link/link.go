package link

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/waiting"
)

const (
	joinAfter       = 2 * time.Second  // without a welcome, the link sends a join message (MEW-L1)
	welcomeBy       = 15 * time.Second // without a welcome by then, the connection ends
	limitPause      = time.Minute      // wait for the next attempt after the space limited the rate of this node
	echoPatience    = 10 * time.Second // how long the link waits for an echo: the gateway sends our envelopes back to us
	linkWorkers     = 4
	linkQueue       = 256     // envelopes that wait for one worker
	maxAnswered     = 8       // ids in the correlation_id of a chat that the link looks up
	maxCorrelated   = 16      // the same for other envelopes
	maxParticipants = 10_000  // participants of a space that a link remembers
	maxEchoes       = 1024    // envelopes that wait for their echo
	maxWelcome      = 4 << 20 // bytes of a welcome; other envelopes are bounded by envelope.MaxEnvelope (MEW-Q4)
)

// Link connects the node with a space. Workers handle the envelopes for the node; those of one sender stay in order.
type Link struct {
	b          *Bridge
	cfg        *bridge.Link
	principal  string
	meter      *bridge.LinkMeter
	log        *slog.Logger
	records    *records
	space      *membership
	expiryWake chan struct{} // wakes up runExpiry
	notices    *rate.Buckets // limits the notices to each sender; see newNotices

	seed    maphash.Seed
	queues  [linkWorkers]chan job
	dropped atomic.Uint64 // envelopes that were lost because their queue was full

	acks sync.Mutex // held while an acknowledgement is sent and stored
}

// job is an envelope for the node.
type job struct {
	e        envelope.Envelope
	raw      []byte
	at       time.Time
	proposer string // for a request that fulfills a proposal to this node: who made the proposal; otherwise empty
}

func (b *Bridge) newLink(cfg bridge.Link, token client.Credential) (*Link, error) {
	target, err := socketTarget(cfg)
	if err != nil {
		return nil, err
	}
	if token == "" {
		return nil, errors.New("the link needs token_file")
	}
	log := b.log.With("link", cfg.Name)
	l := &Link{
		b: b, cfg: &cfg, principal: Principal(cfg.Name), meter: bridge.NewLinkMeter(cfg.Policy.Limits), log: log,
		records: &records{cfg.Name, b.cfg.Records, log}, expiryWake: make(chan struct{}, 1), notices: newNotices(), seed: maphash.MakeSeed(),
	}
	for i := range l.queues {
		l.queues[i] = make(chan job, linkQueue)
	}
	l.space = &membership{
		cfg: &b.cfg, link: &cfg, token: token, target: target, log: log, records: l.records,
		echoPatience: echoPatience, receive: l.queue,
		keeper: bridge.NewKeeper(bridge.LinkStatus{Name: cfg.Name, Kind: Kind, To: target.Redacted()}, log),
		echoes: make(map[string]chan outcome),
		onReachable: func(peer string) {
			if peer == wholeSpace {
				waiting.Wake(l.expiryWake)
			}
			b.cfg.Mesh.Reachable(l.address(peer))
		},
	}
	l.space.keeper.First, l.space.keeper.Last = b.cfg.Retry, b.cfg.MaxRetry
	return l, nil
}

// Status returns the state of the connection.
func (l *Link) Status() bridge.LinkStatus { return l.space.status() }

// View returns the space behind the link as this node sees it.
func (l *Link) View() view.Space { return l.space.view() }

// Watch starts a feed of the envelopes in the space. The caller must close it.
func (l *Link) Watch() *view.Feed { return l.space.feeds.Watch(view.FeedRoom) }

// Name returns the id of this node in the space.
func (l *Link) Name() string { return l.space.selfID() }

// Connect makes the link connect now, even if it is down.
func (l *Link) Connect() { l.space.connect() }

// Run keeps the link connected until ctx ends (MEW-L1).
func (l *Link) Run(ctx context.Context) error {
	if err := l.space.load(ctx); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, q := range l.queues {
		g.Go(func() error {
			for {
				select {
				case j := <-q:
					l.handleJob(ctx, j)
				case <-ctx.Done():
					return nil
				}
			}
		})
	}
	g.Go(func() error { l.runExpiry(ctx); return nil })
	g.Go(func() error { l.space.run(ctx); return nil })
	return g.Wait()
}

// queue gives a job to the worker of its sender. A request that fulfills a proposal goes to the worker of the proposer,
// because the worker must handle the proposal first. If the worker's queue is full, the job is lost, like any envelope
// to a MEW participant that is away.
func (l *Link) queue(j job) {
	select {
	case l.queues[maphash.String(l.seed, cmp.Or(j.proposer, j.e.From))%linkWorkers] <- j:
	default:
		if j.e.Kind == envelope.KindProposal {
			l.dropProposal(&j)
		}
		if n := l.dropped.Add(1); n&(n-1) == 0 { // log only if n is a power of two
			l.log.Warn("envelopes to this node dropped: their queue is full", "dropped", n)
		}
	}
}
