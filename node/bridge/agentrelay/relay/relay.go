package relay

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// StatsMode selects what GET /stats shows (AR-32).
type StatsMode string

const (
	StatsPublic StatsMode = "public" // the ids of the registered and the connected agents
	StatsCounts StatsMode = "counts" // only their numbers
	StatsOff    StatsMode = "off"
)

// Config configures a relay.
type Config struct {
	Name         string // the relay's name in welcome; empty: agentmesh
	Records      store.Records
	Registration credential.Mode // who gets an id (AR-36): Open, Invite or, if empty, Closed
	Stats        StatsMode       // empty: public
	MaxAgents    int             // zero: [credential.MaxAccounts]
	// PerMinute and PerHour bound the frames of one agent (AR-31): zero means 100 and 1,000, negative no limit.
	PerMinute, PerHour int
	// RegistrationsPerHour bounds the agents that one address registers: zero means 10, negative no limit.
	RegistrationsPerHour int
	Origins              []string // of web pages that may connect, besides our own
	AnyOrigin            bool     // pages of every origin may read the HTTP answers (AR-34)
	Extensions           Extensions
	Search               Search // searches the directory; nil: only the connected agents are searched
	Logger               *slog.Logger
}

// Extensions are the optional functions of a relay (AR-37 to AR-46). All are off by default.
type Extensions struct {
	Semantic, Voting, History bool
	Keep                      time.Duration // of history; zero: 7 days
	MaxMessages               int           // of history; zero: 10,000
	VoteDuration              time.Duration // after this time, an undecided proposal is rejected; zero: 7 days
}

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
	defaultPerMinute     = 100
	defaultPerHour       = 1000
	defaultRegistrations = 10
	queueFrames          = 256 // frames that wait for one slow connection (AR-23)
	queueBytes           = 1 << 20
	maintainEvery        = time.Minute
	protocolVersion      = "1.0"
)

// Relay is a hosted relay. It is safe for concurrent use.
type Relay struct {
	cfg        Config
	log        *slog.Logger
	agents     *registry
	stamps     stamps // of registrations and frames
	clock      *store.WallClock
	conns      *connections
	statistics statistics
	history    *history      // nil if the extension is off
	voting     sync.Mutex    // held while votes are written, so that they count one after the other
	searches   *rate.Windows // of the directory
}

// New makes a relay from the stored agents and messages. Nothing runs before [Relay.Run].
func New(ctx context.Context, cfg Config) (*Relay, error) {
	if cfg.Records == nil {
		return nil, errors.New("agentrelay: the configuration has no record store")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Name = cmp.Or(cfg.Name, "agentmesh")
	cfg.Registration = cmp.Or(cfg.Registration, credential.Closed)
	cfg.Stats = cmp.Or(cfg.Stats, StatsPublic)
	cfg.Extensions.VoteDuration = cmp.Or(cfg.Extensions.VoteDuration, defaultVoteDuration)
	cfg.RegistrationsPerHour = cmp.Or(cfg.RegistrationsPerHour, defaultRegistrations)
	r := &Relay{
		cfg: cfg, log: cfg.Logger, agents: newRegistry(cfg), clock: store.NewWallClock(cfg.Logger), conns: newConnections(cfg),
		statistics: statistics{began: time.Now(), recent: rate.NewWindow(time.Second)},
		searches:   rate.NewWindows(maxSearches, 0), // 0: no limit per hour
	}
	err := r.agents.Load(ctx)
	if err != nil {
		return nil, err
	}
	if cfg.Extensions.History {
		if r.history, err = loadHistory(ctx, cfg.Records, r.clock, cfg.Extensions); err != nil {
			return nil, err
		}
		if n := len(r.history.list); n > 0 {
			r.stamps.last = r.history.list[n-1].ts + 1 // the clock may have been set back meanwhile
		}
	}
	return r, nil
}

// Run maintains the relay until ctx ends. Then it closes every connection with 1001, and returns when all of them are
// gone. It may be called again then.
func (r *Relay) Run(ctx context.Context) error {
	r.agents.Reload(ctx, r.log) // another instance may have served the relay
	r.conns.group.Open()
	ticker := time.Tick(maintainEvery) // the first time after a minute, when agents have connected and hear how votes ended
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ticker:
			r.maintain(ctx)
		}
	}
	r.conns.group.Close(stopPatience)
	return nil
}

// maintain does what is due every minute: it forgets the frame rates of absent
// agents, deletes old messages, and ends votes. While the clock is in doubt, it deletes no message and ends no vote,
// because that could not be undone when the clock is right again.
func (r *Relay) maintain(ctx context.Context) {
	r.conns.sweep(time.Now())
	if !r.clock.Reliable() {
		return
	}
	if r.history != nil {
		if err := r.history.sweep(ctx, time.Now()); err != nil && ctx.Err() == nil {
			r.log.Error("cannot delete old messages of the relay", "err", err)
		}
	}
	if r.cfg.Extensions.Voting {
		r.endVotes(ctx, time.Now())
	}
}

// newWelcome returns the first frame of a connection to the agent with this id (AR-11).
func (r *Relay) newWelcome(id string) []byte {
	limits := wire.Obj(wire.Field("max_message_size", wire.Int(frame.MaxSize)))
	if n := r.conns.perMinute; n > 0 {
		limits = limits.With("rate_limit", wire.Int(int64(n)))
	}
	return notice(id, "welcome", "", wire.Obj(
		wire.TextField("relay", r.cfg.Name), wire.TextField("version", protocolVersion),
		wire.Field("capabilities", wire.Texts([]string{"broadcast", "direct", "subscribe"})),
		wire.Field("extensions", wire.Texts(r.cfg.Extensions.names())), wire.Field("limits", limits),
	))
}

// stamps gives times to frames and registrations. The times never run backwards while the relay runs, and after a
// restart they are later than the history.
type stamps struct {
	mu     sync.Mutex
	last   int64 // the newest ts, in milliseconds
	frames uint64
}

// next returns the time of a frame, and a number that orders frames of the same time.
func (s *stamps) next() (ts int64, seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = max(s.last, time.Now().UnixMilli())
	s.frames++
	return s.last, s.frames
}

// registrationTime returns the time of a registration. Every later frame gets a later time. The history needs this,
// because it decides by time what an agent may see (AR-46).
func (s *stamps) registrationTime() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	ts := max(s.last, time.Now().UnixMilli())
	s.last = ts + 1
	return time.UnixMilli(ts).UTC()
}
