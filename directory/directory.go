// Package directory is the registry of agent cards: register, renew, withdraw, look up, search, and the proofs
// beside them, with its HTTP routes (protocol rules AM-4 to AM-8 and AM-51 to AM-68).
//
// It talks to an agent only to ask its endpoint for its card (AM-63, [Registry.Run]). What it serves is what was
// submitted, minus the private lists of AM-6; what it found out itself stands beside a card, never inside.
//
// Agents without an address have mailboxes here (relay.go): mail waits in the store, and what passes through to a
// connected agent lives in memory until it is answered or stored.
//
// Start with [New], [Registry.Mount] and [Registry.Run]. Three things hold everywhere: a credential is kept as its
// SHA-256 and nothing else; the first failing check of AM-51 answers; and an acknowledgement leaves after the commit.
package directory

import (
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// Mode is who may register (AM-56): Open, Invite or Closed.
type Mode = credential.Mode

const (
	Open   = credential.Open   // any bearer becomes the card's credential
	Invite = credential.Invite // a single-use code from the operator, then the credential
	Closed = credential.Closed // nobody new but the operator
)

// Config says how a directory behaves. Store and BaseURL are required.
type Config struct {
	Store store.Store
	// BaseURL is the directory's base, "https://directory.example.com/v1": what key proofs name (AM-62).
	BaseURL string
	// Local is the local profile (AM-82): mode open, no quotas, http endpoints on loopback.
	Local bool
	// Mode is who may register; "" is Open.
	Mode Mode
	// ReadOnly is a mirror: nobody registers, see [Registry.Follow].
	ReadOnly bool
	// Operators are the SHA-256 of credentials that register in every mode and without quotas: those of the
	// operator's own node.
	Operators [][32]byte
	// Quotas; the zero value has the defaults of AM-58. There are none in the local profile.
	Quotas Quotas
	// AllowPrivate are networks whose addresses may stand in endpoints, over http too (AM-80).
	AllowPrivate []netip.Prefix
	// Addresses is the guard per client address of the listener; nil for none.
	Addresses *httpapi.Addresses
	// Keys caches parsed public keys; nil for one of its own.
	Keys *signing.KeyCache
	// Name and Version are shown on the front page.
	Name, Version string
	// HTTP asks endpoints for their cards (AM-63); nil asks none.
	HTTP *client.HTTP
	// Audit returns the change that writes a decision of the operator into the audit log, so that both are stored in
	// one unit; nil for no such log.
	Audit func(Decision) store.Change
	// Notices tell the operator of reports; nil tells nobody.
	Notices *notify.Box
	// Logger gets one line per decision; nil discards them.
	Logger *slog.Logger
	// Metrics of the process; nil for none.
	Metrics *httpapi.Metrics
}

// Quotas bound what one party may register (AM-58). 0 is the default, negative is no limit.
type Quotas struct {
	PerToken int // cards of one credential: 10
	PerHost  int // cards of one endpoint host: 10
	PerHour  int // registrations of one address in an hour: 20
}

const (
	lifetime    = 30 * 24 * time.Hour // AM-55
	reservation = 30 * 24 * time.Hour // AM-55

	cachedKeys  = 1024
	cachedViews = 8192
	maxClients  = 1 << 16 // addresses that the throttles remember
	maxFailures = 10      // wrong credentials of one address in a minute

	recordNS = "directory" // of what is neither card nor invite
)

// Registry is a directory. It is safe for concurrent use.
type Registry struct {
	cfg   Config
	cards store.Cards
	recs  store.Records
	keys  *signing.KeyCache
	log   *slog.Logger

	views     *views
	cursors   cursorKey
	count     cachedCount
	tallies   tallies
	bell      *bell
	face      face // made by Mount
	lineup    *lineup
	desks     *desks
	onMail    func(to wire.AgentID) // told of mail that is kept; nil: nobody is
	mailroom  mailroom
	lastMail  atomic.Int64       // the stamp of the newest mail, see mailKey
	keeping   singleflight.Group // messages on their way into a mailbox, by digest
	bans      bans
	reporting reporting
	reporters *rate.Allowance     // reports by address
	hourly    *rate.Registrations // by address; nil is no limit
	failures  *rate.Penalties     // wrong credentials by address; nil is no limit
	counters  counters
}

// New returns the directory that lives in cfg.Store.
func New(cfg Config) *Registry {
	cfg.BaseURL = strings.TrimRight(cfg.BaseURL, "/")
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Keys == nil {
		cfg.Keys = signing.NewKeyCache(cachedKeys)
	}
	if cfg.Name == "" {
		cfg.Name = "AgentMesh directory"
	}
	if cfg.Mode == "" || cfg.Local {
		cfg.Mode = Open
	}
	cfg.Quotas = cfg.Quotas.settled(cfg.Local)
	r := &Registry{
		cfg:   cfg,
		cards: cfg.Store.Cards(),
		recs:  cfg.Store.Records(),
		keys:  cfg.Keys,
		log:   cfg.Logger,
		views: newViews(cachedViews),
		bell:  newBell(),

		lineup: newLineup(),
		desks:  newDesks(),

		reporters: rate.NewAllowance(rate.PerHour(reportsPerHour), reportsPerHour, maxClients),
	}
	r.hourly = rate.NewRegistrations(cfg.Quotas.PerHour, nil)
	if !cfg.Local {
		r.failures = rate.NewPenalties(maxFailures, 0, maxClients)
	}
	r.measure(cfg.Metrics)
	return r
}

// OnMail sets the function that the registry calls with the recipient of each message that it stores in a mailbox, so that
// an agent in this process need not poll. It is for set-up. The function must not block.
func (r *Registry) OnMail(tell func(to wire.AgentID)) { r.onMail = tell }

// clock returns now as it is stored and shown: whole milliseconds (AM-19).
func clock() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }
