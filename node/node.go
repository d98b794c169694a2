// Package node is the agent endpoint of one owner. It receives signed messages, passes them to the agent behind it,
// asks the owner if it must, and sends the answers.
//
// A message enters through the HTTP handler, which runs lines 1 and 2 of the receive table in docs/protocol.md. It
// continues in [Node.Receive] (lines 3 to 8) and ends in [Node.Accept] (lines 9 to 16). Bridges call Accept directly: a
// foreign message or peer is one of another protocol, behind a bridge, and a native one speaks AgentMesh itself.
//
// Everything that an acceptance changes is one [store.Step], committed before an answer leaves (AM-26). A
// [conversations.Unit] collects these changes. No step is open during network, signature or hook work.
//
// Comments cite a rule of docs/protocol.md as AM-26, a line of its receive table as "line 15", and a threat in
// docs/threat-model.md as THREATS 39.
//
// The package reads neither the command line nor files: its caller passes everything in a [Config].
//
// This package is a part of the program, not an API for other modules: it may change with every commit.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/events"
	"github.com/agentmesh/agentmesh/node/guard"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/registration"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/work"
)

// The default times of AM-32, AM-73, AM-33 and AM-40, and the limits of AM-75 on hooks. DefaultSyncDeadline is shorter
// than the 30 seconds after which a sender's client gives up, so that the client still gets an answer on its
// connection.
const (
	DefaultSyncDeadline = 20 * time.Second
	DefaultRemindAfter  = 15 * time.Minute
	DefaultHoldFor      = 7 * 24 * time.Hour
	DefaultRetention    = 30 * 24 * time.Hour
	maxHookRuns         = 4   // hooks that run at once
	maxHookQueue        = 256 // hooks that run or wait for their turn
)

// Config configures a node. Store, HTTP, Identity, Credential and Notices are required. Other fields may be zero.
type Config struct {
	Store       store.Store
	Session     *store.Session      // of the process; nil: the node makes one
	Follower    bool                // never take the node's lease: another process had it when this one started, see [Node.Run]
	Directories []*client.Directory // where the node registers and looks for agents, in order (AM-86); may be empty
	// Relay is the one of Directories whose mailbox is the node's endpoint. It is nil for a node with a public address.
	Relay      *client.Directory
	Credential client.Credential // the secret from which the bearer tokens for directories are derived
	// CredentialOf returns the credential that registered an agent's card in the directory that runs in this process,
	// which is one of Directories, or "" if the credential is not known. May be nil.
	CredentialOf func(ctx context.Context, id wire.AgentID) (string, error)
	HTTP         *client.HTTP
	Cards        client.CardsConfig // the node fills in Directories, HTTP, Records and OnKeyChange
	Window       client.Window      // how old or early a message may be by its own time; zero fields: the default of AM-20

	Identity Identity
	Age      []*signing.PrivateKey // keys that open sealed messages: the current one and earlier ones (AM-85)

	Policy   acl.Policy
	Outbound OutboundPolicy // AM-50
	Rates    acl.Rates
	Autonomy *rules.Autonomy // nil: rules.DefaultAutonomy
	Exempt   []string        // principals without message limits (AM-44)

	Routes  []Route        // hooks by intent pattern; the first match wins; without a match the inbox gets the message
	Schemas PayloadSchemas // for custom intents (AM-70); nil checks none
	// PersonalData returns the kinds of personal data in a payload that leaves over a bridge (MS-40). May be nil.
	PersonalData func(wire.Value) []string

	Notices  *notify.Box
	Audit    *acl.Audit          // nil: the node makes one over Store
	Calendar *calendar.Scheduler // knows when the owner is free; nil: never
	Agreed   *calendar.Book      // nil: the node makes one that writes to no calendar

	Guard        *guard.Guard  // judges texts (AM-95); its pool is that of the hooks. Nil: none
	SyncDeadline time.Duration // zero: DefaultSyncDeadline
	HookTimeout  time.Duration // zero: hook.DefaultTimeout
	HoldFor      time.Duration // zero: DefaultHoldFor
	RemindAfter  time.Duration // after this time a silent agent is reminded once; zero: DefaultRemindAfter, negative: never
	Idle         time.Duration // an open conversation expires after this silence; zero: 24 h
	Retention    time.Duration // age at which ended conversations and inbox items are removed; zero: DefaultRetention
	MaxKept      int           // the most conversations kept; the oldest ended ones are removed first; zero: 100,000
	MaxBytes     int64         // the most bytes of messages kept in all conversations; the oldest ended conversations are removed first; zero: 8 GiB
	MaxConvBytes int64         // bytes of messages at which one conversation is full; zero: 64 MiB
	// SaveKey durably stores a new signing key and its card, and keeps the previous key. A rotation calls it before it
	// uses the new key. Nil forbids rotation.
	SaveKey func(key *signing.PrivateKey, card wire.Value) error
	// CurrentKey returns the key that SaveKey stored last, so that this process learns of a rotation by another
	// process. Nil means that no other process rotates the key.
	CurrentKey func() (*signing.PrivateKey, error)
	// RetiredKey returns a previous key that SaveKey kept, by its fingerprint. Even after a restart, that key must
	// vouch for the new one until every directory knows the new one. Nil means that no key is kept.
	RetiredKey func(fingerprint string) (*signing.PrivateKey, error)
	// FirstKey returns the kept key from which id is derived. The key chain of id begins with that key (AM-2). May be
	// nil.
	FirstKey func(id wire.AgentID) (*signing.PrivateKey, error)
	Logger   *slog.Logger     // nil logs nothing
	Metrics  *httpapi.Metrics // nil counts nothing
	// Process returns the part of the owner's status that describes the process. May be nil.
	Process func(context.Context) httpapi.ProcessStatus
}

// Identity is the node's signing key and the card that names it.
type Identity = registration.Identity

// PayloadSchemas checks payloads of custom intents against the owner's schemas.
type PayloadSchemas interface {
	// Check returns why the payload does not match the schema of the intent, or nil. It accepts an intent without a
	// schema.
	Check(intent wire.Intent, payload wire.Value) error
}

// Node is one owner's agent endpoint. It is safe for concurrent use.
type Node struct {
	cfg      Config
	log      *slog.Logger
	paused   atomic.Bool
	running  atomic.Bool // Run was called: the node receives messages
	overfull atomic.Bool // open conversations alone exceed MaxBytes, so strangers are refused
	started  time.Time
	clock    *store.WallClock

	store      *store.Observed
	session    *store.Session
	book       *conversations.Book
	rules      *acl.Rules
	recipients *acl.Rules // recipients to whom our side may write without asking
	asks       *acl.Asks
	audit      *acl.Audit
	meter      *acl.Meter
	savedMeter []byte // what saveMeter stored last; only saveMeter uses it
	cards      *client.Cards
	verifier   *client.Verifier
	notices    *notify.Box

	acceptLock   *waiting.KeyedLock // one acceptance at a time per sender and message id
	runs         *hook.Pool         // hooks that run or wait
	turns        turns
	refusals     refusals       // the newest refused messages
	inboxChanged waiting.Signal // wakes callers that wait for the inbox
	mailArrived  waiting.Signal // wakes the mailbox readers
	events       *events.Hub    // passes events to watchers
	work         *work.Worker
	outbox       deliveries
	registrar    *registration.Registrar
	counters     counters

	bridges bridges
}

// New makes a node from cfg. It starts no background work; [Node.Run] does.
func New(ctx context.Context, cfg Config) (*Node, error) {
	if cfg.Store == nil || cfg.HTTP == nil || cfg.Notices == nil || cfg.Identity.Key == nil || cfg.Credential == "" {
		return nil, errors.New("node: config is incomplete")
	}
	cfg.SyncDeadline = cmp.Or(cfg.SyncDeadline, DefaultSyncDeadline)
	cfg.HookTimeout = cmp.Or(cfg.HookTimeout, hook.DefaultTimeout)
	cfg.HoldFor = cmp.Or(cfg.HoldFor, DefaultHoldFor)
	cfg.RemindAfter = cmp.Or(cfg.RemindAfter, DefaultRemindAfter)
	cfg.Retention = cmp.Or(cfg.Retention, DefaultRetention)
	cfg.MaxKept = cmp.Or(cfg.MaxKept, 100_000)
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, 8<<30)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Window.Past = cmp.Or(cfg.Window.Past, client.DefaultPast)
	cfg.Window.Future = cmp.Or(cfg.Window.Future, client.DefaultFuture)
	observed := store.Observe(cfg.Store)
	cfg.Store = observed
	cfg.Agreed = cmp.Or(cfg.Agreed, calendar.NewBook(calendar.BookConfig{Records: cfg.Store.Records(), Logger: cfg.Logger}))
	n := &Node{
		cfg:     cfg,
		log:     cfg.Logger,
		started: time.Now(),
		clock:   store.NewWallClock(cfg.Logger),
		store:   observed,
		session: cmp.Or(cfg.Session, store.NewSession(observed.Leases(), cfg.Logger)),
		book:    &conversations.Book{Steps: cfg.Store.Steps(), Idle: cfg.Idle, Retention: cfg.Retention, MaxBytes: cfg.MaxConvBytes},
		rules:   acl.NewRules(cfg.Store.Records(), cfg.Policy),
		asks:    acl.NewAsks(cfg.Store),

		audit: cmp.Or(cfg.Audit, acl.NewAudit(cfg.Store.Records(), acl.AuditConfig{Logger: cfg.Logger})),

		recipients: acl.NewRecipients(cfg.Store.Records()),
		meter:      acl.NewMeter(cfg.Rates, cfg.Exempt...),
		notices:    cfg.Notices,
		acceptLock: waiting.NewKeyedLock(),
		runs:       hook.NewPool(maxHookRuns, maxHookQueue),
		turns:      turns{bounds: *cmp.Or(cfg.Autonomy, &rules.DefaultAutonomy), records: cfg.Store.Records()},
		events:     events.New(time.Now()),
	}
	if cfg.Guard != nil {
		cfg.Guard.Pool = n.runs
	}
	n.notices.OnStatusChange(func() { n.events.Publish(owner.Event{Topic: owner.TopicStatus}) })
	n.audit.OnSeal(func() { n.events.Publish(owner.Event{Topic: owner.TopicAudit}) })
	n.asks.LogTo(n.audit)
	n.asks.Handle(owner.AskMessage, messageResolver{n})
	n.asks.Handle(owner.AskOutgoing, resolver[outgoingAsk]{n})
	n.asks.Handle(owner.AskTask, resolver[taskAnswer]{n})
	n.asks.Handle(owner.AskInterrupted, resolver[interruptedRun]{n})
	n.asks.Handle(owner.AskKeyChange, resolver[keyChangeAsk]{n})
	n.asks.Handle(owner.AskQuestion, owner.Questions{Records: n.store.Records()})
	cfg.Cards.Directories, cfg.Cards.HTTP, cfg.Cards.Records = cfg.Directories, cfg.HTTP, cfg.Store.Records()
	cfg.Cards.OnKeyChange = n.reportKeyChange
	n.cards = client.NewCards(cfg.Cards)
	n.verifier = &client.Verifier{Cards: n.cards, Window: cfg.Window}
	n.outbox.log = n.log
	n.work = work.New(observed, n.clock, n.log)
	n.work.Add(work.Queue{
		NS: nsOutbox, Term: stateTerm(owner.SendQueued), Max: maxDeliveries, PerParty: maxDeliveriesPerPeer, MaxPause: maxSendPause, Do: n.attempt,
	})
	n.work.Add(work.Queue{NS: nsInbox, Term: stateTerm(owner.ItemWaiting), Max: 16, PerParty: 4, Do: n.workItem})
	n.work.Add(work.Queue{NS: acl.AskNamespace, Term: acl.TermPending, Max: 4, Do: n.workAsk})
	n.work.Add(work.Queue{NS: nsClosing, Max: 4, Do: n.workClosing})
	n.work.Add(cfg.Agreed.Queue())
	n.work.Add(cfg.Notices.Queue())
	n.registrar = registration.New(registration.Config{
		Identity: cfg.Identity, Directories: cfg.Directories, Credential: cfg.Credential, Store: cfg.Store, SaveKey: cfg.SaveKey,
		RetiredKey: cfg.RetiredKey, FirstKey: cfg.FirstKey, CurrentKey: cfg.CurrentKey, Reread: observed.RereadLater, Logger: cfg.Logger,
		Pause: func(failures int) time.Duration { return pauseAfter(failures, 0) }, Changed: func() { n.events.Publish(owner.Event{Topic: owner.TopicStatus}) },
		Removed: n.noticeRemoval,
	})
	n.asks.OnDecision(n.logDecision)
	n.asks.OnOpen(n.noticeBridgeAsk)
	duties{n}.observe()
	n.registerMetrics(cfg.Metrics)
	if err := n.restore(ctx); err != nil {
		return nil, fmt.Errorf("restore node state: %w", err)
	}
	return n, nil
}

// ID returns the node's agent id.
func (n *Node) ID() wire.AgentID { return n.registrar.Identity().Card.ID }

// Card returns the card that the node publishes.
func (n *Node) Card() wire.Card { return n.registrar.Identity().Card }

// Asks returns the queue of questions to the owner, to which bridges add their own kinds.
func (n *Node) Asks() *acl.Asks { return n.asks }

// Audit returns the audit log, to which bridges and commands add lines of their own.
func (n *Node) Audit() *acl.Audit { return n.audit }

// signedMessage is a message of ours that is ready to be sent.
type signedMessage struct {
	Message wire.Message
	Raw     []byte   // the bytes to send
	Digest  [32]byte // SHA-256 of the bytes that the signature covers
	Key     []byte   // opens the message if it is sealed
}

// sign makes the message that d describes and signs it with the node's key.
func (n *Node) sign(d wire.Draft) (signedMessage, error) {
	id := n.registrar.Identity()
	d.From = id.Card.ID
	if d.ID == "" {
		d.ID = wire.NewMessageID()
	}
	signed, digest, err := id.Key.SignDigest(d.Tree())
	if err != nil {
		return signedMessage{}, fmt.Errorf("sign message: %w", err)
	}
	m, err := wire.ParseMessage(signed)
	if err != nil {
		return signedMessage{}, fmt.Errorf("check own message: %w", err)
	}
	return signedMessage{Message: m, Raw: signed.JSON(), Digest: digest}, nil
}

// transcriptEntry returns the message for the transcript. author is as in [Outgoing.Via].
func (s signedMessage) transcriptEntry(author string) store.Entry {
	return store.Entry{Out: true, Author: author, MessageID: string(s.Message.ID), At: s.Message.Time, Raw: s.Raw, Digest: s.Digest, Key: s.Key}
}

// parseOwn parses a stored message of ours and computes the digest that was signed.
func parseOwn(raw []byte) (wire.Message, [32]byte, error) {
	m, err := parseStored(raw)
	return m, signing.Digest(m.Tree.Without("signature")), err
}

// parseStored parses a message that was checked before it was stored.
func parseStored(raw []byte) (wire.Message, error) {
	tree, err := wire.ParseObject(raw)
	if err != nil {
		return wire.Message{}, fmt.Errorf("read stored message: %w", err)
	}
	return wire.ParseMessage(tree)
}

// toWireError translates an error of the store for the sender: a message that cannot be made durable is not
// acknowledged (AM-26). A temporary error becomes wire.ErrUnavailable, because senders give up after an internal error
// (AM-47). A damaged row counts as temporary, because the owner can restore it from a backup.
func toWireError(err error) error {
	if _, ok := errors.AsType[*wire.Error](err); ok {
		return err
	}
	temporary := []error{store.ErrUnavailable, store.ErrDamaged, store.ErrConflict, store.ErrQuota, store.ErrLeaseLost, context.Canceled, context.DeadlineExceeded}
	if slices.ContainsFunc(temporary, func(target error) bool { return errors.Is(err, target) }) {
		return wire.ErrUnavailable.Because(err)
	}
	return wire.ErrInternal.Because(err)
}

// Registrar keeps the node listed in its directories.
func (n *Node) Registrar() *registration.Registrar { return n.registrar }
