package link

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Kind is the kind of MEW addresses and links.
const Kind = "mew"

// These intents are for MEW messages to which no intent of the mesh corresponds.
const (
	IntentProposal wire.Intent = "com.github.rjcorwin.mew.proposal" // mcp/proposal to this node (MEW-L3)
	IntentRequest  wire.Intent = "com.github.rjcorwin.mew.request"  // mcp/request to this node, for a tool that is switched on
)

// Intents is a pattern for all intents of this package.
const Intents = "com.github.rjcorwin.mew.*"

// Config configures a bridge.
type Config struct {
	Links  []bridge.Link
	Tokens map[string]client.Credential // by the name of a link
	Own    map[string]bool              // names of the links to spaces that this process hosts

	Mesh    bridge.Mesh // the node; required if there are links
	Records store.Records
	Steps   store.Steps
	// Dial makes connections.
	Dial   websocket.Dialer
	Logger *slog.Logger
	// Retry is the first wait before a link connects again, and MaxRetry the longest. Zero means 1 s and 60 s (MEW-L1).
	Retry, MaxRetry time.Duration
}

// Bridge is the node as a participant in spaces. It is safe for concurrent use.
type Bridge struct {
	cfg   Config
	log   *slog.Logger
	links bridge.LinkSet[*Link]
}

var _ bridge.Transport = (*Bridge)(nil)

// New returns a bridge with the links of cfg. Nothing connects before [Bridge.Run].
func New(cfg Config) (*Bridge, error) {
	if cfg.Records == nil || cfg.Steps == nil || cfg.Dial == nil {
		return nil, errors.New("mew: the configuration lacks a store or a dialer")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Retry, cfg.MaxRetry = cmp.Or(cfg.Retry, time.Second), cmp.Or(cfg.MaxRetry, time.Minute)
	b := &Bridge{cfg: cfg, log: cfg.Logger}
	for _, lc := range cfg.Links {
		if err := b.PutLink(lc, cfg.Tokens[lc.Name]); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// PutLink adds a link, or replaces the one with the same name.
func (b *Bridge) PutLink(lc bridge.Link, token client.Credential) error {
	l, err := b.newLink(lc, token)
	if err != nil {
		return fmt.Errorf("link %s: %w", lc.Name, err)
	}
	b.links.Put(l)
	return nil
}

// RemoveLink stops a link and removes it.
func (b *Bridge) RemoveLink(name string) { b.links.Remove(name) }

// Run keeps every link connected until ctx ends, and returns when all of them have stopped.
func (b *Bridge) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return b.links.Run(ctx) })
	if b.cfg.Mesh != nil {
		g.Go(func() error { b.followEvents(ctx); return nil })
	}
	return g.Wait()
}

// Links returns the status of each link.
func (b *Bridge) Links() []bridge.LinkStatus { return b.links.States() }

// NextChange returns a channel that is closed when a link is added or removed.
func (b *Bridge) NextChange() <-chan struct{} { return b.links.NextChange() }

// RemoteLinks returns the links to spaces that this process does not host.
func (b *Bridge) RemoteLinks() []*Link {
	return slices.DeleteFunc(slices.Clone(b.links.All()), func(l *Link) bool { return b.cfg.Own[l.cfg.Name] })
}

// Link returns the link with a name, or nil.
func (b *Bridge) Link(name string) *Link {
	l, _ := b.links.Find(name)
	return l
}

// Test tests a link, as [Link.Test] does.
func (b *Bridge) Test(ctx context.Context, name string) error { return b.links.Test(ctx, name) }

// Test joins the space of the link, leaves it at once, and returns the error. If the link is up, Test does nothing,
// because a second connection would replace the first one (MEW-J5). After a test that succeeds, the link connects at
// once, unless it is down.
func (l *Link) Test(ctx context.Context) error {
	err := l.space.testJoin(ctx)
	if err == nil && !l.space.isDown() {
		l.Connect()
	}
	return err
}

// Deliver implements [bridge.Transport].
func (b *Bridge) Deliver(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
	l, peer, err := b.findLink(d.Address)
	if err != nil {
		return bridge.Delivered{}, err
	}
	return l.deliver(ctx, peer, d)
}

// Principal returns the principal of everybody in the space behind a link: the name under which the node counts, blocks
// and approves all of them together (MEW-L2).
func Principal(link string) string { return Kind + ":" + link }

// socketTarget returns the URL to which a link connects. It adds the path /ws and the query parameter "space" if the
// configured URL lacks them (MEW-L1).
func socketTarget(l bridge.Link) (*url.URL, error) {
	for key, value := range l.Options {
		if key != "allow_insecure" || value != "true" && value != "false" {
			return nil, errors.New("the only option is allow_insecure: true or false")
		}
	}
	u, err := url.Parse(l.URL)
	if err != nil || u.Host == "" {
		return nil, errors.New("url must be wss://host")
	}
	switch u.Scheme {
	case "wss":
	case "ws":
		if !httpapi.LoopbackHost(u.Hostname()) && l.Options["allow_insecure"] != "true" {
			return nil, errors.New("url must begin with wss:// because over ws:// anybody on the network path can read the messages and the token; to allow ws:// anyway, set options.allow_insecure to true")
		}
	default:
		return nil, errors.New("url must be wss://host")
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/ws"
	}
	q := u.Query()
	if !q.Has("space") && l.Space != "" {
		q.Set("space", l.Space)
		u.RawQuery = q.Encode()
	}
	return u, nil
}

// LinkKind tells the node what MEW links support.
func LinkKind() bridge.Kind {
	return bridge.Kind{Name: Kind, Honors: []string{"filter", "limits", "tools", "broadcast"}, Intents: Intents}
}

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
func (l *Link) Watch() *view.Feed { return l.space.feeds.Watch() }

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
