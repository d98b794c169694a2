package gateway

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/store"
)

// Participant is a configured participant of a space.
type Participant struct {
	Name         string
	Tokens       []string
	Capabilities []capability.Capability // nil: the defaults of the space
	OutputLog    string                  // path of the file that gets the participant's envelopes; "" for none (MEW-D6)
	AutoConnect  bool                    // the participant is in the space from the start, through its output log
}

// SpaceConfig is a configured space.
type SpaceConfig struct {
	ID, Name     string
	Defaults     []capability.Capability // see Participant.Capabilities
	Participants []Participant
	// DropIn selects the rules of the reference implementation: everybody may send mcp/response, and inviters may give
	// more capabilities than they hold unless InviteSubset is set (MEW-D7, MEW-27).
	DropIn       bool
	InviteSubset bool
	// RatePerMinute bounds the envelopes and frames of each participant; 0 means no limit (MEW-Q4).
	RatePerMinute int
}

// Config configures a gateway.
type Config struct {
	Spaces  []SpaceConfig
	Records store.Records
	Audit   *acl.Audit
	// PublicURL is the URL at which clients reach the gateway: ws:// or wss:// and the host.
	PublicURL string
	// AnyPath accepts connections on every path, not only on /ws (MEW-J1).
	AnyPath bool
	// Origins are the foreign origins whose pages may open WebSockets, and CORSOrigins those whose pages may call the
	// HTTP routes. Both are empty by default.
	Origins, CORSOrigins []string
	// Journal logs envelopes and decisions. It may be nil.
	Journal *Journal
	// KeepToken stores the token of an invited participant in the place where the operator looks for it. Reload calls
	// claim for each token in the token folder, to which the operator may have added some. Both are for drop-in spaces
	// and may be nil.
	KeepToken func(name, token string) error
	Reload    func(claim func(token, space, name string) error)
	// InviteNotice returns the change that stores a notice to the operator about an invite with an email address
	// (MEW-28). The gateway stores it together with the invite. If InviteNotice is nil, the operator is not notified.
	InviteNotice func(Invitation) store.Change
	Logger       *slog.Logger
}

// Gateway serves spaces. It is safe for concurrent use.
type Gateway struct {
	cfg      Config
	log      *slog.Logger
	spaces   map[string]*Space
	order    []*Space
	accounts *accounts
	began    time.Time
	files    []*lineFile // output logs

	conns websocket.Group // joined or not

	mu       sync.Mutex
	reloaded time.Time // when the token folder was last read
}

const (
	tickEvery    = time.Second
	stopPatience = 2 * time.Second // how long a stop waits until the connections have closed (MEW-Q6)
	maxSessions  = 50_000          // connections, joined or not
)

// New makes a gateway and reads the stored state of its spaces. It starts nothing; see [Gateway.Run].
func New(ctx context.Context, cfg Config) (*Gateway, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Audit = cmp.Or(cfg.Audit, acl.NewAudit(cfg.Records, acl.AuditConfig{Logger: cfg.Logger}))
	g := &Gateway{
		cfg: cfg, log: cfg.Logger, spaces: make(map[string]*Space), accounts: newAccounts(cfg.Records), began: time.Now(),
	}
	g.cfg.Spaces = nil // they contain tokens
	if err := g.accounts.Load(ctx); err != nil {
		return nil, err
	}
	for _, sc := range cfg.Spaces {
		s, err := g.newSpace(sc)
		if err != nil {
			return nil, err
		}
		g.spaces[sc.ID] = s
		g.order = append(g.order, s)
	}
	return g, nil
}

func (g *Gateway) newSpace(sc SpaceConfig) (*Space, error) {
	if !envelope.IsName(sc.ID) || g.spaces[sc.ID] != nil {
		return nil, fmt.Errorf("space %q: the id cannot be used, or another space has it", envelope.ToPrintable(sc.ID, envelope.MaxName))
	}
	s := &Space{cfg: sc, gatewayCfg: &g.cfg, accounts: g.accounts}
	s.cfg.Participants = nil
	s.members = members{space: sc.ID, dropIn: sc.DropIn, byName: make(map[string]*member), byID: make(map[string]*member)}
	s.out = delivery{space: sc.ID, journal: g.cfg.Journal}
	s.streams = streams{members: &s.members, open: make(map[string]*stream), announced: make(map[string]announced)}
	if sc.RatePerMinute > 0 {
		s.rates = rate.NewBuckets(rate.PerMinute(sc.RatePerMinute), sc.RatePerMinute, maxMembers)
	}
	if len(sc.Participants) > maxMembers {
		return nil, fmt.Errorf("space %s: more than %d participants", sc.ID, maxMembers)
	}
	for _, p := range sc.Participants {
		if err := g.newMember(s, p); err != nil {
			return nil, fmt.Errorf("space %s: %w", sc.ID, err)
		}
	}
	if !sc.DropIn {
		if s.members.byName[OwnerName] != nil {
			return nil, fmt.Errorf("space %s: %s is the name of the owner; give the participant another name", sc.ID, OwnerName)
		}
		// The owner has no connection, and may send and grant everything.
		s.members.owner = s.members.add(OwnerName, []capability.Capability{mustCapability(`{"kind":"*"}`)})
	}
	if err := s.load(); err != nil {
		return nil, err
	}
	for _, p := range sc.Participants {
		if m := s.members.byName[p.Name]; p.AutoConnect && m.output != nil && !m.record.Barred {
			s.mu.Lock()
			s.joinByLog(m)
			s.unlock()
		}
	}
	return s, nil
}

// newMember adds a configured participant to a space, with its tokens and its output log.
func (g *Gateway) newMember(s *Space, p Participant) error {
	if !envelope.IsName(p.Name) || s.members.byName[p.Name] != nil {
		return fmt.Errorf("participant %q: the name cannot be used, or another participant has it", envelope.ToPrintable(p.Name, envelope.MaxName))
	}
	own := p.Capabilities
	if own == nil {
		own = s.cfg.Defaults
	}
	if len(own) > capability.MaxHeld {
		return fmt.Errorf("participant %s: more than %d capabilities", p.Name, capability.MaxHeld)
	}
	m := s.members.add(p.Name, own)
	for _, c := range own {
		g.warnOperator(s, p.Name, c)
	}
	for _, token := range p.Tokens {
		if err := g.claim(token, s.cfg.ID, p.Name); err != nil {
			return err
		}
	}
	if p.OutputLog != "" {
		m.output = newOutputLog(p.OutputLog, g.log)
		g.files = append(g.files, m.output)
	}
	return nil
}

// warnOperator logs a warning about a capability with unknown keys or with a pattern that never matches.
func (g *Gateway) warnOperator(s *Space, name string, c capability.Capability) {
	if keys := c.UnknownKeys(); len(keys) > 0 {
		g.log.Warn("a capability has keys without a meaning", "space", s.cfg.ID, "participant", name, "keys", keys)
	}
	if c.HasDeadPattern() {
		g.log.Warn("a pattern of a capability is not valid and never matches", "space", s.cfg.ID, "participant", name, "capability", string(c.Value().JSON()))
	}
}

// Space returns the space with an id, or nil.
func (g *Gateway) Space(id string) *Space { return g.spaces[id] }

// Spaces returns the spaces in the order of the configuration.
func (g *Gateway) Spaces() []*Space { return g.order }

// ID returns the id of the space.
func (s *Space) ID() string { return s.cfg.ID }

// Run runs the gateway until ctx ends. It then accepts no more connections, and closes every connection with 1001 after
// its queued frames (MEW-Q6). It aborts the connections that are still open after stopPatience, and returns when all of
// them are gone.
func (g *Gateway) Run(ctx context.Context) error {
	writers, stopWriters := context.WithCancel(context.WithoutCancel(ctx))
	var writing sync.WaitGroup
	writing.Go(func() { g.cfg.Journal.run(writers) })
	for _, f := range g.files {
		writing.Go(func() { f.run(writers) })
	}
	ticker := time.Tick(tickEvery)
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case now := <-ticker:
			for _, s := range g.order {
				s.tick(now)
			}
		}
	}
	for _, s := range g.order {
		s.mu.Lock()
		s.stopping = true
		s.unlock()
	}
	g.conns.Close(stopPatience)
	stopWriters()
	writing.Wait()
	return nil
}
