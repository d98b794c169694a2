package mew

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
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

// link is one connection to a space. What comes in is read by one goroutine, which keeps track of the space and obeys
// control at once; what is for the node is done by workers, in the order of each sender.
type link struct {
	b         *Bridge
	cfg       bridge.Link
	token     client.Credential
	target    *url.URL
	principal string
	meter     *bridge.LinkMeter
	log       *slog.Logger
	seed      maphash.Seed
	queues    [linkWorkers]chan job
	wake      chan struct{} // the owner has the link connect now
	shares    chan struct{} // something is new in what the space sees

	marks sync.Mutex // one acknowledgement at a time

	mu        sync.Mutex
	state     bridge.LinkState
	since     time.Time
	fault     string
	retry     time.Time
	conn      *websocket.Conn // nil: not in the space
	me        string          // our runtime id
	caps      []*capability.Capability
	shown     []wire.Value          // our capabilities as they were written
	people    map[string]wire.Value // what each may do
	spoke     map[string]struct{}   // who spoke and is on no list: a gateway's operator, HTTP clients
	capsBytes int                   // of people
	streams   []wire.Value
	board     board
	pause     paused
	down      string // why nothing is tried until the owner acts: the space shut us down or threw us out
	echoes    map[string]chan outcome
	feeds     feeds
	dropped   uint64               // envelopes to us that found no room
	told      map[string]time.Time // when each sender was last told that something of it was refused
}

// paused is a pause of ours (MEW-L5).
type paused struct {
	on    bool
	until time.Time // zero: until somebody resumes us
	by    string    // id of the pause
	timer *time.Timer
}

// job is an envelope that is for the node.
type job struct {
	e   envelope.Envelope
	raw []byte
	at  time.Time
}

func (b *Bridge) newLink(cfg bridge.Link) (*link, error) {
	target, err := socketTarget(cfg)
	if err != nil {
		return nil, err
	}
	if b.cfg.Tokens[cfg.Name] == "" {
		return nil, errors.New("needs token_file or token_env")
	}
	l := &link{
		b: b, cfg: cfg, token: b.cfg.Tokens[cfg.Name], target: target, principal: Principal(cfg.Name),
		meter: bridge.NewLinkMeter(cfg.Policy.Limits), told: make(map[string]time.Time),
		log: b.log.With("link", cfg.Name), seed: maphash.MakeSeed(), wake: make(chan struct{}, 1),
		shares: make(chan struct{}, 1),
		state:  bridge.LinkConnecting, since: time.Now(),
		echoes: make(map[string]chan outcome), feeds: make(feeds),
	}
	for i := range l.queues {
		l.queues[i] = make(chan job, linkQueue)
	}
	return l, nil
}

func (l *link) status() bridge.LinkStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bridge.LinkStatus{
		Name: l.cfg.Name, Kind: Kind, To: l.target.Redacted(), State: l.state, Since: l.since, Error: l.fault,
		Peers: len(l.people), Retry: l.retry,
	}
}

// run keeps the link connected until ctx ends (MEW-L1).
func (l *link) run(ctx context.Context) error {
	if err := l.recall(ctx); err != nil {
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
	g.Go(func() error { l.keepUp(ctx); return nil })
	return g.Wait()
}

// keepUp connects again and again.
func (l *link) keepUp(ctx context.Context) {
	wait := l.b.cfg.Retry
	for ctx.Err() == nil {
		if l.isDown() {
			select {
			case <-l.wake:
				l.rise(ctx)
				wait = l.b.cfg.Retry
			case <-ctx.Done():
			}
			continue
		}
		began := time.Now()
		err := l.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > steadyAfter {
			wait = l.b.cfg.Retry
		}
		if l.isDown() {
			l.standDown()
			continue
		}
		pause := wait/2 + rand.N(wait/2+1)
		l.stand(bridge.LinkConnecting, err, time.Now().Add(pause))
		l.log.Info("the link to the space ended; it is tried again", "in", pause, "err", err)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-l.wake:
		case <-ctx.Done():
		}
		timer.Stop()
		wait = min(2*wait, l.b.cfg.MaxRetry)
	}
}

func (l *link) stand(s bridge.LinkState, err error, retry time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != s {
		l.state, l.since = s, time.Now()
	}
	l.retry, l.fault = retry, ""
	if err != nil {
		l.fault = envelope.ToPrintable(err.Error(), 300)
	}
}

func (l *link) isDown() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.down != ""
}

// standDown says why the link is down.
func (l *link) standDown() {
	l.mu.Lock()
	why := l.down
	l.mu.Unlock()
	l.stand(bridge.LinkDown, errors.New(why+"; agentmesh mew connect joins again"), time.Time{})
}

func (l *link) dial(ctx context.Context) (*websocket.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, welcomeBy)
	defer cancel()
	h := http.Header{"Authorization": {"Bearer " + string(l.token)}}
	conn, err := websocket.Dial(ctx, l.b.cfg.Dial, l.target.String(), websocket.Options{ReadLimit: maxWelcome, Header: h})
	if hs, ok := errors.AsType[*websocket.HandshakeError](err); ok && (hs.Status == http.StatusUnauthorized || hs.Status == http.StatusForbidden) {
		return nil, fmt.Errorf("the gateway refuses the token: %w", err)
	}
	return conn, err
}

// joinText is join shape (a), for a gateway that does not know us by the header (section 1).
func (l *link) joinText() []byte {
	return wire.Obj(wire.TextField("type", "join"), wire.TextField("space", l.cfg.Space), wire.TextField("token", string(l.token)),
		wire.TextField("participantId", l.cfg.Participant)).JSON()
}

// try joins once and leaves.
func (l *link) try(ctx context.Context) error {
	conn, err := l.dial(ctx)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, conn.Abort)
	defer stop()
	defer finish(conn)
	defer conn.Close(websocket.CodeNormal, "")
	join := time.AfterFunc(joinAfter, func() { l.send(conn, l.joinText()) })
	defer join.Stop()
	late := time.AfterFunc(welcomeBy, conn.Abort)
	defer late.Stop()
	for {
		_, data, err := conn.Read()
		if err != nil {
			return fmt.Errorf("no welcome came: %w", err)
		}
		if e, ok := heardFrom(bytes.Clone(data)); ok && e.Kind == envelope.KindWelcome {
			return nil
		}
	}
}

func (l *link) send(conn *websocket.Conn, data []byte) {
	if err := conn.Send(websocket.Text(data)); err != nil {
		l.log.Debug("send to the space", "err", err)
	}
}

// session is one connection, from the first byte to the last.
func (l *link) session(ctx context.Context) error {
	conn, err := l.dial(ctx)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close(websocket.CodeGoingAway, "") })
	defer stop()
	defer l.leave(conn)
	join := time.AfterFunc(joinAfter, func() { l.send(conn, l.joinText()) })
	defer join.Stop()
	late := time.AfterFunc(welcomeBy, conn.Abort)
	defer late.Stop()
	for {
		_, data, err := conn.Read()
		if err != nil {
			return l.closed(err)
		}
		if len(data) > 0 && data[0] == '#' { // of a stream: nothing of it is kept or passed on (MEW-L5)
			continue
		}
		j, ok := l.take(ctx, conn, bytes.Clone(data))
		if l.joined(conn) {
			join.Stop()
			late.Stop()
		}
		if ok {
			l.queue(j)
		}
	}
}

func (l *link) joined(conn *websocket.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn == conn
}

// queue gives a job to the worker of its sender. What finds no room is gone, as it is in MEW for whoever is not there.
func (l *link) queue(j job) {
	select {
	case l.queues[maphash.String(l.seed, j.e.From)%linkWorkers] <- j:
	default:
		l.mu.Lock()
		l.dropped++
		n := l.dropped
		l.mu.Unlock()
		if n&(n-1) == 0 {
			l.log.Warn("envelopes to this node found no room", "dropped", n)
		}
	}
}

// The close codes of section 7 that a link acts on.
const closeKicked = 4403

// closed says why a connection ended. Who was thrown out stays out until its owner acts.
func (l *link) closed(err error) error {
	ce, ok := errors.AsType[*websocket.CloseError](err)
	if !ok || !ce.Remote {
		return err
	}
	switch ce.Code {
	case closeKicked:
		l.fall("the space threw this node out")
	case 4401:
		return errors.New("the gateway refuses the token")
	case 4409:
		return errors.New("another connection took the name over")
	}
	return err
}

// leave forgets what belonged to a connection.
func (l *link) leave(conn *websocket.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != conn {
		return
	}
	l.conn, l.people, l.spoke, l.streams, l.board = nil, nil, nil, nil, board{}
	l.pause.stop()
	for id, c := range l.echoes {
		delete(l.echoes, id)
		c <- outcome{err: errLinkEnded}
	}
}

// err says that nothing may be sent, and until when.
func (p *paused) err() error {
	if p.until.IsZero() {
		return fmt.Errorf("%w until somebody resumes it", errPaused)
	}
	return fmt.Errorf("%w until %s", errPaused, envelope.FormatTime(p.until))
}

func (p *paused) stop() {
	if p.timer != nil {
		p.timer.Stop()
	}
	*p = paused{}
}
