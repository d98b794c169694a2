package agentrelay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
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
	maxPeersSeen    = 10_000
	maxUnsent       = 1000 // answers that wait; peers, which a relay shows by id alone, take turns
	ownPerMinute    = 90   // AR-53: below what a relay allows
	ownPerHour      = 950
)

// link is one connection of the node to a relay, as an agent of it.
type link struct {
	b       *Bridge
	cfg     bridge.Link
	log     *slog.Logger
	target  *url.URL
	budget  *rate.Windows // of everything that we send
	answers *rate.Windows // of answers in that: who makes us answer leaves room for what we have to say
	feed    *feed
	tunnels *rate.Buckets // of peers
	first   time.Duration // of the back-off
	handled func()        // for tests: a frame was dealt with; nil: nobody asks
	again   chan struct{} // ends the wait of a link that is down
	renewed bool          // of run: registered again, and not up since then

	mu     sync.Mutex
	id     string // our own, as the first welcome said
	conn   *websocket.Conn
	state  bridge.LinkState
	since  time.Time
	fault  string
	retry  time.Time
	peers  map[string]bool
	hints  hints
	unsent *rate.Turns[[]byte] // answers that wait for the connection or the budget
	resume *time.Timer         // when they may go on; nil: they wait for the connection, or there are none
	waits  waiting
}

// linkOptions are the names of Link.Options.
const (
	optReregister = "reregister"     // "false": do not claim the same id again if the relay forgot us
	optPending    = "notify_pending" // "false": do not tell plain peers in one line that the owner is asked
)

func (b *Bridge) newLink(cfg bridge.Link) (*link, error) {
	target, err := url.Parse(cfg.URL)
	if err != nil || target.Host == "" || target.Scheme != "ws" && target.Scheme != "wss" {
		return nil, errors.New("url must be ws:// or wss://, such as wss://relay.example/arc")
	}
	if target.RawQuery != "" {
		return nil, errors.New("url must have no query: a token stands in token_file or token_env")
	}
	if cfg.AgentID != "" && (!ValidAgentID(cfg.AgentID) || cfg.AgentID == relayID) {
		return nil, errors.New("agent_id must have 3 to 64 of a-z 0-9 -, beginning and ending with a letter or digit")
	}
	for key, value := range cfg.Options {
		if key != optReregister && key != optPending || value != "true" && value != "false" {
			return nil, fmt.Errorf("options: %s and %s are true or false, and there are no others", optReregister, optPending)
		}
	}
	return &link{
		b: b, cfg: cfg, log: b.log.With("link", cfg.Name), target: target,
		budget: rate.NewWindows(ownPerMinute, ownPerHour), answers: rate.NewWindows(ownPerMinute*2/3, ownPerHour*2/3),
		feed: newFeed(), state: bridge.LinkConnecting, peers: make(map[string]bool),
		first: firstBackoff, again: make(chan struct{}, 1), waits: make(waiting), tunnels: newTunnels(), unsent: rate.NewTurns[[]byte](maxUnsent),
	}, nil
}

func (l *link) address(peer string) bridge.Address {
	return bridge.Address{Kind: Kind, Link: l.cfg.Name, Peer: peer}
}

func (l *link) status() bridge.LinkStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bridge.LinkStatus{
		Name: l.cfg.Name, Kind: Kind, To: l.cfg.URL, State: l.state, Since: l.since, Error: l.fault, Peers: len(l.peers), Retry: l.retry,
	}
}

func (l *link) stand(state bridge.LinkState, fault string, retry time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != state {
		l.since = time.Now()
	}
	l.state, l.fault, l.retry = state, fault, retry
}

// errToken: the relay does not know our token (AR-8, AR-52).
var errToken = errors.New("the relay refuses the token")

// run keeps the link up until ctx ends.
func (l *link) run(ctx context.Context) error {
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
	case errors.As(err, &closed) && closed.Code == codeRateClosed, errors.As(err, &refused) && refused.Status == http.StatusTooManyRequests,
		errors.Is(err, errTooMany):
		return afterRate
	case errors.As(err, &closed) && closed.Code == codePolicy:
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
func (l *link) connect(ctx context.Context) (*websocket.Conn, error) {
	token, err := l.token(ctx)
	if err != nil {
		return nil, err
	}
	dial := func(ctx context.Context, u *url.URL) (netConn, error) {
		return l.b.cfg.HTTP.Connect(ctx, client.Owner, u)
	}
	conn, err := websocket.Dial(ctx, dial, l.target.String(), websocket.Options{
		ReadLimit: linkReadLimit, Ping: pingEvery, Silence: goneAfter,
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
		finish(conn)
		if closed, ok := errors.AsType[*websocket.CloseError](err); ok && closed.Code == codeBadToken {
			return nil, errToken
		}
		return nil, err
	}
	return conn, nil
}

// welcomed reads the first frame. It is the only one that can tell us who we are (AR-30).
func (l *link) welcomed(data []byte) error {
	v, err := wire.ParseForeign(data, maxDepth, linkReadLimit)
	to, _ := v.Get("to")
	if err != nil || v.GetStr("type") != "welcome" || to.Len() == 0 || to.Kind() != wire.Array {
		return errors.New("the relay did not begin with a welcome")
	}
	id, _ := to.At(0).Str()
	if !ValidAgentID(id) {
		return errors.New("the relay did not say who we are")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.id = id
	return nil
}

// live is one connection, from dialling to its end.
func (l *link) live(ctx context.Context) error {
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
			for frame := range queues[i] {
				l.take(ctx, frame)
			}
		})
	}
	l.up(conn)
	defer func() {
		l.down()
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
		frame, err := wire.ParseForeign(append([]byte(nil), data...), maxDepth, linkReadLimit)
		if err != nil || frame.Kind() != wire.Object {
			l.log.Debug("a frame of the relay is not readable")
			l.dealt()
			continue
		}
		if l.awaited(frame) { // it must not queue behind what its sender wants of us
			l.dealt()
			continue
		}
		queues[lane(frame)] <- frame // a worker that hangs ends with its hook's deadline
	}
}

// dealt says to a test that a frame was dealt with.
func (l *link) dealt() {
	if l.handled != nil {
		l.handled()
	}
}

// lane says which worker takes a frame: all of one sender go to the same, so that their order is kept.
func lane(frame wire.Value) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(frame.GetStr("from"))) // never fails
	return int(h.Sum32() % workers)
}

// up makes a connection the one that is written to, and sends what waited for it.
func (l *link) up(conn *websocket.Conn) {
	l.renewed = false
	l.stand(bridge.LinkUp, "", time.Time{})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = conn
	l.drain()
}

func (l *link) down() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = nil
	if l.resume != nil {
		l.resume.Stop()
		l.resume = nil
	}
}

// errDown: there is no connection to write to.
var errDown = errors.New("the link is not connected")

// write sends a frame now. Written is all that ARC knows: nobody acknowledges (AR-53).
func (l *link) write(frame []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil {
		return errDown
	}
	return l.conn.Send(websocket.Text(frame))
}

// answer sends a frame to a peer as soon as connection and budget allow: nobody else would send it again.
func (l *link) answer(peer string, frame []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsent.Add(peer, frame)
	l.drain()
}

// drain sends the answers that wait. The caller holds l.mu.
func (l *link) drain() {
	for l.unsent.Len() > 0 && l.conn != nil && l.resume == nil {
		now := time.Now()
		wait := l.answers.Peek(now)
		if wait == 0 {
			wait = l.budget.Take(now)
		}
		if wait > 0 {
			l.resume = time.AfterFunc(wait, l.goOn)
			return
		}
		l.answers.Take(now)
		if l.conn.Send(websocket.Text(l.unsent.First())) != nil {
			return // the next connection goes on
		}
		l.unsent.RemoveFirst()
	}
}

func (l *link) goOn() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resume = nil
	l.drain()
}

// meet notes a peer, for the count of the status.
func (l *link) meet(peer string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.peers) < maxPeersSeen {
		l.peers[peer] = true
	}
}

func (l *link) ownID() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return cmp.Or(l.id, l.cfg.AgentID)
}
