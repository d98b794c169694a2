// Package directory is the registry of agent cards. It registers, renews, withdraws, looks up and searches cards, keeps
// the proofs beside them, and serves all of this over HTTP (protocol rules AM-4 to AM-8 and AM-51 to AM-68).
//
// A directory calls an agent only to fetch the agent's card from its endpoint (AM-63, [Registry.Run]). It serves each
// card as submitted, without the private lists (AM-6). The results of its own checks are shown beside a card, never
// inside it.
//
// Agents without a public address have mailboxes here (package mailbox).
//
// Start with [New], [Registry.Mount] and [Registry.Run]. Three rules hold everywhere: only the SHA-256 of a credential
// is stored; the first failing check of AM-51 decides the error; and a success response is sent after the commit.
//
// This package is a part of the program, not an API for other modules: it may change with every commit.
package directory

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/directory/a2arelay"
	"github.com/agentmesh/agentmesh/directory/admission"
	"github.com/agentmesh/agentmesh/directory/cursor"
	"github.com/agentmesh/agentmesh/directory/discovery"
	"github.com/agentmesh/agentmesh/directory/mailbox"
	"github.com/agentmesh/agentmesh/directory/moderation"
	"github.com/agentmesh/agentmesh/directory/probe"
	"github.com/agentmesh/agentmesh/directory/site"
	"github.com/agentmesh/agentmesh/directory/submission"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// Mode decides who may register (AM-56): Open, Invite or Closed.
type Mode = credential.Mode

const (
	Open   = credential.Open   // any bearer token becomes the card's credential
	Invite = credential.Invite // a new card needs an invite code from the operator
	Closed = credential.Closed // only the operator registers new cards
)

// Config configures a directory. Store and BaseURL are required.
type Config struct {
	Store store.Store
	// FeedPosition returns the newest position of the change feed. The directory calls it before each response from
	// memory. nil means that this process alone writes to the store.
	FeedPosition func(context.Context) (uint64, error)
	// Session takes leases: locks for work that only one process does at a time. If it is nil, the directory makes one.
	Session *store.Session
	// BaseURL is the directory's base, "https://directory.example.com/v1". Key proofs name it (AM-62).
	BaseURL string
	// Local selects the local profile (AM-82): mode open, no quotas, and http endpoints on loopback.
	Local bool
	// Mode decides who may register; "" is Open.
	Mode Mode
	// ReadOnly makes the directory a mirror: nobody registers, see [Registry.Follow].
	ReadOnly bool
	// Operators are the SHA-256 hashes of the operator's own credentials, which may register in every mode, without
	// quotas.
	Operators [][32]byte
	// Quotas bound registrations; the zero value has the defaults of AM-58. The local profile ignores them.
	Quotas Quotas
	// Lifetime is how long a registration lasts without a renewal; 0 is 30 days (AM-55).
	Lifetime time.Duration
	// AllowPrivate lists networks whose addresses an endpoint may name, even with http (AM-80).
	AllowPrivate []netip.Prefix
	// Addresses limits each client address of the listener; nil for no limits.
	Addresses *httpapi.Addresses
	// Site is shown on the public pages, with Version.
	Site    site.Operator
	Version string
	// Referrals are the base URLs of other registries of ARD (Agentic Resource Discovery), which a search recommends
	// (DISC-3).
	Referrals []string
	// WrapFront is the middleware of the page at /; may be nil.
	WrapFront echo.MiddlewareFunc
	// Entries returns what the manifest of ARD lists beside this directory; may be nil.
	Entries func() []discovery.Entry
	// HTTP fetches cards from endpoints (AM-63). If it is nil, the directory probes no endpoint.
	HTTP *client.HTTP
	// Audit returns the change that writes a decision of the operator into the audit log; nil without an audit log.
	Audit moderation.Audit
	// Notices notify the operator of reports; nil notifies nobody.
	Notices *notify.Box
	// Logger gets one line per decision; nil discards them.
	Logger *slog.Logger
	// Metrics of the process; nil for none.
	Metrics *httpapi.Metrics
}

// Submission is what a client sends with POST or PUT.
type Submission = submission.Submission

// Quotas bound what one party may register (AM-58).
type Quotas = admission.Quotas

const (
	lifetime    = 30 * 24 * time.Hour  // of a registration, unless Config.Lifetime is set (AM-55)
	maxLifetime = 365 * 24 * time.Hour // of a mirrored card, whatever the mirrored directory says
	reservation = 30 * 24 * time.Hour  // of the id of an expired or withdrawn card (AM-55)

	cachedKeys  = 1024
	cachedViews = 8192
	maxClients  = 1 << 16 // addresses whose reports are counted

	recordNS = "directory" // of single records: the cursor key, the history of the last days, and the positions of a mirror
)

// Registry is a directory. It is safe for concurrent use.
type Registry struct {
	cfg   Config
	cards store.Cards
	recs  store.Records
	keys  *signing.KeyCache

	views      *viewCache
	pages      *lru.Cache[string, *encodedPage] // by query
	cursors    *cursor.Key
	count      cachedCount
	nameCounts nameCountCache
	changed    waiting.Signal  // wakes the readers of the change feed
	waiters    *waiting.Places // of the change feed
	templates  templates       // set by Mount
	prober     *probe.Prober
	rules      submission.Rules
	relay      *mailbox.Relay
	calls      *a2arelay.Service
	bans       *moderation.Bans
	reporting  sync.Mutex      // serializes reports, so that concurrent reports at this process cannot exceed the bounds
	reporters  *rate.Allowance // reports by address; nil for no limit
	gate       *admission.Gate
}

// New returns a directory that keeps its data in cfg.Store.
func New(cfg Config) *Registry {
	cfg.BaseURL = strings.TrimRight(cfg.BaseURL, "/")
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Site.Name = cmp.Or(cfg.Site.Name, "AgentMesh directory")
	if cfg.Mode == "" || cfg.Local {
		cfg.Mode = Open
	}
	cfg.Lifetime = cmp.Or(cfg.Lifetime, lifetime)
	r := &Registry{
		cfg:     cfg,
		cards:   cfg.Store.Cards(),
		recs:    cfg.Store.Records(),
		keys:    signing.NewKeyCache(cachedKeys),
		views:   newViewCache(cachedViews),
		pages:   newCache[*encodedPage](cachedPages),
		waiters: waiting.NewPlaces(maxWaiting, maxWaiting),

		cursors: cursor.NewKey(cfg.Store.Records(), recordNS),
	}
	if cfg.Session == nil {
		r.cfg.Session = store.NewSession(cfg.Store.Leases(), cfg.Logger)
	}
	r.bans = moderation.NewBans(r.recs, cfg.Audit)
	r.gate = admission.New(admission.Config{
		Store: cfg.Store, Mode: cfg.Mode, Local: cfg.Local, Operators: cfg.Operators, Quotas: cfg.Quotas, Shared: cfg.FeedPosition != nil,
		Audit: cfg.Audit.Changes, Addresses: cfg.Addresses, Metrics: cfg.Metrics,
	})
	r.relay = mailbox.New(mailbox.Config{
		BaseURL: cfg.BaseURL, Store: cfg.Store, Shared: cfg.FeedPosition != nil, Secret: r.cursors, Keys: r.keys, Gate: r.gate, Bans: r.bans,
		RecordConnection: func(ctx context.Context, card wire.Card) error { return r.saveProbe(ctx, card, true) }, // true: it answered
		ShowCard:         r.getAgent, Addresses: cfg.Addresses, Metrics: cfg.Metrics, Logger: cfg.Logger,
	})
	r.rules = submission.Rules{BaseURL: cfg.BaseURL, Local: cfg.Local, AllowPrivate: cfg.AllowPrivate, Keys: r.keys, IsMailbox: r.relay.HasMailboxOf}
	r.calls = a2arelay.New(a2arelay.Config{
		BaseURL: cfg.BaseURL, Records: r.recs, Addresses: cfg.Addresses, Agent: r.relay.Agent, ParseKey: r.keys.Parse, Queue: r.relay.Queue, Secret: r.cursors.Get,
		CheckBan: func(ctx context.Context, client netip.Addr) error { return r.bans.CheckClient(ctx, client, wire.Now()) },
	})
	if !cfg.Local { // AM-82
		r.reporters = rate.NewAllowance(rate.PerHour(reportsPerHour), reportsPerHour, maxClients)
	}
	r.prober = probe.New(probe.Config{
		HTTP: cfg.HTTP, Reach: map[bool]client.Reach{false: client.Public, true: client.Loopback}[cfg.Local], UserAgent: "agentmesh-directory (+" + cfg.BaseURL + "; proves endpoints)", Cards: r.cards, IsMailbox: r.relay.HasMailboxOf,
		IsElsewhere: func() bool { return r.cfg.Session.IsElsewhere(Lease) }, Save: r.saveProbe, Metrics: cfg.Metrics, Logger: cfg.Logger,
	})
	cfg.Metrics.StoreGauge("cards", "Live cards in the directory, as counted at most ten seconds ago.", func(ctx context.Context) (float64, error) {
		n, err := r.countAgents(ctx, wire.Now())
		return float64(n), err
	})
	cfg.Metrics.LimiterFunc("reports-of-address", r.reporters.Refusals)
	return r
}

// Admission returns the gate, which decides who may register and manages the invite codes.
func (r *Registry) Admission() *admission.Gate { return r.gate }

// Bans returns the list of bans. To add one and also remove the cards of the banned party, call [Registry.Ban].
func (r *Registry) Bans() *moderation.Bans { return r.bans }

// Relay returns the relay of mailboxes.
func (r *Registry) Relay() *mailbox.Relay { return r.relay }
