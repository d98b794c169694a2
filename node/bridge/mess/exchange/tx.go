package exchange

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/registry"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// tx applies one block (a list of MESS entries): it has what was read for the block and what the block will change. It
// belongs to one goroutine. If the commit conflicts, the caller starts again with a new tx.
type tx struct {
	x    *Exchange
	who  Actor
	opts Options
	now  time.Time

	threads     map[string]*thread.Thread // threads that were read or created, as the block leaves them
	err         error                     // the first error of a method that returns none
	before      map[string]snapshot       // state of each thread when it was read; the zero value for a new one
	changedRefs []string                  // refs of the threads that change
	changes     []store.Change            // changes other than threads
	grouped     map[string]thread.Block   // with Options.Lax, the entries by thread: one message in each

	ids           map[string]string // client ids of the block's requests → refs
	requestRefs   map[string]bool   // refs of the block's requests, new or repeated
	lastRequest   string            // the newest request of the block
	statusThreads map[string]bool   // threads that have a status entry in the block

	notices  notices
	files    files
	registry registry.Update // what the block changes in the registry

	acks    []requestAck // for the requests of the block
	result  Result
	answers thread.Block // acks of the other entries, and responses to queries
}

// snapshot is the state of a thread before the block.
type snapshot struct {
	code         thread.Code
	turn, holder string // turn is what the owner can do in it
	serial       int
	updated      time.Time
}

type requestAck struct{ id, ref string }

// begin returns a new transaction for an actor.
func (x *Exchange) begin(who Actor, opts Options) *tx {
	return &tx{
		x: x, who: who, opts: opts, now: time.Now().UTC().Round(time.Millisecond), changes: slices.Clone(opts.Records),
		threads: map[string]*thread.Thread{}, before: map[string]snapshot{}, grouped: map[string]thread.Block{},
		ids: map[string]string{}, requestRefs: map[string]bool{}, statusThreads: map[string]bool{},
		notices: notices{want: x.WantsNotices},
		files:   files{foreign: opts.Files, named: map[string]File{}, namedInMessages: map[string]map[string]bool{}},
	}
}

// run applies a block to the threads in memory, and collects the changes for [tx.commit].
func (t *tx) run(ctx context.Context, b thread.Block) error {
	for i, e := range b { // check every entry before any is applied
		if err := e.Check(thread.EntryPath(i, e), t.now, t.isLenient()); err != nil {
			return err
		}
	}
	if t.opts.IfSerial != 0 || t.opts.IfTurn != "" {
		th, err := t.load(ctx, t.opts.Re)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return newNotFoundError()
		case err != nil:
			return err
		case !t.x.canSee(t.who, th): // the entries will be refused with 404; do not reveal how many messages there are
		case t.opts.IfSerial != 0 && th.Serial != t.opts.IfSerial, t.opts.IfTurn != "" && th.Turn() != t.opts.IfTurn:
			return thread.ErrMoved
		}
	}
	if t.opts.Authority != OurExchange {
		var err error
		if b, err = t.dropNoise(ctx, b); err != nil {
			return err
		}
	}
	if t.x.cfg.Files != "" && t.who.Owner { // otherwise the references stay text
		if err := t.files.readOwnerFiles(t.x.cfg.Files, b); err != nil {
			return err
		}
	}
	reserved, err := t.reserve(ctx, b)
	if err != nil {
		return err
	}
	t.findStatusThreads(ctx, b)
	setApplied, err := t.applySetFirst(ctx)
	if err != nil {
		return err
	}
	for i, e := range b {
		if err := t.applyEntry(ctx, i, e, reserved[i]); err != nil {
			return withEntryPath(err, thread.EntryPath(i, e))
		}
	}
	if err := checkCycles(b, reserved, t.result.Created, t.threads); err != nil {
		return err
	}
	if t.opts.Set != nil && !setApplied {
		if err := t.applySet(ctx); err != nil {
			return err
		}
	}
	for _, ref := range t.changedRefs {
		t.flush(t.threads[ref])
	}
	t.result.Answers = append(ackRequests(t.acks, t.now), t.answers...)
	if t.opts.Then != nil {
		t.changes = append(t.changes, t.opts.Then(t.threads[t.opts.Re])...)
	}
	if err := t.setResultThread(ctx); err != nil {
		return err
	}
	return t.saveReplay(t.opts.Replay)
}

// isLenient reports whether entries may omit their references and what their types require. A peer to which the thread
// was sent passes on what its own exchange has accepted.
func (t *tx) isLenient() bool { return t.opts.Lax || t.opts.Authority != OurExchange }

// findStatusThreads finds the threads that have a status entry in the block, because a response without a status
// completes its thread (MESS-26). Each name is resolved once, because resolving may be slow; a name that does not
// resolve is refused later, with its entry.
func (t *tx) findStatusThreads(ctx context.Context, b thread.Block) {
	if t.opts.Lax || !slices.ContainsFunc(b, func(e thread.Entry) bool { return e.Type == "response" }) {
		return
	}
	resolved := map[string]bool{}
	for i, e := range b {
		if e.Type != "status" {
			continue
		}
		list := thread.NewFields(e.Body, thread.EntryPath(i, e)).Refs("re", thread.Optional)
		if len(list) == 0 {
			list = []string{t.opts.Re}
		}
		for _, re := range list {
			if resolved[re] {
				continue
			}
			resolved[re] = true
			if to, err := t.resolve(ctx, re, threadsFirst); err == nil {
				t.statusThreads[to.Ref] = true
			}
		}
	}
}

// applySetFirst applies the status of a PATCH before the entries if the actor holds the thread, may claim it or is the
// owner. It reports whether it did.
func (t *tx) applySetFirst(ctx context.Context) (bool, error) {
	if t.opts.Set == nil {
		return false, nil
	}
	th, _, err := t.resolveThread(ctx, t.opts.Re, threadsFirst)
	err = t.explainClaim(ctx, err, t.opts.Set.Code, nil) // nil: about the thread Re
	if err != nil || !t.x.roles(t.who, th).Has(thread.AsHolder|thread.AsEligible|thread.AsOwner) {
		return false, err
	}
	return true, t.applySet(ctx)
}

// applySet applies the status of a PATCH. An unchanged status without a message, or a repeated cancel, changes nothing.
func (t *tx) applySet(ctx context.Context) error {
	th, _, err := t.resolveThread(ctx, t.opts.Re, threadsFirst)
	if err != nil {
		return err
	}
	r, isUnchanged := t.x.roles(t.who, th), th.Status == t.opts.Set.Code
	if isUnchanged && t.opts.Set.Message == "" && r.Has(thread.AsRequester|thread.AsHolder|thread.AsOwner) {
		return nil
	}
	if isUnchanged && th.Status == thread.Cancelled && r.Has(thread.AsRequester) {
		return nil
	}
	return t.applyStatus(ctx, thread.Entry{Type: "status", Body: t.opts.Set.Body}, "status")
}

// withEntryPath puts path before the text of a refusal, unless the text begins with the path of an entry already.
func withEntryPath(err error, path string) error {
	e, ok := errors.AsType[*wire.Error](err)
	if !ok || strings.HasPrefix(e.Message, "MESS[") {
		return err
	}
	changed := *e
	changed.Message = path + ": " + e.Message
	return &changed
}

func (t *tx) applyEntry(ctx context.Context, i int, e thread.Entry, reserved reservation) error {
	path := thread.EntryPath(i, e)
	switch e.Type {
	case "v":
		return nil
	case "request":
		return t.applyRequest(ctx, e, path, reserved)
	case "status":
		return t.applyStatus(ctx, e, path)
	case "response":
		return t.applyResponse(ctx, e, path)
	case "reply":
		return t.applyReply(ctx, e, path)
	case "answer":
		return t.applyAnswer(ctx, e, path)
	case "cancel":
		return t.applyCancel(ctx, e, path)
	case "suggestion":
		return t.applySuggestion(ctx, e, path)
	case "query":
		return t.applyQuery(ctx, e, path)
	case "config":
		return t.applyConfig(ctx, e, path)
	case "ack":
		return nil // acks are never acknowledged (MESS-35)
	}
	return t.keepUnknown(ctx, e)
}

// keepUnknown stores an entry of an unknown type with the thread that it names (MESS-5).
func (t *tx) keepUnknown(ctx context.Context, e thread.Entry) error {
	re := cmp.Or(thread.FirstRef(e.Body), t.opts.Re)
	if re == "" {
		t.ack(e, "")
		return nil
	}
	th, _, err := t.resolveThread(ctx, re, threadsFirst)
	if err != nil {
		return err
	}
	if !t.x.hasPart(t.who, th) {
		return thread.Forbidden("claim the thread first: only its executor and its requester can add to it")
	}
	t.post(th, e)
	return nil
}

// load returns a thread that the block may change. Repeated calls return the same value.
func (t *tx) load(ctx context.Context, ref string) (*thread.Thread, error) {
	if th := t.threads[ref]; th != nil {
		return th, nil
	}
	th, err := t.x.Read(ctx, ref, t.now)
	if err != nil {
		return nil, err
	}
	t.threads[ref], t.before[ref] = th, snapshot{th.Status, th.Turn(), th.Holder, th.Serial, th.Updated}
	return th, nil
}

// touch marks a thread as changed by the block.
func (t *tx) touch(th *thread.Thread) {
	if !slices.Contains(t.changedRefs, th.Ref) {
		t.changedRefs = append(t.changedRefs, th.Ref)
	}
	th.Updated = t.now
}

// post adds an entry to a thread and acknowledges it. With Options.Lax, it only groups the entry for flush.
func (t *tx) post(th *thread.Thread, e thread.Entry) {
	t.touch(th)
	if t.opts.Lax {
		t.grouped[th.Ref] = append(t.grouped[th.Ref], e)
		return
	}
	ref := t.appendMessage(th, t.who.ID, thread.Block{e})
	if t.who.forExchange || e.Type == "request" { // requests get their acks together, see run
		return
	}
	t.ack(e, ref)
}

// flush turns the entries that post grouped into one message of the thread.
func (t *tx) flush(th *thread.Thread) {
	if b := t.grouped[th.Ref]; b != nil {
		delete(t.grouped, th.Ref)
		t.appendMessage(th, t.who.ID, b)
	}
}

// maxForPeer bounds a message of a thread that must be sent to a peer. It leaves room for the other members of the mesh
// message that contains it.
const maxForPeer = wire.MaxMessage - 4<<10

var errTooLargeForPeer = thread.TooLarge("the message is too large for the node at the other end: it may have at most 252 KiB, not counting files of more than 64 KiB")

// appendMessage appends a message and returns its ref. Large inline data becomes an attachment first.
func (t *tx) appendMessage(th *thread.Thread, from string, b thread.Block) string {
	th.Serial++
	m := thread.Message{Serial: th.Serial, From: from, At: t.now, Channel: t.who.Channel}
	head := b.Head()
	m.Ref = thread.NewMessageRef(th.Ref, head, th.Serial)
	if re := thread.FirstRef(head.Body); re != "" {
		m.Re = []string{re}
	}
	for i, e := range b {
		b[i] = t.files.detach(th, e)
	}
	m.Mess = b.Tree()
	t.files.recordNames(th.Ref, m.Mess)
	rec := messageRecord(m, th.Ref)
	th.Bytes += len(rec.Body)
	isForPeer := func(id string) bool { return id != from && th.Peers[id].Conv != "" }
	if len(rec.Body) > maxForPeer && (isForPeer(th.Requester) || isForPeer(th.Holder)) {
		t.err = cmp.Or(t.err, errTooLargeForPeer)
	}
	t.changes = append(t.changes, store.Change{Record: rec})
	// the newest transition, if the message caused it
	if n := len(th.History); n > 0 && th.History[n-1].Ref == "" && th.History[n-1].At.Equal(t.now) {
		th.History[n-1].Ref = m.Ref
	}
	t.notices.addMessage(th, from, head)
	return m.Ref
}

// commit applies the changes to the store, and then to the index and the registry in memory. It returns
// [store.ErrConflict] if another commit changed one of the records first.
func (t *tx) commit(ctx context.Context) error {
	kept, err := t.files.keepNamed(ctx, t.x.records, t.now)
	if err != nil {
		return err
	}
	changes := slices.Concat(t.changes, t.files.stored, kept)
	for _, ref := range t.changedRefs {
		th := t.threads[ref]
		// a message that ends the thread is allowed even if the thread is full
		if reason := th.FullReason(); reason != "" && (th.Status.Open() || !t.before[ref].code.Open()) {
			return thread.Conflict("%s", reason)
		}
		bumpUpdateTime(th, t.before[ref])
		th.Version++
		changes = append(changes, store.Change{Record: threadRecord(th), IfRev: th.Rev})
	}
	if len(changes) == 0 {
		return nil
	}
	return t.apply(ctx, changes)
}

// apply stores changes together with the notices that follow from them, and then updates the memory.
func (t *tx) apply(ctx context.Context, changes []store.Change) error {
	for _, ref := range t.changedRefs {
		t.notices.addChange(t.threads[ref], t.before[ref])
	}
	for _, n := range t.notices.list {
		changes = append(changes, n.change(t.now, t.x.noticeCount.Add(1)))
	}
	if err := t.x.records.Apply(ctx, changes, t.now); err != nil {
		return err
	}
	for _, ref := range t.changedRefs {
		t.x.index.publish(t.threads[ref])
	}
	t.x.Executors.Publish(t.registry)
	if len(t.changedRefs) > 0 {
		t.x.announce(t.changedRefs)
	}
	return nil
}

// endedRefs returns the threads that this block ended: threads that depend on them must be checked.
func (t *tx) endedRefs() []string {
	var out []string
	for _, ref := range t.changedRefs {
		if th := t.threads[ref]; th.Status.Terminal() && t.before[ref].code != th.Status {
			out = append(out, ref)
		}
	}
	return out
}

// bumpUpdateTime makes the update time of a changed thread later than before. Readers notice changes by this time, and
// two changes may fall into one millisecond. If the clock was set back by a second or more, the new time stands.
func bumpUpdateTime(t *thread.Thread, before snapshot) {
	setBack := before.updated.Sub(t.Updated)
	if (t.Serial > before.serial || t.Status != before.code) && setBack >= 0 && setBack < time.Second {
		t.Updated = before.updated.Add(time.Millisecond)
	}
}

// Namespaces of the exchange's records.
const (
	NSThreads  = "mess/threads"
	NSMessages = "mess/messages"
	NSIDs      = "mess/ids"      // (requester, client id) → newest thread
	NSFiles    = "mess/files"    // attachments; those that no message names yet expire
	NSShared   = "mess/shared"   // threads that we share with peers, one record for each conversation
	NSMeta     = registry.NSMeta // routing rules, the share key, what a link over REST stores about its exchange
	NSNotices  = "mess/notices"  // notices that are not delivered yet (MESS-28)
	NSSeen     = "mess/seen"     // replay records of calls, mesh messages and documents
)

func threadRecord(t *thread.Thread) store.Record {
	return store.Record{NS: NSThreads, Key: t.Ref, Body: wire.MustMarshal(t), Due: dueTime(t), Party: t.Requester}
}

func decodeThread(rec store.Record) (*thread.Thread, error) {
	t, err := store.Decode[thread.Thread](rec)
	t.Rev = rec.Rev
	return &t, err
}

func messageKey(ref string, serial int) string { return fmt.Sprintf("%s/%06d", ref, serial) }

func messageRecord(m thread.Message, ref string) store.Record {
	return store.Record{NS: NSMessages, Key: messageKey(ref, m.Serial), Body: wire.MustMarshal(m)}
}
