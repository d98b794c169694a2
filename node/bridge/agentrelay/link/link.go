package link

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	linkReadLimit   = 256 << 10 // AR-54
	welcomePatience = 5 * time.Second
	firstBackoff    = time.Second // AR-52
	lastBackoff     = time.Minute
	healthyAfter    = time.Minute
	afterPolicy     = 30 * time.Second
	afterRate       = time.Minute
	workers         = 8  // who take messages in, one peer always by the same
	workerQueue     = 32 // messages that wait for one of them
)

// Kind is the kind of our addresses and links.
const Kind = "agentrelay"

// Declare returns what links of this kind are to the node.
func Declare() bridge.Kind {
	return bridge.Kind{Name: Kind, Honors: []string{"filter", "broadcast"}, Encrypt: []string{encryptAlways, encryptKnown, encryptNever}}
}

// Config is what a link is made of. All is required, except where it says otherwise.
type Config struct {
	Link  bridge.Link
	Token client.Credential // empty: the link registers itself
	// Dir is where a link that registered itself keeps its id and token, a file each (AR-51).
	Dir string
	// Identity is the age identity that peers encrypt to; empty: what is encrypted cannot be read (AR-48).
	Identity string
	Mesh     bridge.Mesh // required
	Store    store.Store
	HTTP     *client.HTTP
	Logger   *slog.Logger
}

// Link is one connection of the node to a relay, as an agent of it. Making one starts nothing.
type Link struct {
	cfg     Config
	log     *slog.Logger
	target  *url.URL
	sender  *sender
	feed    *feed
	peers   *peers
	talks   talks
	waiters *waiters
	tunnels *rate.Buckets // of peers
	first   time.Duration // of the back-off
	handled func()        // for tests: a frame was dealt with; nil: nobody asks
	again   chan struct{} // ends the wait of a link that is down
	renewed bool          // of Run: registered again, and not up since then

	mu     sync.Mutex
	id     string // our own, as the first welcome said
	status bridge.LinkStatus
}

// The names of Link.Options.
const (
	optReregister = "reregister"     // "false": do not claim the same id again if the relay forgot us
	optPending    = "notify_pending" // "false": do not tell plain peers in one line that the owner is asked
)

// New returns a link.
func New(cfg Config) (*Link, error) {
	if cfg.Mesh == nil || cfg.Store == nil || cfg.HTTP == nil || cfg.Dir == "" {
		return nil, errors.New("config is incomplete")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	target, err := url.Parse(cfg.Link.URL)
	if err != nil || target.Host == "" || target.Scheme != "ws" && target.Scheme != "wss" {
		return nil, errors.New("url must be ws:// or wss://, such as wss://relay.example/arc")
	}
	if target.RawQuery != "" {
		return nil, errors.New("url must have no query: a token stands in token_file or token_env")
	}
	if id := cfg.Link.AgentID; id != "" && (!frame.ValidAgentID(id) || id == frame.RelayID) {
		return nil, errors.New("agent_id must have 3 to 64 of a-z 0-9 -, beginning and ending with a letter or digit")
	}
	for key, value := range cfg.Link.Options {
		if key != optReregister && key != optPending || value != "true" && value != "false" {
			return nil, fmt.Errorf("options: %s and %s are true or false, and there are no others", optReregister, optPending)
		}
	}
	l := &Link{
		cfg: cfg, log: cfg.Logger.With("link", cfg.Link.Name), target: target, sender: newSender(), feed: newFeed(),
		waiters: &waiters{all: make(map[string]chan wire.Value)}, talks: talks{cfg.Store.Records(), cfg.Link.Name},
		first: firstBackoff, again: make(chan struct{}, 1), tunnels: rate.NewBuckets(rate.PerMinute(tunnelPerMinute), tunnelPerMinute, maxPeersSeen),
		status: bridge.LinkStatus{Name: cfg.Link.Name, Kind: Kind, To: cfg.Link.URL, State: bridge.LinkConnecting},
	}
	l.peers = &peers{talks: l.talks, log: l.log, seen: make(map[string]bool)}
	return l, nil
}

func (l *Link) address(peer string) bridge.Address {
	return bridge.Address{Kind: Kind, Link: l.cfg.Link.Name, Peer: peer}
}

// Name returns the name of the link in the configuration.
func (l *Link) Name() string { return l.cfg.Link.Name }

// Status returns how the link stands.
func (l *Link) Status() bridge.LinkStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.status
	s.Peers = l.peers.count()
	return s
}

func (l *Link) stand(state bridge.LinkState, fault string, retry time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.status.State != state {
		l.status.Since = time.Now()
	}
	l.status.State, l.status.Error, l.status.Retry = state, fault, retry
}

// Test connects as if for the first time and returns what is wrong. A link that is up is not disturbed: a second
// connection would end its first (AR-13). A link that is down connects again when the test succeeds.
func (l *Link) Test(ctx context.Context) error {
	if l.Status().State == bridge.LinkUp {
		return nil
	}
	conn, err := l.connect(ctx)
	if err != nil {
		return err
	}
	conn.Abort()
	conn.Drain()
	select {
	case l.again <- struct{}{}:
	default:
	}
	return nil
}

// errToken: the relay does not know our token (AR-8, AR-52).
var errToken = errors.New("the relay refuses the token")

// Run keeps the link up until ctx ends.
func (l *Link) Run(ctx context.Context) error {
	backoff := l.first
	for ctx.Err() == nil {
		began := time.Now()
		err := l.live(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, errToken) {
			err = l.renew(ctx)
		}
		if needsOwner(err) {
			l.stand(bridge.LinkDown, err.Error(), time.Time{})
			l.log.Error("the link is down until agentmesh links test succeeds or the node restarts", "err", err)
			select {
			case <-ctx.Done():
			case <-l.again:
			}
			continue
		}
		if time.Since(began) >= healthyAfter {
			backoff = l.first
		}
		wait := max(pause(err), time.Duration(float64(backoff)*(0.8+0.4*rand.Float64())))
		backoff = min(2*backoff, lastBackoff)
		l.stand(bridge.LinkConnecting, faultText(err), time.Now().Add(wait))
		l.log.Info("the link is broken", "err", faultText(err), "retry_in", wait.Round(time.Second))
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	return nil
}

// pause is the least time to wait after a kind of failure.
func pause(err error) time.Duration {
	var closed *websocket.CloseError
	var refused *websocket.HandshakeError
	switch {
	case errors.As(err, &closed) && closed.Code == frame.CloseRate, errors.As(err, &refused) && refused.Status == http.StatusTooManyRequests,
		errors.Is(err, errTooMany):
		return afterRate
	case errors.As(err, &closed) && closed.Code == frame.ClosePolicy:
		return afterPolicy
	}
	return 0
}

// faultText is what the owner is shown of a failure: nothing of it is text that a relay wrote.
func faultText(err error) string {
	if closed, ok := errors.AsType[*websocket.CloseError](err); ok {
		return fmt.Sprintf("the connection ended with code %d", closed.Code)
	}
	if err == nil {
		return ""
	}
	return err.Error()
}

// connect dials with our token, registering first where there is none, and reads the welcome (AR-11, AR-51).
func (l *Link) connect(ctx context.Context) (*websocket.Conn, error) {
	token, err := l.token(ctx)
	if err != nil {
		return nil, err
	}
	dial := func(ctx context.Context, u *url.URL) (net.Conn, error) {
		return l.cfg.HTTP.Connect(ctx, client.Owner, u)
	}
	conn, err := websocket.Dial(ctx, dial, l.target.String(), websocket.Options{
		ReadLimit: linkReadLimit, Ping: frame.PingEvery, Silence: frame.GoneAfter,
		Header: http.Header{"Authorization": {"Bearer " + string(token)}},
	})
	if refused, ok := errors.AsType[*websocket.HandshakeError](err); ok && refused.Status == http.StatusUnauthorized {
		return nil, errToken
	}
	if err != nil {
		return nil, err
	}
	late := time.AfterFunc(welcomePatience, conn.Abort)
	defer late.Stop()
	_, data, err := conn.Read()
	if err == nil {
		err = l.welcomed(data)
	}
	if err != nil {
		conn.Abort()
		conn.Drain()
		if closed, ok := errors.AsType[*websocket.CloseError](err); ok && closed.Code == frame.CloseBadToken {
			return nil, errToken
		}
		return nil, err
	}
	return conn, nil
}

// welcomed reads the first frame. It is the only one that can tell us who we are (AR-30).
func (l *Link) welcomed(data []byte) error {
	v, err := wire.ParseForeign(data, frame.MaxDepth, linkReadLimit)
	to, _ := v.Get("to")
	if err != nil || v.GetStr("type") != "welcome" || to.Len() == 0 || to.Kind() != wire.Array {
		return errors.New("the relay did not begin with a welcome")
	}
	id, _ := to.At(0).Str()
	if !frame.ValidAgentID(id) {
		return errors.New("the relay did not say who we are")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.id = id
	return nil
}

// live is one connection, from dialling to its end.
func (l *Link) live(ctx context.Context) error {
	conn, err := l.connect(ctx)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close(websocket.CodeNormal, "") })
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	var working sync.WaitGroup
	queues := make([]chan wire.Value, workers)
	for i := range queues {
		queues[i] = make(chan wire.Value, workerQueue)
		working.Go(func() {
			for tree := range queues[i] {
				l.take(ctx, tree)
			}
		})
	}
	l.renewed = false
	l.stand(bridge.LinkUp, "", time.Time{})
	l.sender.up(conn)
	defer func() {
		l.sender.down()
		cancel()
		for _, q := range queues {
			close(q)
		}
		working.Wait()
	}()
	for {
		typ, data, err := conn.Read()
		if err != nil {
			return err
		}
		if typ != websocket.TextType {
			continue
		}
		tree, err := wire.ParseForeign(bytes.Clone(data), frame.MaxDepth, linkReadLimit)
		if err != nil || tree.Kind() != wire.Object {
			l.log.Debug("a frame of the relay is not readable")
			l.dealt()
			continue
		}
		if l.isAwaited(tree) { // it must not queue behind what its sender wants of us
			l.dealt()
			continue
		}
		queues[lane(tree)] <- tree // a worker that hangs ends with its hook's deadline
	}
}

// dealt says to a test that a frame was dealt with.
func (l *Link) dealt() {
	if l.handled != nil {
		l.handled()
	}
}

// lane returns the worker of a frame. All frames of one sender have the same worker, which keeps their order.
func lane(tree wire.Value) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(tree.GetStr("from"))) // never fails
	return int(h.Sum32() % workers)
}

func (l *Link) ownID() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return cmp.Or(l.id, l.cfg.Link.AgentID)
}
