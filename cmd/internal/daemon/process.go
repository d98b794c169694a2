// Package daemon has one process on one data directory: it makes and connects the services that the configuration asks
// for, listens, mounts their operations on the owner API, and stops them in order. A command reaches the owner API through
// its [Client], of a process that serves or of one made for the call.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/directory"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/personal"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/certs"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/registration"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// SendWait is how long a command waits for an answer: the time a peer has for it, and some for the way (AM-32).
const SendWait = 40

// Process is everything that runs on one data directory, made and connected here and nowhere else.
type Process struct {
	cfg     config.Config
	src     config.Source
	build   Build
	log     *slog.Logger
	metrics *httpapi.Metrics
	home    datadir.Dir
	release func() // of the pid file
	secrets datadir.Secrets

	passphrase func() ([]byte, error) // of the key files; whoever types it types it once

	db       *bolt.Store
	store    *store.Observed // what the services use: db, reporting what they commit
	http     *client.HTTP
	edge     *httpapi.Server
	certs    *certs.Source // of a serve, nil where the listener speaks plain HTTP
	plain    net.Listener  // beside one with TLS, nil where there is none
	owner    *httpapi.Owner
	registry *directory.Registry // nil without the role
	mirror   string              // what the registry follows, "" if it is no mirror
	node     *node.Node          // nil without the role
	notices  *notify.Box
	audit    *acl.Audit
	joined   []*client.Directory // what the node joins and asks
	bridges  []bridge.Service
	base     string         // URL under which others reach the listener
	events   *calendar.Book // nil where the owner has no calendar
}

// Build is what a version of the program says.
type Build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Date     string `json:"date,omitempty"` // of the commit, RFC 3339
	Protocol string `json:"protocol"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Options says what a process works on.
type Options struct {
	Config     config.Config
	Source     config.Source
	Dir        datadir.Dir
	Mirror     string // base URL of the directory that the one of this process follows, "" for none
	Build      Build
	Passphrase func() ([]byte, error)           // of the key files
	Note       func(format string, args ...any) // tells the user that the process waits
	Logger     *slog.Logger
}

// open takes the data directory for this process and opens its database.
func open(ctx context.Context, o Options) (*Process, error) {
	h, err := datadir.Open(string(o.Dir))
	if err != nil {
		return nil, err
	}
	p := &Process{
		cfg: o.Config, src: o.Source, build: o.Build, home: h, log: o.Logger, metrics: httpapi.NewMetrics(o.Build.Version),
		mirror: o.Mirror, passphrase: sync.OnceValues(o.Passphrase),
	}
	if h.LostDatabase() {
		p.log.Warn("the database is missing: a new one is made, which knows nothing of what happened before", "path", h.Path(datadir.FileDatabase))
	}
	p.db, p.release, err = h.OpenStore(ctx, bolt.Config{
		Logger: p.log, MinFree: offBelowOne(int64(o.Config.MinFreeDisk)), Committed: commitMetrics(p.metrics),
	})
	if err != nil {
		return nil, err
	}
	p.store = store.Observe(p.db)
	storeMetrics(p.metrics, p.db)
	return p, nil
}

// Close lets go of the data directory.
func (p *Process) Close() error {
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
func (p *Process) assemble(ctx context.Context, base string) error {
	p.base = base
	p.http = client.NewHTTP(client.HTTPConfig{
		Local: !p.cfg.Public(), AllowPrivate: p.cfg.Network.AllowPrivate, Version: p.build.Version, Logger: p.log,
	})
	_, exempt := p.cfg.Exempt()
	p.edge = httpapi.New(httpapi.Config{
		Local: !p.cfg.Public(), PublicURL: p.cfg.PublicURL, TLS: p.tlsConfig(),
		TrustedProxies: p.cfg.Network.TrustedProxies.Listed(), ProxyHere: p.cfg.ProxyHere(),
		CORSOrigins: p.cfg.Network.CORSOrigins, RequestsPerMinute: offBelowOne(p.cfg.Limits.RequestsPerMinute), Exempt: exempt,
		MaxConns: offBelowOne(p.cfg.Network.MaxConnections), MaxConnsPerAddr: offBelowOne(p.cfg.Network.MaxConnectionsPerAddress),
		Version: p.build.Version, Logger: p.log, Metrics: p.metrics,
	})
	p.owner = httpapi.NewOwner(httpapi.OwnerConfig{
		Dir: string(p.home), RuntimeDir: os.Getenv("XDG_RUNTIME_DIR"), Listen: p.cfg.OwnerAPI.Listen, Hosts: p.cfg.OwnerAPI.Hosts, Logger: p.log,
		Metrics: p.metrics,
	})
	owner.Mount(p.owner.Group(), p.operations()...)
	p.audit = acl.NewAudit(p.store.Records(), acl.AuditConfig{
		MaxEntries: uint64(p.cfg.Audit.MaxEntries), Keep: p.cfg.Audit.Keep, Logger: p.log,
	})
	p.edge.Health("store", func(ctx context.Context) (any, error) { return nil, p.store.Ping(ctx) })
	p.watchCertificate()
	if p.cfg.Has(config.RoleNode) {
		var err error
		if p.secrets, err = p.home.Secrets(p.passphrase); err != nil {
			return err
		}
	}
	var err error
	if p.notices, err = p.notifier(); err != nil {
		return exit.Fail(exit.Config, fmt.Errorf("notify: %w", err))
	}
	if p.cfg.Has(config.RoleDirectory) {
		p.addDirectory(base + "/v1")
	}
	if p.cfg.Has(config.RoleNode) {
		if err := p.addNode(ctx, base); err != nil {
			return err
		}
	}
	if p.node == nil { // else the node did
		p.store.OnCommit(p.notices.OnCommit)
		owner.Mount(p.owner.Group(), owner.AuditOperations(p.audit)...)
		owner.Mount(p.owner.Group(), p.statusOperations()...)
	}
	return p.addBridges()
}

// OwnDirectory is the name by which the node remembers the directory in its own process.
const OwnDirectory = "own"

func (p *Process) addDirectory(base string) {
	cfg := directory.Config{
		Store: p.store, BaseURL: base, Local: !p.cfg.Public(), Mode: directory.Mode(p.cfg.Registration.Mode),
		Quotas: directory.Quotas{
			PerToken: offBelowOne(p.cfg.Registration.CardsPerToken), PerHost: offBelowOne(p.cfg.Registration.CardsPerHost),
			PerHour: offBelowOne(p.cfg.Registration.PerHour),
		},
		AllowPrivate: p.cfg.Network.AllowPrivate, Addresses: p.edge.Addresses(), Version: p.build.Version, Logger: p.log,
	}
	if p.secrets.Credential != "" {
		cfg.Operators = [][32]byte{credential.HashOf(string(registration.Credential(p.secrets.Credential, &client.Directory{Base: base, Alias: OwnDirectory})))}
	}
	cfg.Audit, cfg.HTTP, cfg.ReadOnly, cfg.Metrics, cfg.Notices = p.auditOperator, p.http, p.mirror != "", p.metrics, p.notices
	p.registry = directory.New(cfg)
	p.registry.Mount(p.edge.Echo())
	owner.Mount(p.owner.Group(), p.registry.Operations()...)
	p.edge.Health("index", func(ctx context.Context) (any, error) { return nil, p.db.CheckIndex(ctx) })
	p.edge.Health("directory", p.registry.Health)
	if p.mirror == "" {
		p.edge.Health("relay", p.registry.RelayHealth)
	}
}

func (p *Process) addNode(ctx context.Context, base string) error {
	stored, err := p.home.Card()
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
	exempt, _ := p.cfg.Exempt()
	p.node, err = node.New(ctx, node.Config{
		CredentialOf: credentialOf,
		Store:        p.store, Directories: p.joined, Relay: p.relay(), Credential: p.secrets.Credential, HTTP: p.http,
		Window:   client.Window{Past: p.cfg.Window.Past, Future: p.cfg.Window.Future},
		Identity: node.Identity{Key: p.secrets.Key, Card: card}, Age: append([]*signing.PrivateKey{p.secrets.Age}, p.secrets.AgesBefore...),
		Policy: p.cfg.Policy(), Outbound: p.cfg.Outbound(), Rates: p.cfg.Rates(), Exempt: exempt,
		Routes: scheduled(scheduler, routes), Schemas: schemas, Notices: p.notices, Audit: p.audit, Agreed: p.events,
		SyncDeadline: p.cfg.Timeouts.Sync, HookTimeout: p.cfg.Timeouts.Hook, HoldFor: p.cfg.Timeouts.Hold, RemindAfter: offBelowOne(p.cfg.Timeouts.Remind),
		Idle: p.cfg.Conversations.Idle, Retention: p.cfg.Conversations.Retention, MaxKept: p.cfg.Conversations.MaxKept,
		MaxBytes: p.cfg.Conversations.MaxBytes, PersonalData: personal.Types, SaveKey: p.saveKey, RetiredKey: p.retiredKey, FirstKey: p.firstKey, Logger: p.log, Metrics: p.metrics,
		Process: p.processStatus,
	})
	if err != nil {
		return exit.Fail(exit.Config, fmt.Errorf("start the node: %w", err))
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
func (p *Process) directories(own string) ([]*client.Directory, error) {
	invite, err := p.invite()
	if err != nil {
		return nil, err
	}
	urls := p.cfg.Joined()
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
			d.Alias = OwnDirectory // its URL changes with --listen and public_url
		}
		out = append(out, d)
	}
	return out, nil
}

// relay is the directory that has the node's mailbox: the first one that it joins.
func (p *Process) relay() *client.Directory {
	if p.cfg.ViaRelay == "" || len(p.joined) == 0 {
		return nil
	}
	return p.joined[0]
}

func (p *Process) invite() (client.Credential, error) {
	if p.cfg.InviteFile == "" {
		return "", nil
	}
	data, err := os.ReadFile(p.src.Beside(p.cfg.InviteFile))
	if err != nil {
		return "", exit.Fail(exit.Config, fmt.Errorf("read invite_file: %w", err))
	}
	return client.Credential(strings.TrimSpace(string(data))), nil
}

// saveKey keeps a rotated key, encrypted as the old one was, and the card that has it.
func (p *Process) saveKey(key *signing.PrivateKey, card wire.Value) error {
	var passphrase []byte
	asked := func() (text []byte, err error) {
		passphrase, err = p.passphrase()
		return passphrase, err
	}
	old, err := p.home.Secrets(asked) // asks for the passphrase only where there is one
	if err != nil {
		return err
	}
	if err := p.home.SaveKey(key, old.Key, passphrase); err != nil {
		return err
	}
	return p.home.SaveCard(card)
}

// retiredKey reads a signing key from before a rotation.
func (p *Process) retiredKey(fingerprint string) (*signing.PrivateKey, error) {
	_, digits, _ := strings.Cut(fingerprint, ":")
	return signing.ReadKeyFile(p.home.RetiredKey(digits), p.passphrase)
}

// firstKey reads the signing key that an agent id is derived from, if it was kept when it was rotated.
func (p *Process) firstKey(id wire.AgentID) (*signing.PrivateKey, error) {
	return signing.ReadKeyFile(p.home.RetiredKey(id.KeyDigits()), p.passphrase)
}

// operations returns the part of the owner API that is about the process, not about a service.
func (p *Process) operations() []owner.Operation {
	return slices.Concat(p.backupOperations(), p.probeOperations(), []owner.Operation{
		owner.Raw(http.MethodGet, "/certificate", owner.Read, p.ownerCertificate),
		owner.Raw(http.MethodGet, "/version", owner.Read, func(c echo.Context) error { return httpapi.JSON(c, http.StatusOK, p.build) }),
		owner.Raw(http.MethodGet, "/cards/:id", owner.Read, p.ownerCard),
	})
}

// ownerCard looks up the card of another agent.
func (p *Process) ownerCard(c echo.Context) error {
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

// Deliver works on the outbox for the length of one command. The returned function stops it and waits for it.
func (p *Process) Deliver(ctx context.Context) (stop func()) {
	if p.node == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { p.node.Deliver(ctx) })
	return func() { cancel(); running.Wait() }
}

// Attempted waits, as long as a command waits for an answer, until deliver has tried what is due.
func (p *Process) Attempted(ctx context.Context) {
	if p.node == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, SendWait*time.Second)
	defer cancel()
	p.node.AwaitAttempts(ctx)
}

// offBelowOne turns the 0 that switches a limit off here into the negative number that does so below.
func offBelowOne[T int | int64 | time.Duration](n T) T {
	if n == 0 {
		return -1
	}
	return n
}

// Init makes a new agent.
func Init(ctx context.Context, o Options, passphrase []byte) error {
	p, err := open(ctx, o) // so that two at once do not make two agents
	if err != nil {
		return err
	}
	return errors.Join(p.initialise(passphrase, localBase(o.Config)), p.Close())
}

// OwnerAPI returns the listener of the owner API.
func (p *Process) OwnerAPI() *httpapi.Owner { return p.owner }

// AgentID returns the id of the node.
func (p *Process) AgentID() wire.AgentID { return p.node.ID() }

// auditOperator writes what the operator of the directory did into the audit log.
func (p *Process) auditOperator(d directory.Decision) store.Change {
	entry := acl.AuditEntry{At: d.At, Kind: acl.AuditOperator, Subject: d.Subject, By: d.By, Choice: acl.Choice(d.Choice), Note: d.Note}
	if strings.HasPrefix(d.Choice, "token-") {
		entry.Kind = acl.AuditToken
	}
	return p.audit.Change(entry)
}

// Listener returns the routes of the listener that is open to others.
func (p *Process) Listener() http.Handler { return p.edge.Internal() }
