package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/term"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/directory"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/certs"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// process is everything that runs on one data directory, made and connected here and nowhere else.
type process struct {
	cfg     Config
	app     *app
	log     *slog.Logger
	metrics *httpapi.Metrics
	home    home
	release func() // of the pid file
	secrets secrets

	passphrase func() ([]byte, error) // of the key files; whoever types it types it once

	db       *bolt.Store
	store    *store.Observed // what the services use: db, reporting what they commit
	http     *client.HTTP
	edge     *httpapi.Server
	certs    *certs.Source // of a serve, nil where the listener speaks plain HTTP
	plain    net.Listener  // beside one with TLS, nil where there is none
	owner    *httpapi.Owner
	registry *directory.Registry // nil without the role
	mirror   bool                // the registry is a mirror: see directory mirror
	node     *node.Node          // nil without the role
	notices  *notify.Box
	audit    *acl.Audit
	joined   []*client.Directory // what the node joins and asks
	bridges  []bridgeService
	base     string         // URL under which others reach the listener
	events   *calendar.Book // nil where the owner has no calendar
}

func (c Config) has(role string) bool { return slices.Contains(c.Roles, role) }

// open takes the data directory for this process and opens its database.
func (a *app) open(ctx context.Context, cfg Config) (*process, error) {
	dir, err := a.dataDir()
	if err != nil {
		return nil, err
	}
	h, err := openHome(dir)
	if err != nil {
		return nil, err
	}
	p := &process{
		cfg: cfg, app: a, home: h, log: a.logger(cfg.Log), metrics: httpapi.NewMetrics(thisBuild().Version),
		passphrase: sync.OnceValues(a.passphrase),
	}
	if h.lostDatabase() {
		p.log.Warn("the database is missing: a new one is made, which knows nothing of what happened before", "path", h.path(fileDatabase))
	}
	p.db, err = bolt.Open(ctx, h.path(fileDatabase), bolt.Config{
		Logger: p.log, MinFree: offBelowOne(int64(cfg.MinFreeDisk)), Committed: commitMetrics(p.metrics),
	})
	if err != nil {
		return nil, h.openFault(err)
	}
	if p.release, err = h.hold(); err != nil {
		return nil, errors.Join(err, p.db.Close())
	}
	h.dropUnfinished()
	p.store = store.Observe(p.db)
	storeMetrics(p.metrics, p.db)
	return p, nil
}

// openFault says what a database that cannot be opened means to the user.
func (h home) openFault(err error) error {
	switch {
	case errors.Is(err, bolt.ErrLocked):
		return h.inUse()
	case errors.Is(err, bolt.ErrFileMode):
		return failHint(exitConfig, err, "chmod 600 "+h.path(fileDatabase))
	case errors.Is(err, bolt.ErrNewerSchema):
		return failHint(exitConfig, err, "use the newer agentmesh; docs/operations.md, Upgrade, says how to go back")
	case errors.Is(err, store.ErrUnavailable):
		return failHint(exitUnavailable, err, "make room on the disk; nothing was changed")
	case errors.Is(err, bolt.ErrDamaged):
		return failHint(exitConfig, err, "agentmesh check says more; agentmesh restore brings a backup into a new directory")
	}
	return fail(exitConfig, err)
}

// Close lets go of the data directory.
func (p *process) Close() error {
	if p.http != nil {
		p.http.Close()
	}
	if p.plain != nil {
		_ = p.plain.Close() // served or not, it goes
	}
	p.release() // before the lock goes, after which the pid file is somebody else's
	return p.store.Close()
}

// assemble makes the services of a process that is reached at base, and their routes. Nothing runs yet.
func (p *process) assemble(ctx context.Context, base string) error {
	p.base = base
	p.http = client.NewHTTP(client.HTTPConfig{
		Local: !p.cfg.Public(), AllowPrivate: p.cfg.Network.AllowPrivate, Version: thisBuild().Version, Logger: p.log,
	})
	_, exempt := p.cfg.exempt()
	p.edge = httpapi.New(httpapi.Config{
		Local: !p.cfg.Public(), PublicURL: p.cfg.PublicURL, TLS: p.tlsConfig(),
		TrustedProxies: p.cfg.Network.TrustedProxies.listed(), ProxyHere: p.cfg.proxyHere(),
		CORSOrigins: p.cfg.Network.CORSOrigins, RequestsPerMinute: offBelowOne(p.cfg.Limits.RequestsPerMinute), Exempt: exempt,
		MaxConns: offBelowOne(p.cfg.Network.MaxConnections), MaxConnsPerAddr: offBelowOne(p.cfg.Network.MaxConnectionsPerAddress),
		Version: thisBuild().Version, Logger: p.log, Metrics: p.metrics,
	})
	p.owner = httpapi.NewOwner(httpapi.OwnerConfig{
		Dir: p.home.dir, RuntimeDir: os.Getenv("XDG_RUNTIME_DIR"), Listen: p.cfg.OwnerAPI.Listen, Hosts: p.cfg.OwnerAPI.Hosts, Logger: p.log,
		Metrics: p.metrics,
	})
	owner.Mount(p.owner.Group(), p.operations()...)
	p.audit = acl.NewAudit(p.store.Records(), acl.AuditConfig{
		MaxEntries: uint64(p.cfg.Audit.MaxEntries), Keep: p.cfg.Audit.Keep, Logger: p.log,
	})
	p.edge.Health("store", func(ctx context.Context) (any, error) { return nil, p.store.Ping(ctx) })
	p.watchCertificate()
	if p.cfg.has(roleNode) {
		var err error
		if p.secrets, err = p.home.secrets(p.passphrase); err != nil {
			return err
		}
	}
	var err error
	if p.notices, err = p.notifier(); err != nil {
		return fail(exitConfig, fmt.Errorf("notify: %w", err))
	}
	if p.cfg.has(roleDirectory) {
		p.addDirectory(base + "/v1")
	}
	if p.cfg.has(roleNode) {
		if err := p.addNode(ctx, base); err != nil {
			return err
		}
	}
	if p.node == nil { // else the node did
		p.store.OnCommit(p.notices.Committed)
		owner.Mount(p.owner.Group(), owner.AuditOperations(p.audit)...)
		owner.Mount(p.owner.Group(), p.statusOperations()...)
	}
	return p.addBridges()
}

// ownDirectory is the name by which the node remembers the directory in its own process.
const ownDirectory = "own"

func (p *process) addDirectory(base string) {
	cfg := directory.Config{
		Store: p.store, BaseURL: base, Local: !p.cfg.Public(), Mode: directory.Mode(p.cfg.Registration.Mode),
		Quotas: directory.Quotas{
			PerToken: offBelowOne(p.cfg.Registration.CardsPerToken), PerHost: offBelowOne(p.cfg.Registration.CardsPerHost),
			PerHour: offBelowOne(p.cfg.Registration.PerHour),
		},
		AllowPrivate: p.cfg.Network.AllowPrivate, Addresses: p.edge.Addresses(), Version: thisBuild().Version, Logger: p.log,
	}
	if p.secrets.credential != "" {
		cfg.Operators = [][32]byte{credential.HashOf(string(node.Credential(p.secrets.credential, &client.Directory{Base: base, Alias: ownDirectory})))}
	}
	cfg.Audit, cfg.HTTP, cfg.ReadOnly, cfg.Metrics, cfg.Notices = p.auditOperator, p.http, p.mirror, p.metrics, p.notices
	p.registry = directory.New(cfg)
	p.registry.Mount(p.edge.Echo())
	owner.Mount(p.owner.Group(), p.registry.Operations()...)
	p.edge.Health("index", func(ctx context.Context) (any, error) { return nil, p.db.Indexed(ctx) })
	p.edge.Health("directory", p.registry.Health)
	if !p.mirror {
		p.edge.Health("relay", p.registry.RelayHealth)
	}
}

func (p *process) addNode(ctx context.Context, base string) error {
	stored, err := p.home.card()
	if err != nil {
		return err
	}
	card, err := buildCard(p.cfg, p.secrets, stored, base)
	if err != nil {
		return err
	}
	if card, err = p.withMoltSpeak(card, base); err != nil {
		return err
	}
	if p.joined, err = p.directories(base + "/v1"); err != nil {
		return err
	}
	routes, err := p.routes()
	if err != nil {
		return err
	}
	scheduler, err := p.addCalendar()
	if err != nil {
		return err
	}
	schemas, err := p.schemas()
	if err != nil {
		return err
	}
	var credentialOf func(context.Context, wire.AgentID) (string, error)
	if p.registry != nil {
		credentialOf = p.registry.CredentialOf
	}
	exempt, _ := p.cfg.exempt()
	p.node, err = node.New(ctx, node.Config{
		CredentialOf: credentialOf,
		Store:        p.store, Directories: p.joined, Relay: p.relay(), Credential: p.secrets.credential, HTTP: p.http,
		Window:   client.Window{Past: p.cfg.Window.Past, Future: p.cfg.Window.Future},
		Identity: node.Identity{Key: p.secrets.key, Card: card}, Age: append([]*signing.PrivateKey{p.secrets.age}, p.secrets.agesBefore...),
		Policy: p.cfg.policy(), Outbound: p.cfg.outbound(), Rates: p.cfg.rates(), Exempt: exempt,
		Routes: scheduled(scheduler, routes), Schemas: schemas, Notices: p.notices, Audit: p.audit, Agreed: p.events,
		SyncDeadline: p.cfg.Timeouts.Sync, HookTimeout: p.cfg.Timeouts.Hook, HoldFor: p.cfg.Timeouts.Hold, RemindAfter: offBelowOne(p.cfg.Timeouts.Remind),
		Idle: p.cfg.Conversations.Idle, Retention: p.cfg.Conversations.Retention, MaxKept: p.cfg.Conversations.MaxKept,
		MaxBytes: p.cfg.Conversations.MaxBytes, SaveKey: p.saveKey, RetiredKey: p.retiredKey, FirstKey: p.firstKey, Logger: p.log, Metrics: p.metrics,
		Process: p.processStatus,
	})
	if err != nil {
		return fail(exitConfig, fmt.Errorf("start the node: %w", err))
	}
	p.node.Mount(p.edge.Echo(), p.edge.Addresses())
	owner.Mount(p.owner.Group(), p.node.OwnerAPI().Operations()...)
	if p.registry != nil {
		p.registry.OnMail(func(to wire.AgentID) {
			if to == p.node.ID() {
				p.node.MailWaits()
			}
		})
	}
	owner.Mount(p.owner.Group(), p.calendarOperations(scheduler)...)
	p.edge.WellKnown(func() wire.WellKnown {
		doc := p.node.WellKnown()
		if p.registry != nil {
			doc.Directory = base + "/v1"
		}
		return doc
	})
	return nil
}

// directories returns the directories that the node joins: the configured ones, or its own. Its own is reached in
// this process, so that it works before the listener answers and behind any proxy.
func (p *process) directories(own string) ([]*client.Directory, error) {
	invite, err := p.invite()
	if err != nil {
		return nil, err
	}
	urls := p.cfg.joined()
	if len(urls) == 0 && p.registry != nil {
		urls = []string{own}
	}
	var out []*client.Directory
	for _, u := range urls {
		var inside http.RoundTripper
		if p.registry != nil && strings.TrimRight(u, "/") == own {
			inside = client.InProcess(p.edge.Internal())
		}
		d := client.NewDirectory(u, p.http, inside)
		d.Invite = invite
		if inside != nil {
			d.Alias = ownDirectory // its URL changes with --listen and public_url
		}
		out = append(out, d)
	}
	return out, nil
}

// relay is the directory that has the node's mailbox: the first one that it joins.
func (p *process) relay() *client.Directory {
	if p.cfg.ViaRelay == "" || len(p.joined) == 0 {
		return nil
	}
	return p.joined[0]
}

func (p *process) invite() (client.Credential, error) {
	if p.cfg.InviteFile == "" {
		return "", nil
	}
	data, err := os.ReadFile(p.app.beside(p.cfg.InviteFile))
	if err != nil {
		return "", fail(exitConfig, fmt.Errorf("read invite_file: %w", err))
	}
	return client.Credential(strings.TrimSpace(string(data))), nil
}

// saveKey keeps a rotated key, encrypted as the old one was, and the card that has it.
func (p *process) saveKey(key *signing.PrivateKey, card wire.Value) error {
	var passphrase []byte
	asked := func() (text []byte, err error) {
		passphrase, err = p.passphrase()
		return passphrase, err
	}
	old, err := p.home.secrets(asked) // asks for the passphrase only where there is one
	if err != nil {
		return err
	}
	if err := p.home.saveKey(key, old.key, passphrase); err != nil {
		return err
	}
	return p.home.saveCard(card)
}

// retiredKey reads a signing key from before a rotation.
func (p *process) retiredKey(fingerprint string) (*signing.PrivateKey, error) {
	_, digits, _ := strings.Cut(fingerprint, ":")
	return signing.ReadKeyFile(p.home.retired(digits), p.passphrase)
}

// firstKey reads the signing key that an agent id is derived from, if it was kept when it was rotated.
func (p *process) firstKey(id wire.AgentID) (*signing.PrivateKey, error) {
	return signing.ReadKeyFile(p.home.retired(id.KeyDigits()), p.passphrase)
}

// operations returns the part of the owner API that is about the process, not about a service.
func (p *process) operations() []owner.Operation {
	return slices.Concat(p.backupOperations(), p.probeOperations(), []owner.Operation{
		owner.Raw(http.MethodGet, "/certificate", owner.Read, p.ownerCertificate),
		owner.Raw(http.MethodGet, "/version", owner.Read, func(c echo.Context) error { return httpapi.JSON(c, http.StatusOK, thisBuild()) }),
		owner.Raw(http.MethodGet, "/cards/:id", owner.Read, p.ownerCard),
	})
}

// ownerCard looks up the card of another agent.
func (p *process) ownerCard(c echo.Context) error {
	ctx := c.Request().Context()
	id := wire.AgentID(c.Param("id"))
	if p.node != nil {
		var err error
		if id, err = p.node.Peer(ctx, string(id)); err != nil {
			return err
		}
	}
	if !id.Valid() {
		return wire.ErrQuery.At("an agent id is am_ and 1 to 128 of A-Z a-z 0-9 . _ -")
	}
	var last error = wire.ErrNoAgent
	var unproven wire.Value
	for _, d := range p.joined {
		card, err := d.Card(ctx, id)
		switch {
		case err == nil && client.CheckCardID(card, time.Now()) == nil:
			return httpapi.Raw(c, http.StatusOK, card.JSON())
		case err == nil && unproven.IsNull(): // gives way to a card of a later directory that proves the id (AM-86)
			unproven = card
		case err != nil && !errors.Is(err, client.ErrUnknownAgent):
			last = wire.ErrNoDirectory.Because(err)
		}
	}
	if !unproven.IsNull() {
		return httpapi.Raw(c, http.StatusOK, unproven.JSON())
	}
	return last
}

// deliver works on the outbox for the length of one command. The returned function stops it and waits for it.
func (p *process) deliver(ctx context.Context) (stop func()) {
	if p.node == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { p.node.Deliver(ctx) })
	return func() { cancel(); running.Wait() }
}

// attempted waits, as long as a command waits for an answer, until deliver has tried what is due.
func (p *process) attempted(ctx context.Context) {
	if p.node == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sendWait*time.Second)
	defer cancel()
	p.node.Attempted(ctx)
}

// logger returns the process's own log.
func (a *app) logger(c LogConfig) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Level)) // checked with the configuration
	opts := &slog.HandlerOptions{Level: max(level, a.quietest)}
	if c.Format == "json" || c.Format == "auto" && !isTerminal(a.err) {
		return slog.New(slog.NewJSONHandler(a.err, opts))
	}
	return slog.New(slog.NewTextHandler(a.err, opts))
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// offBelowOne turns the 0 that switches a limit off here into the negative number that does so below.
func offBelowOne[T int | int64 | time.Duration](n T) T {
	if n == 0 {
		return -1
	}
	return n
}
