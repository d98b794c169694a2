package exchange

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Config says how the exchange behaves. Store is required.
type Config struct {
	ID           string // of the exchange; empty: home
	Name         string
	Store        store.Store
	Registration string // open, approval or invite (MESS-57); empty: approval
	Invite       string // the bearer that invite asks for

	CallsPerMinute       int // of one key; 0: 600, negative: no limit (MESS-58)
	ThreadsPerHour       int // 0: 300
	RegistrationsPerHour int // of one address; 0: 60

	Files string // folder of what the owner's own requests may name by file://; "": they stay text

	Retention time.Duration // ended threads go after it; 0: 90 days
	Logger    *slog.Logger
}

// Exchange keeps threads and executors and takes blocks through the state machine. Everything is durable when a method
// returns. It is safe for concurrent use.
type Exchange struct {
	cfg     Config
	id      string
	log     *slog.Logger
	records store.Records

	clock      *store.WallClock
	loading    loading
	index      *index
	Executors  *Executors
	newThreads threadQuota

	// hears says whether somebody must be told by the bridge; nil: nobody. Set before the first call.
	Hears func(id string) bool
	// mirror is told of every committed change; nil: nobody.
	Mirror func(refs []string)
	open   watchers
	news   chan struct{} // there is a notice
	told   atomic.Uint64 // notices that were made
	behind atomic.Bool   // threads that wait must be looked at, each of them
}

// New returns the exchange that cfg describes. It starts nothing and reads nothing yet.
func New(cfg Config) *Exchange {
	cfg.ID, cfg.Registration = cmp.Or(cfg.ID, "home"), cmp.Or(cfg.Registration, string(credential.Approval))
	cfg.Retention = cmp.Or(cfg.Retention, 90*24*time.Hour)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	x := &Exchange{
		cfg: cfg, id: cfg.ID, log: cfg.Logger, records: cfg.Store.Records(), index: newIndex(), Executors: newExecutors(cfg), news: make(chan struct{}, 1),
	}
	x.clock = store.NewWallClock(cfg.Logger)
	x.Executors.records, x.Executors.load, x.Executors.named = x.records, x.Load, x.index.named
	if n := cmp.Or(cfg.ThreadsPerHour, 300); n > 0 {
		x.LimitThreads(rate.NewBuckets(rate.PerHour(n), n, 2*maxExecutors), n)
	}
	return x
}

const (
	openADay     = 10_000  // registrations without approval
	MaxFailures  = 30      // wrong keys of an address in a minute
	maxAddresses = 1 << 16 // that limits tell apart
)

// LimitThreads bounds how many threads one actor opens; nil lifts the bound.
func (x *Exchange) LimitThreads(buckets *rate.Buckets, perHour int) {
	x.newThreads = threadQuota{buckets, perHour}
}

// ID returns the id of the exchange.
func (x *Exchange) ID() string { return x.id }

// loading is whether the exchange has read what is kept in memory.
type loading struct {
	done atomic.Bool

	mu     sync.Mutex // held while it reads
	err    error      // of the last attempt
	failed time.Time
}

// loadAgain is how long a failed load is not repeated: each one reads the store from its beginning.
const loadAgain = time.Second

// Load reads everything that is kept in memory, at the first use, so that a command that has no business with the
// exchange does not wait for it. A load that failed is tried again.
func (x *Exchange) Load() error {
	l := &x.loading
	if l.done.Load() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done.Load() || l.err != nil && time.Since(l.failed) < loadAgain {
		return l.err
	}
	if l.err = x.restore(context.Background()); l.err != nil {
		l.failed = time.Now()
	}
	l.done.Store(l.err == nil)
	return l.err
}

// restore does the work of load. It may run again after it failed: what it read before is read once more.
func (x *Exchange) restore(ctx context.Context) error {
	now := time.Now()
	err := eachRecord(ctx, x.records, NSExecutors, now, func(rec store.Record) error {
		e, err := decodeExecutor(rec)
		if err == nil {
			x.Executors.put(e)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("load executors: %w", err)
	}
	if err := x.Executors.restoreMeta(ctx, now); err != nil {
		return fmt.Errorf("load catalogue and routing: %w", err)
	}
	var threads []*thread.Thread
	err = eachRecord(ctx, x.records, NSThreads, now, func(rec store.Record) error {
		t, err := decodeThread(rec)
		threads = append(threads, t)
		return err
	})
	if err != nil {
		return fmt.Errorf("load threads: %w", err)
	}
	x.index.load(threads)
	return nil
}

// eachRecord calls do for every live record of a namespace.
func eachRecord(ctx context.Context, records store.Records, ns string, now time.Time, do func(store.Record) error) error {
	for after := ""; ; {
		page, err := records.List(ctx, ns, "", after, 1000, now)
		if err != nil {
			return err
		}
		for _, rec := range page.Records {
			if err := do(rec); err != nil {
				return err
			}
		}
		if after = page.Next; after == "" {
			return nil
		}
	}
}

// Actor is who acts. What it is to a thread follows from its id.
type Actor struct {
	ID      string
	Owner   bool   // acts for anybody on the exchange
	Channel string // how it reached us: rest, messages, file, agentmesh, link, page, cli

	system bool // the exchange itself
	file   bool // wrote into our thread directory: who may do that needs no registration
}

// Owner is the actor who runs the exchange.
func Owner(channel string) Actor { return Actor{ID: thread.OwnerID, Owner: true, Channel: channel} }

// WriterOfFiles is the actor who wrote into our thread directory.
func WriterOfFiles(id string) Actor { return Actor{ID: id, Channel: "file", file: true} }

// Options are what a door adds to a block.
type Options struct {
	// Lax takes bare codes, and a response without a status is only appended: PATCH and thread files (MESS-20, MESS-26).
	Lax bool
	// Re is the thread that entries without re are about, and with Lax the only one that they may be about.
	Re string
	// IfSerial refuses the block where the newest message of the thread of Re is another than this one: somebody read
	// the thread as it was then, and answers that. 0 is no condition.
	IfSerial int
	// IfTurn refuses the block where the owner's turn in the thread of Re is another.
	IfTurn string
	// Then is what else changes, given the thread of Re as it will be.
	Then func(*thread.Thread) []store.Change
	// Set is the status of a PATCH: it goes first for who works on the thread, else last, and not at all where the
	// thread has it already (MESS-55).
	Set *thread.Status
	// Only offers new threads to this executor alone.
	Only string
	// Hold parks new threads until the owner releases them.
	Hold bool
	// Peer is where the actor is told of new threads.
	Peer *thread.Peer
	// External is kept with new threads, for the bridge.
	External string
	// Sent says that the thread of Re was sent to the actor, who has a say in it without having claimed it: where it is
	// held there, it is parked for this reason until more is heard.
	Sent string
	// Follow says that the actor is the exchange behind a link, which is right about the thread that was sent to it.
	Follow bool
	// Once is the name under which the answer is kept, for who sends the block again; nil: none.
	Once *Once
	// Files are what the block names that lies elsewhere, by address: they become attachments.
	Files map[string]File
	// Records change in the same unit.
	Records []store.Change
}

// Result is what became of a block.
type Result struct {
	Answers thread.Block // acks, and responses to queries (MESS-35, MESS-36)
	Created []string     // refs of new threads
	Touched []string     // refs of all threads that were changed or created

	Ref    string // the thread that the block was about or made, where it is one that it changed
	Status thread.Code
}

// maxConflicts bounds how often a block is decided anew because a thread moved.
const maxConflicts = 16

// Do takes one block of one actor as one transaction (MESS-7): every entry is applied, or nothing. The error is a
// *wire.Error that names the entry, or the store's.
func (x *Exchange) Do(ctx context.Context, who Actor, b thread.Block, opts Options) (Result, error) {
	if err := x.Load(); err != nil {
		return Result{}, err
	}
	if kept, found, err := x.FindAnswer(ctx, opts.Once); found || err != nil {
		return kept, err
	}
	if err := x.newThreads.chargeBlock(who, b); err != nil {
		return Result{}, err
	}
	for range maxConflicts {
		t := x.begin(who, opts)
		if err := t.run(ctx, b); err != nil {
			return Result{}, err
		}
		err := t.commit(ctx)
		if errors.Is(err, store.ErrConflict) {
			if kept, found, err := x.FindAnswer(ctx, opts.Once); found || err != nil { // the same came twice at once
				return kept, err
			}
			continue
		}
		if err != nil {
			return Result{}, limitedOnce(err, opts.Once)
		}
		x.settleAfter(ctx, t)
		return t.result, nil
	}
	return Result{}, wire.ErrUnavailable.Because(store.ErrConflict)
}

// threadQuota bounds how many threads one actor opens (MESS-58). Without buckets there is no bound.
type threadQuota struct {
	buckets *rate.Buckets // by requester: there is room for all of them
	perHour int
}

// chargeBlock takes the threads that a block opens.
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

// charge takes one thread from what an actor may open, also by a suggestion or a delegation.
func (q threadQuota) charge(who Actor) error {
	if who.Owner || who.system || q.buckets == nil {
		return nil
	}
	if wait, ok := q.buckets.Take(who.ID, time.Now()); !ok {
		return limited(fmt.Sprintf("too many new threads: at most %d an hour", q.perHour), wait)
	}
	return nil
}

func limited(text string, wait time.Duration) error {
	return &wire.Error{Code: wire.RateLimited, Status: http.StatusTooManyRequests, Retry: true, Message: text, RetryAfter: max(wait, time.Second)}
}

// Thread returns a thread that the actor may see.
func (x *Exchange) Thread(ctx context.Context, who Actor, ref string) (*thread.Thread, error) {
	if err := x.Load(); err != nil {
		return nil, err
	}
	if !thread.SafeRef.MatchString(ref) {
		return nil, thread.Bad("ref", "must be 1 to 128 of A-Z a-z 0-9 . _ - and not begin with a dot")
	}
	t, err := x.Read(ctx, ref, time.Now())
	if errors.Is(err, store.ErrNotFound) || err == nil && !x.sees(who, t) {
		return nil, noThread()
	}
	if err == nil {
		x.index.catchUp(t)
	}
	return t, err
}

// Resolve returns the thread that a reference names for the actor (MESS-6).
func (x *Exchange) Resolve(ctx context.Context, who Actor, re string) (string, bool) {
	if x.Load() != nil {
		return "", false
	}
	to, ok := thread.Resolve(view{x.begin(who, Options{}), ctx}, re, x.id)
	return to.Ref, ok
}

func noThread() error { return thread.Missing("no such thread") }

func (x *Exchange) Read(ctx context.Context, ref string, now time.Time) (*thread.Thread, error) {
	rec, err := x.records.Get(ctx, NSThreads, ref, now)
	if err != nil {
		return nil, err
	}
	return decodeThread(rec)
}

// Messages returns what was said in a thread, in order.
func (x *Exchange) Messages(ctx context.Context, ref string) ([]thread.Message, error) {
	var out []thread.Message
	now := time.Now()
	for after := ref + "/"; ; {
		page, err := x.records.List(ctx, NSMessages, "", after, 200, now)
		if err != nil {
			return nil, err
		}
		for _, rec := range page.Records {
			if len(rec.Key) <= len(ref) || rec.Key[:len(ref)+1] != ref+"/" {
				return out, nil
			}
			m, err := decodeMessage(rec)
			if err != nil {
				return nil, err
			}
			out = append(out, m)
		}
		if after = page.Next; after == "" {
			return out, nil
		}
	}
}

// Message returns one message of a thread.
func (x *Exchange) Message(ctx context.Context, ref string, serial int) (m thread.Message, err error) {
	rec, err := x.records.Get(ctx, NSMessages, messageKey(ref, serial), time.Now())
	if err != nil {
		return m, err
	}
	return decodeMessage(rec)
}

// MessagesOf returns what was said in t up to the moment at which t was read. A message that came since belongs to a later
// state than that of t: a reader that saw both would take it for one that changed nothing.
func (x *Exchange) MessagesOf(ctx context.Context, t *thread.Thread) ([]thread.Message, error) {
	all, err := x.Messages(ctx, t.Ref)
	return slices.DeleteFunc(all, func(m thread.Message) bool { return m.Serial > t.Serial }), err
}

// sees is MESS-56: requesters see their threads, executors those they hold or may claim, the owner all. To anybody else a
// thread is one that is not there, whatever is said about it; the one exception is [Exchange.late].
func (x *Exchange) sees(who Actor, t *thread.Thread) bool {
	switch {
	case who.Owner || who.system || who.file || who.ID == t.Requester || who.ID == t.Holder && t.Holder != "":
		return true
	case t.WaitsForPeer() && t.Peers[who.ID].Offered:
		return true
	case t.IsClaimable():
		return t.Peers[who.ID].Offered && t.IsOfferedTo(who.ID) || x.Executors.may(who.ID, t)
	}
	return false
}

// seesEntry is sees for a thread as the index has it.
func (x *Exchange) seesEntry(who Actor, c *candidate, e *entry) bool {
	switch {
	case who.Owner || who.system || who.ID == e.requester || who.ID == e.holder && e.holder != "":
		return true
	case c == nil || c.Pending || e.status != thread.Received:
		return false
	}
	t := thread.Thread{Only: e.only, Declined: e.declined}
	return t.IsOfferedTo(c.ID) && c.has(e.needs)
}

// roles says what the actor is to a thread.
func (x *Exchange) roles(who Actor, t *thread.Thread) thread.Role {
	var r thread.Role
	if who.system {
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
	} else if x.Executors.may(who.ID, t) || t.Peers[who.ID].Offered && t.IsOfferedTo(who.ID) || who.file && t.IsOfferedTo(who.ID) && who.ID != t.Requester {
		r |= thread.AsEligible
	}
	return r
}

// RequestRef returns the ref of a lone request.
func (r Result) RequestRef() (string, bool) {
	for _, e := range r.Answers {
		if ref := e.Body.GetStr("ref"); e.Type == "ack" && ref != "" {
			return ref, true
		}
	}
	return "", false
}

// MaxQuestions is how many questions of one kind wait for the owner.
const MaxQuestions = 200
