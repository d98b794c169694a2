package agentrelay

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// StatsMode says what GET /stats tells (AR-32).
type StatsMode string

const (
	StatsPublic StatsMode = "public" // who is registered and connected
	StatsCounts StatsMode = "counts" // how many
	StatsOff    StatsMode = "off"
)

// RelayConfig configures a relay.
type RelayConfig struct {
	Name         string // what welcome says it is; empty: agentmesh
	Records      store.Records
	Registration credential.Mode // who gets an id (AR-36): Open, Invite or, if empty, Closed
	Stats        StatsMode       // empty: public
	MaxAgents    int             // zero: [MaxAgents]
	// PerMinute and PerHour bound the frames of one agent (AR-31): 100 and 1,000 where zero, no limit where negative.
	PerMinute, PerHour int
	// RegistrationsPerHour bounds what one address registers: 10 where zero, no limit where negative.
	RegistrationsPerHour int
	Origins              []string // of pages that may connect, beside our own
	AnyOrigin            bool     // pages of every origin may read the HTTP answers (AR-34)
	Extensions           Extensions
	Search               Search // of the directory; nil: the connected agents alone are searched
	Logger               *slog.Logger
}

// Extensions are what a relay does beyond passing frames on (AR-37 to AR-46). All are off by default.
type Extensions struct {
	Semantic, Voting, History bool
	Keep                      time.Duration // of history; zero: 7 days
	MaxMessages               int           // of history; zero: 10,000
	VoteFor                   time.Duration // until an undecided vote is rejected; zero: 7 days
}

// names lists what is on, as welcome does.
func (e Extensions) names() []string {
	out := []string{}
	for _, x := range []struct {
		on   bool
		name string
	}{{e.Semantic, "semantic"}, {e.Voting, "voting"}, {e.History, "history"}} {
		if x.on {
			out = append(out, x.name)
		}
	}
	return out
}

const (
	defaultPerMinute   = 100
	defaultPerHour     = 1000
	defaultRegisters   = 10
	maxFailed          = 10 // bad tokens of an address in a minute
	maxRateKeys        = 1 << 14
	maxDropped         = 20 // frames in a minute, then 4029 (AR-31)
	maxSubscriptions   = 1000
	maxSessions        = 20_000
	pingEvery          = 20 * time.Second // AR-12
	goneAfter          = 45 * time.Second
	queueFrames        = 256 // AR-23
	queueBytes         = 1 << 20
	stopPatience       = 5 * time.Second
	houseEvery         = time.Minute
	protocolVersion    = "1.0"
	codePolicy         = 1008
	codeBadToken       = 4001
	codeRateClosed     = 4029
	storeTimeout       = 10 * time.Second
	maxKeywordsOfAgent = 64
)

// Relay is a hosted relay. It is safe for concurrent use.
type Relay struct {
	cfg      RelayConfig
	log      *slog.Logger
	agents   *registry
	clock    *store.WallClock
	began    time.Time
	failed   *rate.Penalties // for bad tokens
	history  *history        // nil: off
	votes    *votes          // nil: off
	searches *rate.Windows   // of the directory
	told     statsPage

	registrations *rate.Registrations

	counting sync.Mutex
	recent   rate.Window // frames

	mu       sync.Mutex
	stopping bool
	spent    map[string]*rate.Windows // by agent: frames
	sessions map[string]*session      // by agent: the newest connection
	open     map[*session]struct{}
	last     int64 // ts of the newest frame
	frames   uint64
	running  sync.WaitGroup
}

// session is one connection of an agent.
type session struct {
	id      string
	token   string // the hash of what it connected with
	trusted bool
	since   time.Time
	conn    *websocket.Conn
	spent   *rate.Windows // of the agent, whatever the connection

	// Of the reading goroutine alone.
	dropped      int
	droppedSince time.Time

	mu       sync.Mutex
	subs     map[string]bool
	keywords []string // filter of subscribe (AR-37)
	found    discovery
}

// NewRelay makes a relay and reads what lasts of it. Nothing runs before [Relay.Run].
func NewRelay(ctx context.Context, cfg RelayConfig) (*Relay, error) {
	if cfg.Records == nil {
		return nil, errors.New("agentrelay: config is incomplete")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Name = cmp.Or(cfg.Name, "agentmesh")
	cfg.Registration = cmp.Or(cfg.Registration, credential.Closed)
	cfg.Stats = cmp.Or(cfg.Stats, StatsPublic)
	clock := store.NewWallClock(cfg.Logger)
	agents, err := loadRegistry(ctx, cfg.Records, cmp.Or(cfg.MaxAgents, MaxAgents), clock)
	if err != nil {
		return nil, err
	}
	r := &Relay{
		cfg: cfg, log: cfg.Logger, agents: agents, clock: clock, began: time.Now(),
		failed: rate.NewPenalties(maxFailed, 0, maxRateKeys),
		recent: rate.NewWindow(time.Second), searches: rate.NewWindows(maxSearches, 0),
		spent: make(map[string]*rate.Windows), sessions: make(map[string]*session), open: make(map[*session]struct{}),
	}
	var everybody *rate.Pool
	if cfg.Registration == credential.Open {
		everybody = newPlaces(agents.max)
	}
	r.registrations = rate.NewRegistrations(cmp.Or(cfg.RegistrationsPerHour, defaultRegisters), everybody)
	if cfg.Extensions.History {
		if r.history, err = loadHistory(ctx, cfg.Records, cfg.Extensions); err != nil {
			return nil, err
		}
	}
	if cfg.Extensions.Voting {
		if r.votes, err = loadVotes(ctx, cfg.Records, cfg.Extensions); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// newPlaces returns the pool of the registrations of a day, for a relay of at most maxAgents agents. One network can draw
// most of it and then leaves the rest to others, and the relay does not fill up before unused agents make way.
func newPlaces(maxAgents int) *rate.Pool {
	n := max(maxAgents/4, 100)
	return rate.NewPool(rate.Limit(float64(n)/keepUnused.Seconds()), n)
}

// Run works until ctx ends. Then it closes every connection with 1001 and returns when all has stopped.
func (r *Relay) Run(ctx context.Context) error {
	ticker := time.NewTicker(houseEvery)
	defer ticker.Stop()
	r.keepHouse(ctx)
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ticker.C:
			r.keepHouse(ctx)
		}
	}
	r.hangUp()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	return r.agents.flush(last)
}

// keepHouse does what is due: ends votes, lets old messages go, stores who was active. While the clock is in doubt nothing
// ends: it would stay so when the clock is right again.
func (r *Relay) keepHouse(ctx context.Context) {
	if err := r.agents.flush(ctx); err != nil && ctx.Err() == nil {
		r.log.Error("store the activity of agents", "err", err)
	}
	r.settleUp(time.Now())
	if !r.clock.Believed() {
		return
	}
	if r.history != nil {
		if err := r.history.sweep(ctx, time.Now()); err != nil && ctx.Err() == nil {
			r.log.Error("drop old messages of the relay", "err", err)
		}
	}
	if r.votes != nil {
		r.endVotes(ctx, time.Now())
	}
}

// settleUp forgets what agents spent that are gone for an hour.
func (r *Relay) settleUp(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.spent, func(id string, a *rate.Windows) bool { return r.sessions[id] == nil && a.Count(now) == 0 })
}

// enter makes a connection that of its agent: the newest wins, the one before is closed with 1008 (AR-13). The welcome
// is queued under the lock, so that nothing can come before it (AR-11). The token is looked at again: a new one, which
// ends the connection under the same lock, may have come since. A refusal says how to close.
func (r *Relay) enter(s *session) *websocket.CloseError {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.stopping, len(r.open) >= maxSessions:
		return &websocket.CloseError{Code: websocket.CodeTryLater, Reason: "the relay is full"}
	case !r.agents.admit(s.id, s.token):
		return &websocket.CloseError{Code: codeBadToken, Reason: "the token is no longer good"}
	}
	if old := r.sessions[s.id]; old != nil {
		old.conn.Close(codePolicy, "another connection of this agent took over")
	}
	if r.spent[s.id] == nil {
		r.spent[s.id] = rate.NewWindows(cmp.Or(r.cfg.PerMinute, defaultPerMinute), cmp.Or(r.cfg.PerHour, defaultPerHour))
	}
	s.spent = r.spent[s.id]
	r.sessions[s.id] = s
	r.open[s] = struct{}{}
	r.running.Add(1)
	r.tell(s, r.welcome(s.id))
	return nil
}

// leave forgets a connection. It must not take the place of a newer one with it (AR-13).
func (r *Relay) leave(s *session) {
	r.mu.Lock()
	if r.sessions[s.id] == s {
		delete(r.sessions, s.id)
	}
	delete(r.open, s)
	r.mu.Unlock()
	r.running.Done()
}

func (r *Relay) welcome(id string) message {
	limits := wire.Obj(wire.Field("max_message_size", wire.Int(MaxFrame)))
	if n := cmp.Or(r.cfg.PerMinute, defaultPerMinute); n > 0 {
		limits = limits.With("rate_limit", wire.Int(int64(n)))
	}
	return message{kind: "welcome", to: id, payload: wire.Obj(
		text("relay", r.cfg.Name), text("version", protocolVersion),
		wire.Field("capabilities", wire.Texts([]string{"broadcast", "direct", "subscribe"})),
		wire.Field("extensions", wire.Texts(r.cfg.Extensions.names())), wire.Field("limits", limits),
	)}
}

// message is a frame of the relay itself.
type message struct {
	kind, to, ref string
	payload       wire.Value
}

// tell queues a frame of the relay for one connection. One that is gone or too slow needs no further word.
func (r *Relay) tell(s *session, m message) {
	_ = s.conn.Send(websocket.Text(m.encode(time.Now().UnixMilli())))
}

func (m message) encode(ts int64) []byte {
	v := wire.Obj(text("id", newID()), text("from", relayID), wire.Field("to", wire.Texts([]string{m.to})), text("type", m.kind))
	if m.ref != "" {
		v = v.With("ref", wire.Text(m.ref))
	}
	return v.With("payload", m.payload).With("ts", wire.Int(ts)).JSON()
}

// refuse answers a frame that was not taken (AR-18).
func (r *Relay) refuse(s *session, f frame, why *refusal) {
	r.tell(s, message{kind: "error", to: s.id, ref: f.ref, payload: wire.Obj(text("code", why.code), text("message", why.message))})
}

// now returns the time of a frame, which never runs backwards (section 10), and its place among those of the same time.
func (r *Relay) now() (ts int64, seq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = max(r.last, time.Now().UnixMilli())
	r.frames++
	return r.last, r.frames
}

// disconnect closes the connection of an agent.
func (r *Relay) disconnect(id string, code int, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sessions[id]; s != nil {
		s.conn.Close(code, reason)
		delete(r.sessions, id)
	}
}

// connected lists who is connected, by id.
func (r *Relay) connected() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]string, 0, len(r.sessions))
	for id := range r.sessions {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

// hangUp closes all connections and waits until they are gone.
func (r *Relay) hangUp() {
	r.mu.Lock()
	r.stopping = true
	for s := range r.open {
		s.conn.Close(websocket.CodeGoingAway, "going down")
	}
	r.mu.Unlock()
	late := time.AfterFunc(stopPatience, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for s := range r.open {
			s.conn.Abort()
		}
	})
	defer late.Stop()
	r.running.Wait()
}
