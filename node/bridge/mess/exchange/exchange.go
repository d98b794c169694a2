package exchange

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/mess/registry"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/work"
)

// Config configures an exchange. Store is required; the other fields have defaults.
type Config struct {
	ID           string      // id of the exchange; "" means "home"
	Store        store.Store // a *store.Observed; with another store, Run learns late of work that is due
	Registration string      // how executors register: open, approval or invite (MESS-57); "" means approval
	Invite       string      // the bearer token that registration asks for in mode invite

	CallsPerMinute       int // for each API key; 0 means 600, a negative number means no limit (MESS-58)
	ThreadsPerHour       int // for each requester; 0 means 300, a negative number means no limit
	RegistrationsPerHour int // for each address; 0 means 60, a negative number means no limit

	// Files is the folder of the files that the owner's blocks may name by file://. If it is "", such references stay
	// text.
	Files string

	Retention time.Duration // how long ended threads are kept; 0 means 90 days
	Logger    *slog.Logger
}

// Exchange keeps threads (requests for work) and executors, and applies blocks (lists of MESS entries) to them through
// the state machine. When a method returns, its changes are durable. An Exchange is safe for concurrent use.
type Exchange struct {
	cfg     Config
	id      string
	log     *slog.Logger
	records store.Records

	clock      *store.WallClock
	loading    loading
	index      *index
	Executors  *registry.Executors
	Work       *work.Worker // does what is due; the bridge adds queues
	newThreads threadQuota

	// WantsNotices reports whether the bridge delivers notices, which announce new messages, to this actor. Set it
	// before the first call. If it is nil, nobody gets notices.
	WantsNotices func(id string) bool
	// Mirror receives the refs of the threads that a commit changed. It may be nil.
	Mirror      func(refs []string)
	changed     waiting.Signal // broadcast after each commit that changed a thread
	noticeCount atomic.Uint64  // notices that this process has made; makes their keys unique
	mustRecheck chan struct{}  // has a value if every unclaimed thread that waits must be checked again
}

// New returns an exchange. It starts nothing; the store is read on the first use (see [Exchange.Load]).
func New(cfg Config) *Exchange {
	cfg.ID, cfg.Registration = cmp.Or(cfg.ID, "home"), cmp.Or(cfg.Registration, string(credential.Approval))
	cfg.Retention = cmp.Or(cfg.Retention, 90*24*time.Hour)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	x := &Exchange{
		cfg: cfg, id: cfg.ID, log: cfg.Logger, records: cfg.Store.Records(), index: newIndex(), mustRecheck: make(chan struct{}, 1),
	}
	x.clock = store.NewWallClock(cfg.Logger)
	x.Work = work.New(cfg.Store, x.clock, cfg.Logger)
	x.Work.Add(work.Queue{NS: NSThreads, Max: 4, PerParty: 1, Ends: true, Do: x.workThread})
	x.Executors = registry.New(registry.Config{
		ID: cfg.ID, Registration: credential.Mode(cfg.Registration), Invite: cfg.Invite, CallsPerMinute: cfg.CallsPerMinute,
		RegistrationsPerHour: cfg.RegistrationsPerHour, Records: x.records, Load: x.Load, HasThreads: x.index.hasThreads,
	})
	if n := cmp.Or(cfg.ThreadsPerHour, 300); n > 0 {
		x.LimitThreads(rate.NewBuckets(rate.PerHour(n), n, 2*credential.MaxAccounts), n)
	}
	return x
}

// LimitThreads bounds how many threads one actor may open in an hour; nil buckets remove the bound.
func (x *Exchange) LimitThreads(buckets *rate.Buckets, perHour int) {
	x.newThreads = threadQuota{buckets, perHour}
}

// ID returns the id of the exchange.
func (x *Exchange) ID() string { return x.id }

// loading is the state of [Exchange.Load].
type loading struct {
	done atomic.Bool

	mu     sync.Mutex // held while the store is read
	err    error      // the error of the last attempt
	failed time.Time
}

// loadRetry is the pause after a failed load, because each load reads the store from the beginning.
const loadRetry = time.Second

// Load reads executors, rules and threads into memory. Methods such as Do, Thread and List call Load themselves, so a
// command that never uses the exchange does not wait for it. Before Has, Refs and the methods of peer.go, the caller
// must call Load. Load tries again after a failure, at most once in loadRetry.
func (x *Exchange) Load() error {
	l := &x.loading
	if l.done.Load() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done.Load() || l.err != nil && time.Since(l.failed) < loadRetry {
		return l.err
	}
	if l.err = x.restore(context.Background()); l.err != nil {
		l.failed = time.Now()
	}
	l.done.Store(l.err == nil)
	return l.err
}

// restore does the work of Load. It may run again after a failure and then reads everything once more.
func (x *Exchange) restore(ctx context.Context) error {
	now := time.Now()
	if err := x.Executors.Restore(ctx, now); err != nil {
		return err
	}
	if err := x.index.load(store.DecodeAll(ctx, x.records, NSThreads, "", now, decodeThread)); err != nil {
		return fmt.Errorf("load threads: %w", err)
	}
	return nil
}

// Actor is the caller of a method: a requester, executor, owner or the exchange. Its id decides its role in a thread.
type Actor struct {
	ID      string
	Owner   bool   // may act for every participant of the exchange
	Channel string // how the actor reached the exchange, such as rest, messages, agentmesh, file, page or cli

	forExchange  bool // acts for the exchange itself
	isFileWriter bool // wrote into the thread folder, which needs no registration
}

// Owner returns the actor who runs the exchange.
func Owner(channel string) Actor { return Actor{ID: thread.OwnerID, Owner: true, Channel: channel} }

// WriterOfFiles returns an actor who wrote into the thread folder.
func WriterOfFiles(id string) Actor { return Actor{ID: id, Channel: "file", isFileWriter: true} }

// Authority says who decides about a thread.
type Authority int

const (
	OurExchange Authority = iota // the actor is a participant of our exchange
	// SentToAgent: the thread was sent to the actor, an agent of the mesh, which may write about it without a claim. Our
	// thread takes the states that an executor may set, and those that end a thread at another exchange.
	SentToAgent
	// SentToExchange: the actor is the exchange behind a link, to which the thread was sent. Our thread takes every state
	// that it reports.
	SentToExchange
)

// Options say how [Exchange.Do] applies a block, and what else changes in the same transaction.
type Options struct {
	// Lax is set for HTTP PATCH, thread files and links (connections to other exchanges): a status may have only a
	// code, and a response without a status does not complete the thread (MESS-20, MESS-26).
	Lax bool
	// Re is the thread of the entries that have no member re. With Lax, entries may be about no other thread.
	Re string
	// IfSerial is the serial number of the newest message that the caller has read in the thread Re. The block is
	// refused if the thread has a newer message. 0 means no condition.
	IfSerial int
	// IfTurn is like IfSerial for the owner's turn, which says what the owner can do in the thread Re (see
	// [thread.Thread.Turn]); "" means no condition.
	IfTurn string
	// Then returns further changes for the same transaction. Its argument is the thread Re as the block leaves it.
	Then func(*thread.Thread) []store.Change
	// Set is the status of a PATCH. It is applied before the entries if the actor holds the thread, may claim it or is
	// the owner, and after them otherwise. It is skipped if it changes nothing (MESS-55).
	Set *thread.Status
	// Only is the one executor to which new threads are offered; "" means all.
	Only string
	// Hold parks new threads until the owner releases them.
	Hold bool
	// Peer is where the actor gets updates about new threads; nil for an actor that is not a peer.
	Peer *thread.Peer
	// Authority says whose states the thread Re takes.
	Authority Authority
	// Pending is set if the actor's owner has not decided yet whether to accept the thread Re, which was sent there.
	Pending bool
	// Replay is the key of the stored answer, which a repeated block gets; nil stores none.
	Replay *ReplayKey
	// Files has, by address, the files of a foreign thread that the block names. They become attachments.
	Files map[string]File
	// Records are further changes for the same transaction.
	Records []store.Change
}

// Result is the outcome of a block.
type Result struct {
	Answers thread.Block // acks, and responses to queries (MESS-35, MESS-36)
	Created []string     // refs of new threads

	Ref    string      // Options.Re, or the thread that the only request of the block created; otherwise ""
	Status thread.Code // of the thread Ref
}

// Do applies a block of one actor as one transaction (MESS-7): either every entry is applied or none. The error is a
// *wire.Error, which names the entry if one is at fault, or an error of the store.
func (x *Exchange) Do(ctx context.Context, who Actor, b thread.Block, opts Options) (Result, error) {
	if err := x.Load(); err != nil {
		return Result{}, err
	}
	if stored, found, err := x.FindAnswer(ctx, opts.Replay); found || err != nil {
		return stored, err
	}
	if err := x.newThreads.chargeBlock(who, b); err != nil {
		return Result{}, err
	}
	for range store.MaxConflicts {
		t := x.begin(who, opts)
		err := t.run(ctx, b)
		if err = cmp.Or(t.err, err); err != nil { // t.err comes from methods that return no error
			return Result{}, err
		}
		err = t.commit(ctx)
		if errors.Is(err, store.ErrConflict) {
			// perhaps the same block came twice at the same time, and the other one is committed
			if stored, found, err := x.FindAnswer(ctx, opts.Replay); found || err != nil {
				return stored, err
			}
			continue
		}
		if err != nil {
			return Result{}, explainQuota(err, opts.Replay)
		}
		x.settleAfterCommit(ctx, t)
		return t.result, nil
	}
	return Result{}, wire.ErrUnavailable.Because(store.ErrConflict)
}

// threadQuota bounds how many threads one actor opens in an hour (MESS-58). Without buckets the number is not limited.
type threadQuota struct {
	buckets *rate.Buckets // one for each requester
	perHour int
}

// chargeBlock takes one thread from the actor's quota for each request of a block.
func (q threadQuota) chargeBlock(who Actor, b thread.Block) error {
	for _, e := range b {
		if e.Type != "request" {
			continue
		}
		if err := q.charge(who); err != nil {
			return err
		}
	}
	return nil
}

// charge takes one thread from the actor's quota. Suggestions and delegations that open threads are charged too.
func (q threadQuota) charge(who Actor) error {
	if who.Owner || who.forExchange || q.buckets == nil {
		return nil
	}
	if wait, ok := q.buckets.Take(who.ID, time.Now()); !ok {
		return thread.TooMany(fmt.Sprintf("too many new threads: at most %d an hour", q.perHour), wait)
	}
	return nil
}

// Thread returns a thread that the actor may see. For any other ref it fails with a 404, or 400 for a malformed ref.
func (x *Exchange) Thread(ctx context.Context, who Actor, ref string) (*thread.Thread, error) {
	if err := x.Load(); err != nil {
		return nil, err
	}
	if !thread.IsSafeRef(ref) {
		return nil, thread.Bad("ref", "must be 1 to 128 characters from A-Z a-z 0-9 . _ - and not begin with a dot")
	}
	t, err := x.Read(ctx, ref, time.Now())
	if errors.Is(err, store.ErrNotFound) || err == nil && !x.canSee(who, t) {
		return nil, newNotFoundError()
	}
	if err == nil {
		x.index.publishNewer(t) // its commit may not have published it yet
	}
	return t, err
}

// Resolve returns the ref of the thread that a reference names for the actor (MESS-6).
func (x *Exchange) Resolve(ctx context.Context, who Actor, re string) (string, bool) {
	if x.Load() != nil {
		return "", false
	}
	to, ok := thread.Resolve(view{x.begin(who, Options{}), ctx, allTags}, re, x.id)
	return to.Ref, ok
}

func newNotFoundError() error { return thread.Missing("no such thread") }

// Read returns a thread from the store without an access check. The error for a missing one is [store.ErrNotFound].
func (x *Exchange) Read(ctx context.Context, ref string, now time.Time) (*thread.Thread, error) {
	rec, err := x.records.Get(ctx, NSThreads, ref, now)
	if err != nil {
		return nil, err
	}
	return decodeThread(rec)
}

// Messages returns the messages of a thread in order.
func (x *Exchange) Messages(ctx context.Context, ref string) ([]thread.Message, error) {
	var out []thread.Message
	for rec, err := range recordsBelow(ctx, x.records, NSMessages, ref+"/", time.Now()) {
		if err != nil {
			return nil, err
		}
		m, err := store.Decode[thread.Message](rec)
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

// recordsBelow returns the records of a namespace whose keys begin with prefix, in key order. It ends after an error.
func recordsBelow(ctx context.Context, r store.Records, ns, prefix string, now time.Time) iter.Seq2[store.Record, error] {
	return func(yield func(store.Record, error) bool) {
		for rec, err := range store.All(func(after string) ([]store.Record, string, error) {
			page, err := r.List(ctx, ns, "", cmp.Or(after, prefix), 200, now)
			return page.Records, page.Next, err
		}) {
			if err == nil && !strings.HasPrefix(rec.Key, prefix) || !yield(rec, err) {
				return
			}
		}
	}
}

// Message returns one message of a thread.
func (x *Exchange) Message(ctx context.Context, ref string, serial int) (m thread.Message, err error) {
	rec, err := x.records.Get(ctx, NSMessages, messageKey(ref, serial), time.Now())
	if err != nil {
		return m, err
	}
	return store.Decode[thread.Message](rec)
}

// MessagesOf returns the messages of t up to the state in which t was read. A reader that saw a later message with this
// state would believe that the message changed nothing.
func (x *Exchange) MessagesOf(ctx context.Context, t *thread.Thread) ([]thread.Message, error) {
	all, err := x.Messages(ctx, t.Ref)
	return slices.DeleteFunc(all, func(m thread.Message) bool { return m.Serial > t.Serial }), err
}

// canSee implements MESS-56: requesters see their threads, executors those that they hold or may claim, and the owner
// and writers of thread files all. For anybody else the thread does not exist, whether they read or write. The one
// exception is [Exchange.hasLost].
func (x *Exchange) canSee(who Actor, t *thread.Thread) bool {
	switch {
	case who.Owner || who.forExchange || who.isFileWriter || who.ID == t.Requester || who.ID == t.Holder && t.Holder != "":
		return true
	case t.WaitsForPeer() && t.Peers[who.ID].Offered:
		return true
	case t.IsClaimable():
		return t.HasOffer(who.ID) || x.Executors.CanClaim(who.ID, t)
	}
	return false
}

// canSeeEntry is canSee for an index entry. The entry does not show which peers have an offer, so canSeeEntry reports
// false for a peer that has only an offer. It gives writers of thread files no special right.
func (x *Exchange) canSeeEntry(who Actor, c *registry.Executor, e *entry) bool {
	switch {
	case who.Owner || who.forExchange || who.ID == e.requester.Value() || e.isHeld() && who.ID == e.holder.Value():
		return true
	case c == nil || e.status.Value() != thread.Received:
		return false
	}
	t := thread.Thread{Only: e.only, Declined: e.declined}
	return t.IsOfferedTo(c.ID) && e.canBeDoneBy(c)
}

// roles returns the roles that an actor has in a thread.
func (x *Exchange) roles(who Actor, t *thread.Thread) thread.Role {
	var r thread.Role
	if who.forExchange {
		return thread.AsExchange
	}
	if who.Owner {
		r |= thread.AsOwner
	}
	if who.ID == t.Requester {
		r |= thread.AsRequester
	}
	if t.Holder != "" && who.ID == t.Holder {
		r |= thread.AsHolder
	} else if x.Executors.CanClaim(who.ID, t) || t.HasOffer(who.ID) || who.isFileWriter && t.IsOfferedTo(who.ID) && who.ID != t.Requester {
		r |= thread.AsEligible
	}
	return r
}

// RequestRef returns the first ref in the acks: the requested thread if the block had exactly one request.
func (r Result) RequestRef() (string, bool) {
	for _, e := range r.Answers {
		if ref := e.Body.GetStr("ref"); e.Type == "ack" && ref != "" {
			return ref, true
		}
	}
	return "", false
}
