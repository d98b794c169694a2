package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/registration"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// The deadlines of AM-32, AM-33 and AM-74. They nest: a hook that answers within SyncDeadline reaches the sender,
// whose client gives up after 30 s, on the connection it came on.
const (
	DefaultSyncDeadline = 20 * time.Second
	DefaultRemindAfter  = 15 * time.Minute
	DefaultHoldFor      = 7 * 24 * time.Hour
	DefaultRetention    = 30 * 24 * time.Hour
	maxHookRuns         = 4   // hooks at once (AM-75)
	maxHookQueue        = 256 // hooks running or waiting for their turn
)

// Config is what a node is made of. The fields without a remark are required.
type Config struct {
	Store       store.Store
	Directories []*client.Directory // what the node joins and asks, in order (AM-86); may be empty
	// Relay is the one of Directories in which the node has its mailbox; nil for a node that is reached at an address.
	Relay      *client.Directory
	Credential client.Credential // what the node's cards are registered with
	// CredentialOf returns a name for the credential that the card of an agent was registered with at the one of Directories
	// that is in this process, "" if it does not know. Nil: nobody knows.
	CredentialOf func(ctx context.Context, id wire.AgentID) (string, error)
	HTTP         *client.HTTP
	Cards        client.CardsConfig // Directories, HTTP, Records and OnKeyChange are filled in here
	Window       client.Window      // zero fields: the default of AM-20

	Identity Identity
	Age      []*signing.PrivateKey // open what is sealed to the age recipient on the card, now or before (AM-85)

	Policy   acl.Policy
	Outbound OutboundPolicy // AM-50; the zero value lets everything out
	Rates    acl.Rates
	Exempt   []string // principals that no message limit touches (AM-44)

	Routes  []Route        // hooks by intent pattern, first match wins; no match is the inbox
	Schemas PayloadSchemas // for custom intents (AM-70); nil checks none
	// PersonalData returns the kinds of personal data in a payload, for what leaves over bridges (MS-40). nil finds none.
	PersonalData func(wire.Value) []string

	Notices *notify.Box
	Audit   *acl.Audit     // nil: one of the node's own over Store
	Agreed  *calendar.Book // takes agreed events to the owner's calendar; nil: a notice is all there is

	SyncDeadline time.Duration // zero: DefaultSyncDeadline
	HookTimeout  time.Duration // zero: hook.DefaultTimeout
	HoldFor      time.Duration // zero: DefaultHoldFor
	RemindAfter  time.Duration // an agent that answers later is reminded once; zero: DefaultRemindAfter, negative: never
	Idle         time.Duration // conversations expire after it; zero: 24 h
	Retention    time.Duration // ended conversations and inbox items go after it; zero: DefaultRetention
	MaxKept      int           // conversations kept at most, oldest ended ones go first; zero: 100,000
	MaxBytes     int64         // of messages in all of them, likewise; zero: 8 GiB
	MaxConvBytes int64         // of messages in one of them, which then is full; zero: 64 MiB

	// SaveKey stores a new signing key and the card with it durably, and keeps the key before it, before a rotation uses
	// the new one; nil refuses rotation.
	SaveKey func(key *signing.PrivateKey, card wire.Value) error
	// RetiredKey returns a key that SaveKey has kept, by its fingerprint: until every directory has followed a rotation it
	// must vouch for the new one, also after a restart. Nil: none is kept.
	RetiredKey func(fingerprint string) (*signing.PrivateKey, error)
	// FirstKey returns the key that SaveKey has kept and that id is derived from, to begin a key chain with (AM-2). Nil:
	// none is kept.
	FirstKey func(id wire.AgentID) (*signing.PrivateKey, error)
	Logger   *slog.Logger     // nil logs nothing
	Metrics  *httpapi.Metrics // nil counts nothing
	// Process returns the part of the owner's status that is about the process; nil for none.
	Process func(context.Context) httpapi.ProcessStatus
}

// Identity is who the node is: its signing key and the card that says so.
type Identity = registration.Identity

// Listing is how the node stands in one directory (AM-83).
type Listing = owner.Listing

// The states of a [Listing].
const (
	Registered = owner.Registered
	Pending    = owner.Pending
	Withdrawn  = owner.Withdrawn
)

// PayloadSchemas holds payloads of custom intents to a schema of the owner's.
type PayloadSchemas interface {
	// Check returns why the payload does not fit, nil where it does or where the intent has no schema.
	Check(intent wire.Intent, payload wire.Value) error
}

// Node is one owner's agent endpoint. All methods are safe for concurrent use.
type Node struct {
	cfg      Config
	log      *slog.Logger
	paused   atomic.Bool
	running  atomic.Bool // Run has begun: what comes in is taken in
	overfull atomic.Bool // more is kept than MaxBytes, and none of it may go
	started  time.Time
	clock    *store.WallClock

	store      *store.Observed
	book       *conversations.Book
	rules      *acl.Rules
	recipients *acl.Rules // to whom our side may write without asking
	asks       *acl.Asks
	audit      *acl.Audit
	meter      *acl.Meter
	savedMeter []byte // what saveMeter stored last; its own
	cards      *client.Cards
	verifier   *client.Verifier
	window     client.Window // with the defaults filled in
	notices    *notify.Box

	flights   flights  // one acceptance per sender and message id at a time
	runs      runs     // hooks under way
	refusals  refusals // the newest messages that were not taken in
	fresh     signal   // wakes who waits for the inbox
	mail      signal   // wakes the readers of mailboxes
	ends      *alarm   // when the next question ends
	events    *events  // tells who watches
	streams   streams  // connections that tell what happens
	outbox    *deliveries
	released  released // messages of ours that the owner let go
	registrar *registration.Registrar
	tally     tally

	interrupted []string    // items whose hooks worked when the process before this one ended
	tails       [][]acl.Ask // decisions that an earlier process left undone, each in order

	bridges bridges

	background sync.WaitGroup
}

// New makes a node. It starts nothing: that is [Node.Run].
func New(ctx context.Context, cfg Config) (*Node, error) {
	if cfg.Store == nil || cfg.HTTP == nil || cfg.Notices == nil || cfg.Identity.Key == nil {
		return nil, errors.New("node: config is incomplete")
	}
	cfg.SyncDeadline = orDefault(cfg.SyncDeadline, DefaultSyncDeadline)
	cfg.HookTimeout = orDefault(cfg.HookTimeout, hook.DefaultTimeout)
	cfg.HoldFor = orDefault(cfg.HoldFor, DefaultHoldFor)
	cfg.RemindAfter = orDefault(cfg.RemindAfter, DefaultRemindAfter)
	cfg.Retention = orDefault(cfg.Retention, DefaultRetention)
	if cfg.MaxKept == 0 {
		cfg.MaxKept = 100_000
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = 8 << 30
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Window.Past = orDefault(cfg.Window.Past, client.DefaultPast)
	cfg.Window.Future = orDefault(cfg.Window.Future, client.DefaultFuture)
	observed := store.Observe(cfg.Store)
	cfg.Store = observed
	n := &Node{
		window:  cfg.Window,
		cfg:     cfg,
		log:     cfg.Logger,
		started: time.Now(),
		clock:   store.NewWallClock(cfg.Logger),
		store:   observed,
		book:    &conversations.Book{Steps: cfg.Store.Steps(), Idle: cfg.Idle, Retention: cfg.Retention, MaxBytes: cfg.MaxConvBytes},
		rules:   acl.NewRules(cfg.Store.Records(), cfg.Policy),
		asks:    acl.NewAsks(cfg.Store),

		recipients: acl.NewRecipients(cfg.Store.Records()),
		meter:      acl.NewMeter(cfg.Rates, cfg.Exempt...),
		notices:    cfg.Notices,
		flights:    flights{under: make(map[string]*flight)},
		runs:       newRuns(),
		ends:       newAlarm(),
		events:     newEvents(time.Now()),
		streams:    newStreams(),
	}
	n.audit = cfg.Audit
	if n.audit == nil {
		n.audit = acl.NewAudit(cfg.Store.Records(), acl.AuditConfig{Logger: cfg.Logger})
	}
	n.notices.OnChanged(func() { n.events.publish(Event{Topic: TopicStatus}) })
	n.audit.OnSeal(func() { n.events.publish(Event{Topic: TopicAudit}) })
	n.asks.Log(n.audit)
	n.asks.Handle(askMessage, messageResolver{n})
	n.asks.Handle(askOutgoing, outgoingResolver{n})
	n.asks.Handle(askTask, taskResolver{n})
	n.asks.Handle(askInterrupted, interruptedResolver{n})
	n.asks.Handle(askKeyChange, keyChangeResolver{n})
	cfg.Cards.Directories, cfg.Cards.HTTP, cfg.Cards.Records = cfg.Directories, cfg.HTTP, cfg.Store.Records()
	cfg.Cards.OnKeyChange = n.keyChanged
	n.cards = client.NewCards(cfg.Cards)
	n.verifier = &client.Verifier{Cards: n.cards, Window: cfg.Window}
	n.outbox = newDeliveries(n)
	n.registrar = registration.New(registration.Config{
		Identity: cfg.Identity, Directories: cfg.Directories, Credential: cfg.Credential, Store: cfg.Store, SaveKey: cfg.SaveKey,
		RetiredKey: cfg.RetiredKey, FirstKey: cfg.FirstKey, Logger: cfg.Logger,
		Pause: func(failures int) time.Duration { return pauseAfter(failures, 0) },
	})
	n.asks.OnDecision(n.answered)
	n.asks.OnOpen(n.bridgeAsked)
	n.book.Contributors = []conversations.Contributor{n.unbook, n.conclude}
	n.observe()
	n.measure(cfg.Metrics)
	if err := n.restore(ctx); err != nil {
		return nil, fmt.Errorf("restore node state: %w", err)
	}
	return n, nil
}

// Run works until ctx ends: it delivers what waits in the outbox, keeps the node listed, runs hooks that a crash
// interrupted, and reclaims what has expired. It returns when everything it started has stopped.
func (n *Node) Run(ctx context.Context) error {
	n.running.Store(true)
	n.background.Go(func() { n.recoverRuns(ctx) })
	n.background.Go(func() { n.outbox.Run(ctx) })
	n.background.Go(func() { n.registrar.Run(ctx) })
	n.background.Go(func() { n.notices.Run(ctx) })
	n.background.Go(func() { n.audit.Run(ctx) })
	n.background.Go(func() { n.housekeep(ctx) })
	n.background.Go(func() { n.ends.watch(ctx, n.endQuestions) })
	for _, d := range n.cfg.Directories {
		n.background.Go(func() { n.takeMail(ctx, d) })
	}
	<-ctx.Done()
	n.events.close()
	n.runs.stop()
	n.background.Wait()
	return n.saveMeter(context.WithoutCancel(ctx), time.Now())
}

// ID returns the node's agent id.
func (n *Node) ID() wire.AgentID { return n.registrar.Identity().Card.ID }

// Card returns the card that the node publishes.
func (n *Node) Card() wire.Card { return n.registrar.Identity().Card }

// Asks returns the queue of what waits for the owner, so that bridges can add kinds of their own.
func (n *Node) Asks() *acl.Asks { return n.asks }

// Audit returns the log of decisions, so that bridges and commands can add lines of their own.
func (n *Node) Audit() *acl.Audit { return n.audit }

// signed is a message of ours, ready to leave.
type signed struct {
	Message wire.Message
	Raw     []byte   // the bytes that leave
	Digest  [32]byte // SHA-256 of what was signed
	Key     []byte   // opens it where it is sealed
}

// sign makes the message that d describes, from this node.
func (n *Node) sign(d wire.Draft) (signed, error) {
	id := n.registrar.Identity()
	d.From = id.Card.ID
	if d.ID == "" {
		d.ID = wire.NewMessageID()
	}
	tree := d.Tree()
	whole, err := id.Key.SignValue(tree)
	if err != nil {
		return signed{}, fmt.Errorf("sign message: %w", err)
	}
	m, err := wire.ParseMessage(whole)
	if err != nil {
		return signed{}, fmt.Errorf("check own message: %w", err)
	}
	return signed{Message: m, Raw: whole.JSON(), Digest: signing.Digest(tree)}, nil
}

// entry is the transcript entry of a message of ours.
func (s signed) entry() store.Entry {
	return store.Entry{Out: true, MessageID: string(s.Message.ID), At: s.Message.Time, Raw: s.Raw, Digest: s.Digest, Key: s.Key}
}

// parseOwn reads a message of ours that was stored, with the digest of what was signed.
func parseOwn(raw []byte) (wire.Message, [32]byte, error) {
	tree, err := wire.ParseObject(raw)
	if err != nil {
		return wire.Message{}, [32]byte{}, fmt.Errorf("read own message: %w", err)
	}
	m, err := wire.ParseMessage(tree)
	return m, signing.Digest(tree.Without("signature")), err
}

func orDefault(d, def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return d
}

// unavailable translates a store error for the sender: what cannot be made durable is not acknowledged (AM-26). What
// may be over soon says so, for a sender gives up on an internal error (AM-47): so does a damaged row, which the owner
// replaces from a backup.
func unavailable(err error) error {
	if _, ok := errors.AsType[*wire.Error](err); ok {
		return err
	}
	passing := []error{store.ErrUnavailable, store.ErrDamaged, store.ErrConflict, store.ErrQuota, context.Canceled, context.DeadlineExceeded}
	if slices.ContainsFunc(passing, func(target error) bool { return errors.Is(err, target) }) {
		return wire.ErrUnavailable.Because(err)
	}
	return wire.ErrInternal.Because(err)
}

// Listings returns how the node stands in every configured directory.
func (n *Node) Listings() []Listing { return n.registrar.Listings() }

// Register is [registration.Registrar.Register].
func (n *Node) Register(ctx context.Context, directory string) ([]Listing, error) {
	return n.registrar.Register(ctx, directory)
}

// Adopt is [registration.Registrar.Adopt].
func (n *Node) Adopt(ctx context.Context, directory string) ([]Listing, error) {
	return n.registrar.Adopt(ctx, directory)
}

// Withdraw is [registration.Registrar.Withdraw].
func (n *Node) Withdraw(ctx context.Context, directory string) ([]Listing, error) {
	return n.registrar.Withdraw(ctx, directory)
}

// RotateKey is [registration.Registrar.RotateKey].
func (n *Node) RotateKey(ctx context.Context) ([]Listing, error) { return n.registrar.RotateKey(ctx) }
