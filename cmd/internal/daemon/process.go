// Package daemon runs one process on one data directory. A [Process] makes and connects the services in the
// configuration, listens, mounts their operations on the owner API, and stops them in order. A command calls the owner
// API through a [Client], which calls either the running serve process or a Process that is made for the command.
package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/engine"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/directory"
	"github.com/agentmesh/agentmesh/directory/discovery"
	"github.com/agentmesh/agentmesh/directory/moderation"
	"github.com/agentmesh/agentmesh/directory/operator"
	"github.com/agentmesh/agentmesh/directory/site"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/personal"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/certs"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/owner/contact"
	"github.com/agentmesh/agentmesh/node/owner/mcp"
	"github.com/agentmesh/agentmesh/node/registration"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/node/zone"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/work"
)

// SendWait is how long a command waits for an answer, in seconds: the time that a peer has to answer, and some time for
// the delivery (AM-32).
const SendWait = 40

// Process holds everything that runs on one data directory. This package alone makes and connects the services.
type Process struct {
	cfg     config.Config
	src     config.Source
	build   Build
	log     *slog.Logger
	metrics *httpapi.Metrics
	dataDir datadir.Dir
	release func() // removes the pid file and, with PostgreSQL, unlocks the directory
	keys    *engine.KeyStore
	secrets datadir.Secrets

	passphrase func() ([]byte, error) // of the key files; it prompts the user at most once

	db          store.Store
	store       *store.Observed // db for the services, with callbacks on commits
	session     *store.Session  // the leases of this process
	http        *client.HTTP
	server      *httpapi.Server     // the listener that others reach
	certs       *certs.Source       // only while the process serves; nil if the listener speaks plain HTTP
	plain       net.Listener        // the plain HTTP listener beside one with TLS; nil if not configured
	owner       *httpapi.Owner      // the listeners of the owner API
	registry    *directory.Registry // nil without the role directory
	mirror      string              // URL of the directory that the registry mirrors, or ""
	node        *node.Node          // nil without the role node
	notices     *notify.Box
	work        *work.Worker // in a process without a node, which has its own
	audit       *acl.Audit
	directories []*client.Directory // the directories that the node joins and searches
	bridges     []runningBridge
	switches    switches        // what the owner let the bridges begin or stop since the start
	hosting     hosting         // which process runs the bridges
	bridgeStore *store.Observed // for the bridges: it stores nothing after this process has lost the lease for them
	base        string          // URL under which others reach the listener

	rerun *rerun

	OwnerOperations []owner.Operation // all that are mounted
}

// Build describes the version of the program.
type Build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Date     string `json:"date,omitempty"` // of the commit, RFC 3339
	Protocol string `json:"protocol"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Options configures a process.
type Options struct {
	Config     config.Config
	Source     config.Source
	Dir        datadir.Dir
	Mirror     string // base URL of the directory that the directory of this process mirrors, or ""
	Build      Build
	Passphrase func() ([]byte, error)           // returns the passphrase of the key files
	Note       func(format string, args ...any) // tells the user that the process waits
	Logger     *slog.Logger

	rerun *rerun // of Run; nil for a process that does not start again
}

// open locks the data directory for this process and opens its database.
func open(ctx context.Context, o Options) (*Process, error) {
	dir, err := datadir.Open(string(o.Dir))
	if err != nil {
		return nil, err
	}
	p := &Process{
		cfg: o.Config, src: o.Source, build: o.Build, dataDir: dir, log: o.Logger, metrics: httpapi.NewMetrics(o.Build.Version),
		mirror: o.Mirror, rerun: cmp.Or(o.rerun, &rerun{}), passphrase: sync.OnceValues(o.Passphrase),
	}
	p.db, p.release, err = engine.Open(ctx, engine.Options{Config: o.Config, Source: o.Source, Dir: dir, Metrics: p.metrics, Logger: p.log})
	if err != nil {
		return nil, err
	}
	if p.keys, err = engine.OpenKeyStore(engine.Options{Config: o.Config, Source: o.Source, Dir: dir, Logger: p.log}, p.db, p.passphrase); err != nil {
		p.release()
		return nil, errors.Join(err, p.db.Close())
	}
	p.store = store.Observe(p.db)
	p.session = store.NewSession(p.store.Leases(), p.log)
	return p, nil
}

// Close closes the database and releases the data directory.
func (p *Process) Close() error {
	if p.http != nil {
		p.http.Close()
	}
	if p.plain != nil {
		_ = p.plain.Close() // Serve may have closed it already
	}
	p.release() // before store.Close unlocks the directory: from then on another process may own the pid file
	return p.store.Close()
}

// agentVersion returns the version in the User-Agent of this process. A mirror also names its URL there, for the
// operator of the directory that it follows.
func agentVersion(p *Process) string {
	if p.mirror == "" || !p.cfg.Public() {
		return p.build.Version
	}
	return p.build.Version + " (+" + p.cfg.PublicURL + ")"
}

// assemble makes the services and mounts their routes, but starts nothing. base is the URL of the process for others.
func (p *Process) assemble(ctx context.Context, base string) error {
	p.base = base
	p.http = client.NewHTTP(client.HTTPConfig{
		Local: !p.cfg.Public(), AllowPrivate: p.cfg.Network.AllowPrivate, Version: agentVersion(p), Logger: p.log,
	})
	_, exempt := p.cfg.Exempt()
	p.server = httpapi.New(httpapi.Config{
		Local: !p.cfg.Public(), PublicURL: p.cfg.PublicURL, TLS: p.tlsConfig(),
		TrustedProxies: p.cfg.Network.TrustedProxies.Prefixes(), ProxyHere: p.cfg.TrustsLocalProxy(),
		CORSOrigins: p.cfg.Network.CORSOrigins, RequestsPerMinute: zeroIsOff(p.cfg.Limits.RequestsPerMinute), Exempt: exempt,
		MaxConns: zeroIsOff(p.cfg.Network.MaxConnections), MaxConnsPerAddr: zeroIsOff(p.cfg.Network.MaxConnectionsPerAddress),
		Version: p.build.Version, Logger: p.log, Metrics: p.metrics,
	})
	p.owner = httpapi.NewOwner(httpapi.OwnerConfig{
		Dir: string(p.dataDir), Listen: p.cfg.OwnerAPI.Listen, Hosts: p.cfg.OwnerAPI.Hosts, LinkHost: p.cfg.Notify.PageHost(), Logger: p.log,
		ListenTCP: p.rerun.sockets.listen, Agent: p.agentDoor(), Metrics: p.metrics,
	})
	p.mountOperations(p.operations()...)
	p.audit = acl.NewAudit(p.store.Records(), acl.AuditConfig{
		Keep: p.cfg.Audit.Keep, Logger: p.log,
	})
	p.server.Health("store", func(ctx context.Context) (any, error) { return nil, p.store.Ping(ctx) })
	p.registerCertificate()
	if p.cfg.Has(config.RoleNode) {
		if err := (keyring{p}).read(ctx); err != nil {
			return err
		}
	}
	loc, err := zone.Load(p.cfg.Owner.Zone)
	if err != nil {
		return exit.Fail(exit.Config, err)
	}
	zone.Set(loc)
	if p.notices, err = p.newNotifier(); err != nil {
		return exit.Fail(exit.Config, fmt.Errorf("notify: %w", err))
	}
	if p.cfg.Has(config.RoleDirectory) {
		if err := p.addDirectory(base + "/v1"); err != nil {
			return err
		}
	}
	if p.cfg.Has(config.RoleNode) {
		if err := p.addNode(ctx, base); err != nil {
			return err
		}
	}
	if p.node != nil {
		if err := connectEcho(p.node); err != nil {
			return err
		}
	} else { // a node does this by itself
		p.store.OnCommit(p.notices.OnCommit, notify.Namespace)
		p.work = work.New(p.store, nil, p.log)
		p.work.Add(p.notices.Queue())
		p.mountOperations(owner.AuditOperations(p.audit, nil)...)
		p.mountOperations(p.statusOperations()...)
	}
	if err := p.addBridges(); err != nil || p.node == nil {
		return err
	}
	return p.node.AuditPolicy(ctx)
}

// OwnDirectory is the alias of the directory in the node's own process.
const OwnDirectory = "own"

// addDirectory makes the directory of this process. base is the base URL of the directory (…/v1).
func (p *Process) addDirectory(base string) error {
	shown := site.Operator{Name: p.cfg.Site.Name, Contact: p.cfg.Site.Contact, Terms: p.cfg.Site.Terms}
	if p.cfg.Site.Logo != "" {
		var err error
		if shown.Logo, err = site.ReadLogo(p.src.ResolvePath(p.cfg.Site.Logo)); err != nil {
			return exit.Fail(exit.Config, fmt.Errorf("site.logo: %w", err))
		}
	}
	cfg := directory.Config{
		Store: p.store, Session: p.session, BaseURL: base, Local: !p.cfg.Public(), Mode: directory.Mode(p.cfg.Registration.Mode),
		Quotas: directory.Quotas{
			PerToken: zeroIsOff(p.cfg.Registration.CardsPerToken), PerHost: zeroIsOff(p.cfg.Registration.CardsPerHost),
			PerHour: zeroIsOff(p.cfg.Registration.PerHour),
		},
		Site: shown, Lifetime: p.cfg.Registration.Lifetime, AllowPrivate: p.cfg.Network.AllowPrivate, Addresses: p.server.Addresses(), Version: p.build.Version, Logger: p.log,
		Audit: p.auditOperator, HTTP: p.http, ReadOnly: p.mirror != "", Metrics: p.metrics, Notices: p.notices,
		FeedPosition: engine.FeedPosition(p.db), WrapFront: wrapFront(p),
		Referrals: p.cfg.Discovery.Referrals, Entries: func() []discovery.Entry { return ownEntries(p) },
	}
	if p.secrets.Credential != "" { // the node of this process may always register
		cfg.Operators = [][32]byte{credential.HashOf(string(registration.Credential(p.secrets.Credential, &client.Directory{Base: base, Alias: OwnDirectory})))}
	}
	if p.mirror != "" {
		cfg.Referrals = append([]string{strings.TrimSuffix(strings.TrimRight(p.mirror, "/"), "/v1") + discovery.Base}, cfg.Referrals...)
	}
	p.registry = directory.New(cfg)
	p.registry.Mount(p.server.Echo())
	p.mountOperations(operator.Operations(p.registry)...)
	p.server.Health("index", func(ctx context.Context) (any, error) { return nil, engine.CheckIndex(ctx, p.db) })
	p.server.Health("directory", p.registry.Health)
	if p.mirror == "" {
		p.server.Health("relay", p.registry.Relay().Health)
	}
	return nil
}

// addNode makes the node. base is the URL of the process for others.
func (p *Process) addNode(ctx context.Context, base string) error {
	stored, err := p.dataDir.Card()
	if err != nil {
		return err
	}
	card, err := buildCard(p.cfg, p.secrets, stored, base)
	if err != nil {
		return err
	}
	if p.directories, err = p.newDirectories(base + "/v1"); err != nil {
		return err
	}
	guard, err := p.newGuard()
	if err != nil {
		return err
	}
	routes, err := p.newRoutes()
	if err != nil {
		return err
	}
	scheduler, err := p.newScheduler()
	if err != nil {
		return err
	}
	known := scheduler
	if !p.cfg.Calendar.On() {
		known = nil // when the owner is free, nobody knows
	}
	schemas, err := p.compileSchemas()
	if err != nil {
		return err
	}
	var credentialOf func(context.Context, wire.AgentID) (string, error)
	if p.registry != nil {
		credentialOf = p.registry.CredentialOf
	}
	exempt, _ := p.cfg.Exempt()
	p.node, err = node.New(ctx, node.Config{
		CredentialOf: credentialOf,
		Store:        p.store, Session: p.session, Directories: p.directories, Relay: p.mailboxDirectory(), Credential: p.secrets.Credential, HTTP: p.http,
		Window:   client.Window{Past: p.cfg.Window.Past, Future: p.cfg.Window.Future},
		Identity: node.Identity{Key: p.secrets.Key, Card: card}, Age: append([]*signing.PrivateKey{p.secrets.Age}, p.secrets.OldAgeKeys...),
		Policy: p.cfg.Policy(), Outbound: p.cfg.Outbound(), Rates: p.cfg.Rates(), Exempt: exempt, Autonomy: p.cfg.Autonomy.Bounds(), Guard: guard,
		Routes: withCalendar(known, routes), Schemas: schemas, Notices: p.notices, Audit: p.audit, Calendar: known, Agreed: scheduler.Book,
		HookTimeout: p.cfg.Timeouts.Hook, HoldFor: p.cfg.Timeouts.Hold, RemindAfter: zeroIsOff(p.cfg.Timeouts.Remind),
		Idle: p.cfg.Conversations.Idle, Retention: p.cfg.Conversations.Retention,
		MaxBytes: p.cfg.Conversations.MaxBytes, PersonalData: personal.Types, SaveKey: keyring{p}.save, CurrentKey: keyring{p}.readCurrent, RetiredKey: keyring{p}.readRetired, FirstKey: keyring{p}.readFirst, Logger: p.log, Metrics: p.metrics,
		Process: p.processStatus, Follower: p.hosting.isElsewhere(),
	})
	if err != nil {
		return exit.Fail(exit.Config, fmt.Errorf("start the node: %w", err))
	}
	if err := putServedMetadata(p); err != nil {
		return err
	}
	p.node.Mount(p.server.Echo(), p.server.Addresses())
	p.mountMCP()
	p.mountOperations(p.node.OwnerAPI().Operations()...)
	if p.registry != nil {
		p.registry.Relay().OnMail(func(to wire.AgentID) {
			if to == p.node.ID() {
				p.node.CheckMail()
			}
		})
	}
	p.mountOperations(p.calendarOperations(scheduler)...)
	p.server.WellKnown(func() wire.WellKnown {
		doc := p.node.WellKnown()
		if p.registry != nil {
			doc.Directory = base + "/v1"
		}
		return doc
	})
	return nil
}

// mountOperations adds operations to the owner API and to the agent's door, the part of the API for the owner's agent.
// The door refuses the operations that only the owner may use.
func (p *Process) mountOperations(operations ...owner.Operation) {
	p.OwnerOperations = append(p.OwnerOperations, operations...)
	owner.Mount(p.owner.Group(), operations...)
	owner.MountAgent(p.owner.AgentGroup(), operations...)
}

func (p *Process) agentDoor() httpapi.AgentDoor {
	cfg := p.cfg.AgentDoor
	door := httpapi.AgentDoor{Group: cfg.Group}
	if cfg.Socket != "" {
		door.Socket = p.src.ResolvePath(cfg.Socket)
	}
	if cfg.TokenFile != "" {
		door.TokenFile = p.src.ResolvePath(cfg.TokenFile)
	}
	return door
}

// mountMCP serves MCP tools at /mcp of the agent's door, and an A2A URL for each of the owner's contacts.
func (p *Process) mountMCP() {
	api := &owner.Client{HTTP: &http.Client{Transport: client.InProcess(p.owner.AgentHandler())}, Door: httpapi.DoorOfAgent}
	serve := mcp.Handler(mcp.New(mcp.Config{Client: api, Version: p.build.Version, Logger: p.log}), p.log)
	handle := func(c echo.Context) error {
		if err := httpapi.KeepOpen(c, mcp.MaxCall); err != nil {
			return err
		}
		serve.ServeHTTP(c.Response(), c.Request())
		return nil
	}
	p.owner.Agent().Any("/mcp", handle)
	p.owner.Agent().Any("/mcp/", handle)
	mountContacts(p.owner.Agent(), contact.New(contact.Config{Client: api, Records: p.store.Records()}), p.log)
}

// newDirectories returns clients for the directories that the node joins: the configured ones, or else that of this
// process. Calls to its own directory stay inside, so they work before the listener answers and behind any proxy.
func (p *Process) newDirectories(own string) ([]*client.Directory, error) {
	invite, err := p.src.InviteCode("invite_file", p.cfg.InviteFile)
	if err != nil {
		return nil, exit.Fail(exit.Config, err)
	}
	urls := p.cfg.DirectoryURLs()
	if len(urls) == 0 && p.registry != nil {
		urls = []string{own}
	}
	var out []*client.Directory
	for _, u := range urls {
		var inside http.RoundTripper
		if p.registry != nil && strings.TrimRight(u, "/") == own {
			inside = client.InProcess(p.server.Internal())
		}
		d := client.NewDirectory(u, p.http, inside)
		if d.Invite, err = client.InviteFor(invite, d.Base); err != nil {
			return nil, exit.Fail(exit.Config, fmt.Errorf("invite_file: %w", err))
		}
		if inside != nil {
			d.Alias = OwnDirectory // the URL changes with --listen and public_url
		}
		out = append(out, d)
	}
	return out, nil
}

// mailboxDirectory returns the directory with the node's mailbox, the first that the node joins, or nil without one.
func (p *Process) mailboxDirectory() *client.Directory {
	if p.cfg.ViaRelay == "" || len(p.directories) == 0 {
		return nil
	}
	return p.directories[0]
}

// operations returns the operations of the owner API that concern the process and not one of its services.
func (p *Process) operations() []owner.Operation {
	return slices.Concat(p.backupOperations(), p.probeOperations(), []owner.Operation{
		owner.ARDOperation(p.http),
		owner.Raw(http.MethodGet, "/certificate", owner.Read, p.ownerCertificate),
		owner.Raw(http.MethodGet, "/version", owner.Read, func(c echo.Context) error { return httpapi.JSON(c, http.StatusOK, p.build) }),
		owner.Raw(http.MethodGet, "/cards/:id", owner.Read, p.ownerCard),
	})
}

// ownerCard answers with the card of the agent whose id or alias is in the path. If no directory has a card that proves
// the id, it answers with one that does not.
func (p *Process) ownerCard(c echo.Context) error {
	ctx := c.Request().Context()
	id := wire.AgentID(c.Param("id"))
	if p.node != nil {
		card, ok, err := p.node.ForeignCard(ctx, string(id))
		if err != nil {
			return err
		}
		if ok {
			return httpapi.Raw(c, http.StatusOK, card.JSON())
		}
		if id, err = p.node.Peer(ctx, string(id)); err != nil {
			return err
		}
	}
	if !id.Valid() {
		return wire.ErrQuery.At("an agent id is am_ and 1 to 128 characters from A-Z a-z 0-9 . _ -")
	}
	var last error = wire.ErrNoAgent
	var unproven wire.Value
	for _, d := range p.directories {
		card, err := d.Card(ctx, id)
		switch {
		case err == nil && client.CheckCardID(card, time.Now()) == nil:
			return httpapi.Raw(c, http.StatusOK, card.JSON())
		case err == nil && unproven.IsNull(): // a later directory may have a card that proves the id (AM-86)
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

// Deliver delivers the outbox in the background during one command, until the caller calls stop, which waits until the
// delivery has ended. If another process delivers, the command learns the outcome from the database.
func (p *Process) Deliver(ctx context.Context) (stop func()) {
	if p.node == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { p.node.Deliver(ctx) })
	running.Go(func() { p.store.Follow(ctx) })
	return func() { cancel(); running.Wait() }
}

// AwaitAttempts waits until [Process.Deliver] has attempted every due outbox entry, but no longer than [SendWait].
func (p *Process) AwaitAttempts(ctx context.Context) {
	if p.node == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, SendWait*time.Second)
	defer cancel()
	p.node.AwaitAttempts(ctx)
}

// zeroIsOff turns 0, which switches a limit off in the configuration, into -1, which does so in the services.
func zeroIsOff[T int | int64 | time.Duration](n T) T {
	return cmp.Or(n, -1)
}

// Init makes a new agent in the data directory, unless it has one.
func Init(ctx context.Context, o Options, passphrase []byte) error {
	p, err := open(ctx, o) // locks the directory, so that two commands cannot make two agents
	if err != nil {
		return err
	}
	return errors.Join(keyring{p}.prepare(ctx, passphrase, configuredBase(o.Config)), p.Close())
}

// InitDirectory makes the database of a directory without an agent.
func InitDirectory(ctx context.Context, o Options) error {
	p, err := open(ctx, o)
	if err != nil {
		return err
	}
	return p.Close()
}

// OwnerAPI returns the listener of the owner API.
func (p *Process) OwnerAPI() *httpapi.Owner { return p.owner }

// AgentID returns the agent id of the node. The process must have a node.
func (p *Process) AgentID() wire.AgentID { return p.node.ID() }

// auditOperator returns the change that adds the audit entry for a decision of the directory's operator.
func (p *Process) auditOperator(d moderation.Decision) store.Change {
	entry := acl.AuditEntry{At: d.At, Kind: acl.AuditOperator, Subject: d.Subject, By: d.By, Choice: acl.Choice(d.Choice), Note: d.Note}
	if strings.HasPrefix(d.Choice, "token-") {
		entry.Kind = acl.AuditToken
	}
	return p.audit.Change(entry)
}

// Handler returns the handler of the listener that others reach, without the checks of host and origin.
func (p *Process) Handler() http.Handler { return p.server.Internal() }
