package link

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	linkReadLimit   = 256 << 10 // AR-54
	welcomePatience = 5 * time.Second
	reliableAfter   = 3 * time.Second  // default of Link.reliableAfter
	readPatience    = 10 * time.Second // for the relay to read a frame
	waitAfterPolicy = 30 * time.Second // after the relay closed the connection with 1008
	waitAfterRate   = time.Minute      // after the relay refused the link because of a rate limit
	workers         = 8                // goroutines that handle frames; all frames of a peer go to the same one
	workerQueue     = 32               // frames that wait for one worker
)

// Kind is the kind of AgentRelay addresses and links.
const Kind = "agentrelay"

// Declare returns what the node must know about AgentRelay links: their kind and the policies that they honor.
func Declare() bridge.Kind {
	return bridge.Kind{Name: Kind, Honors: []string{"filter", "broadcast"}}
}

// Config configures a link. All fields are required, unless their comment says otherwise.
type Config struct {
	Link  bridge.Link
	Token client.Credential // empty: Join returns it; without Join, the link registers itself
	// Dir is where a link that registered itself stores its id and token, in one file per link (AR-51).
	Dir string
	// Join registers the link at the relay of this process; each call returns a new token. Nil: the relay is elsewhere.
	Join func(ctx context.Context) (frame.Credentials, error)
	// Dial makes connections; nil: HTTP makes them.
	Dial   websocket.Dialer
	Mesh   bridge.Mesh
	Store  store.Store
	HTTP   *client.HTTP
	Logger *slog.Logger // nil discards
}

// Link is one connection of the node to a relay, as an agent of the relay. Nothing runs before [Link.Run].
type Link struct {
	cfg          Config
	log          *slog.Logger
	target       *url.URL
	sender       *sender
	itemLog      *itemLog // the owner's feed
	peers        *peers
	convStore    convStore
	waiters      waiting.Results[wire.Value] // by waitKey
	tunnelRates  *rate.Buckets               // limits the signed AgentMesh messages that each peer sends inside frames
	tunnelPlaces *waiting.Places             // one for each such message that the node is handling
	tunnelWork   sync.WaitGroup              // the goroutines that handle such messages
	keeper       *bridge.Keeper
	// reliableAfter is the age of a connection at which the outbox sends what awaited the link. Otherwise, a relay
	// that ends each connection after its welcome would use up the attempts of these messages.
	reliableAfter time.Duration
	onHandled     func() // for tests: called after each frame; may be nil
	renewed       bool   // for Run: the link has registered again and has not been up since

	mu sync.Mutex
	id string // the node's id on the relay: from the stored registration, then from the welcome
}

// These are the keys of Options in [bridge.Link].
const (
	optReregister = "reregister"     // "false": do not register again if the relay forgot the link
	optPending    = "notify_pending" // "false": do not tell peers without AgentMesh that the owner is asked first
)

// New returns a link. It fails if cfg is incomplete or invalid.
func New(cfg Config) (*Link, error) {
	if cfg.Mesh == nil || cfg.Store == nil || cfg.HTTP == nil || cfg.Dir == "" {
		return nil, errors.New("the configuration lacks mesh, store, HTTP client or directory")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Dial == nil {
		cfg.Dial = func(ctx context.Context, u *url.URL) (net.Conn, error) { return cfg.HTTP.Connect(ctx, client.Owner, u) }
	}
	target, err := url.Parse(cfg.Link.URL)
	if err != nil || target.Host == "" || target.Scheme != "ws" && target.Scheme != "wss" {
		return nil, errors.New("url must be ws:// or wss://, such as wss://relay.example/arc")
	}
	if target.RawQuery != "" {
		return nil, errors.New("url must have no query; put the token into token_file")
	}
	if id := cfg.Link.AgentID; id != "" && (!frame.ValidAgentID(id) || id == frame.RelayID) {
		return nil, errors.New("agent_id must be 3 to 64 characters from a-z 0-9 -, and begin and end with a letter or digit")
	}
	for key, value := range cfg.Link.Options {
		if key != optReregister && key != optPending || value != "true" && value != "false" {
			return nil, fmt.Errorf("options: set %s or %s to true or false; there are no other options", optReregister, optPending)
		}
	}
	l := &Link{
		cfg: cfg, log: cfg.Logger.With("link", cfg.Link.Name), target: target, sender: newSender(), itemLog: newItemLog(),
		convStore:     convStore{cfg.Store.Records(), cfg.Link.Name},
		reliableAfter: reliableAfter, tunnelRates: rate.NewBuckets(rate.PerMinute(tunnelPerMinute), tunnelPerMinute, maxPeersSeen),
		tunnelPlaces: waiting.NewPlaces(maxTunneled, maxTunneledPerPeer),
	}
	l.keeper = bridge.NewKeeper(bridge.LinkStatus{Name: cfg.Link.Name, Kind: Kind, To: cfg.Link.URL}, l.log) // AR-52
	l.peers = &peers{records: cfg.Store.Records(), link: cfg.Link.Name, skills: make(map[string][]string)}
	return l, nil
}

// address returns the address of a peer or, if peer is empty, the address that stands for the whole link.
func (l *Link) address(peer string) bridge.Address {
	return bridge.Address{Kind: Kind, Link: l.cfg.Link.Name, Peer: peer}
}

// Name returns the name of the link in the configuration.
func (l *Link) Name() string { return l.cfg.Link.Name }

// Status returns the state of the link.
func (l *Link) Status() bridge.LinkStatus {
	s := l.keeper.Status()
	s.Peers = l.peers.count()
	return s
}

// Test connects, ends that connection at once, and returns the error. If the link is up, Test does nothing, because a
// second connection would end the first one (AR-13). If the test succeeds, Run connects at once.
func (l *Link) Test(ctx context.Context) error {
	done, err := l.keeper.Dial(ctx)
	if err != nil {
		return err
	}
	defer done()
	if l.Status().State == bridge.LinkUp {
		return nil
	}
	conn, err := l.connect(ctx)
	if err != nil {
		return err
	}
	conn.Abort()
	conn.Drain()
	l.keeper.Wake()
	return nil
}

// errToken means that the relay does not know the link's token (AR-8, AR-52).
var errToken = errors.New("the relay refuses the token")

// Run keeps the link up until ctx ends. The workers outlive a connection, so that the node gets all frames that
// arrived, even if it was busy.
func (l *Link) Run(ctx context.Context) error {
	defer l.tunnelWork.Wait()
	var working sync.WaitGroup
	defer working.Wait()
	queues := make([]chan wire.Value, workers)
	for i := range queues {
		queues[i] = make(chan wire.Value, workerQueue)
		defer close(queues[i])
		working.Go(func() {
			for tree := range queues[i] {
				l.handleFrame(ctx, tree)
			}
		})
	}
	l.keeper.Run(ctx, func(ctx context.Context) bridge.End {
		err := l.runConnection(ctx, queues)
		if errors.Is(err, errToken) && ctx.Err() == nil {
			err = l.registerAgain(ctx)
		}
		return bridge.End{Fault: faultText(err), Down: needsOwner(err), Wait: minWait(err)}
	})
	return nil
}

// minWait returns how long to wait at least before the next attempt, after a connection that failed with err.
func minWait(err error) time.Duration {
	var closeErr *websocket.CloseError
	var handshakeErr *websocket.HandshakeError
	switch {
	case errors.As(err, &closeErr) && closeErr.Code == frame.CloseRate, errors.As(err, &handshakeErr) && handshakeErr.Status == http.StatusTooManyRequests,
		errors.Is(err, errTooMany):
		return waitAfterRate
	case errors.As(err, &closeErr) && closeErr.Code == frame.ClosePolicy:
		return waitAfterPolicy
	}
	return 0
}

// faultText returns what the owner sees of a failure. It contains no text that the relay wrote.
func faultText(err error) string {
	if closeErr, ok := errors.AsType[*websocket.CloseError](err); ok {
		return fmt.Sprintf("the connection ended with code %d", closeErr.Code)
	}
	if err == nil {
		return ""
	}
	return err.Error()
}

// connect gets the token, for which it may register the link, dials, and reads the welcome (AR-11, AR-51).
func (l *Link) connect(ctx context.Context) (*websocket.Conn, error) {
	token, err := l.token(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := websocket.Dial(ctx, l.cfg.Dial, l.target.String(), websocket.Options{
		ReadLimit: linkReadLimit, Ping: frame.PingEvery, Silence: frame.GoneAfter,
		Header: http.Header{"Authorization": {"Bearer " + string(token)}},
	})
	switch handshakeErr, ok := errors.AsType[*websocket.HandshakeError](err); {
	case ok && handshakeErr.Status == http.StatusUnauthorized:
		return nil, errToken
	case ok && handshakeErr.Status == http.StatusBadRequest:
		return nil, &bridge.LinkFault{Why: fmt.Errorf("the relay refuses the connection: %w", err), Fix: "check the url, such as wss://relay.example/arc, and agent_id"}
	}
	if err != nil {
		return nil, err
	}
	abort := time.AfterFunc(welcomePatience, conn.Abort)
	defer abort.Stop()
	_, data, err := conn.Read()
	if err == nil {
		err = l.readWelcome(data)
	}
	if err != nil {
		conn.Abort()
		conn.Drain()
		if closeErr, ok := errors.AsType[*websocket.CloseError](err); ok && closeErr.Code == frame.CloseBadToken {
			return nil, errToken
		}
		return nil, err
	}
	return conn, nil
}

// readWelcome reads the first frame, which names the node's id on the relay. No later frame can change this id
// (AR-30).
func (l *Link) readWelcome(data []byte) error {
	v, err := wire.ParseForeign(data, frame.MaxDepth, linkReadLimit)
	to, _ := v.Get("to")
	if err != nil || v.GetStr("type") != "welcome" || to.Len() == 0 || to.Kind() != wire.Array {
		return errors.New("the relay did not begin with a welcome")
	}
	id, _ := to.At(0).Str()
	if !frame.ValidAgentID(id) {
		return errors.New("the welcome of the relay does not name this agent's id")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.id = id
	return nil
}

// runConnection connects, and puts frames into the queues of the workers until the connection ends.
func (l *Link) runConnection(ctx context.Context, queues []chan wire.Value) error {
	done, err := l.keeper.Dial(ctx)
	if err != nil {
		return err
	}
	conn, err := l.connect(ctx)
	if err == nil {
		l.sender.setConn(conn) // before Set: a link that is up must be able to send
		defer l.sender.clearConn()
		l.keeper.Set(bridge.LinkUp, "")
		report := time.AfterFunc(l.reliableAfter, func() { l.cfg.Mesh.Reachable(l.address("")) })
		defer report.Stop()
	}
	done()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close(websocket.CodeNormal, "") })
	defer stop()
	l.renewed = false
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
			l.log.Debug("the relay sent a frame that is not a JSON object")
			l.notifyTest()
			continue
		}
		if l.handToWaiter(tree) { // an awaited answer must not queue behind other frames of its sender
			l.notifyTest()
			continue
		}
		queues[workerOf(tree)] <- tree // blocks while the node is busy
	}
}

func (l *Link) notifyTest() {
	if l.onHandled != nil {
		l.onHandled()
	}
}

// workerOf returns the worker for a frame. All frames of a sender get the same worker, which keeps their order.
func workerOf(tree wire.Value) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(tree.GetStr("from"))) // never fails
	return int(h.Sum32() % workers)
}

// ownID returns the node's id on the relay. Before the node knows that id, it returns the configured one.
func (l *Link) ownID() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return cmp.Or(l.id, l.cfg.Link.AgentID)
}
