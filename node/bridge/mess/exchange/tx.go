package exchange

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// tx is one block on its way: what it read, and what it will change. It belongs to one goroutine. Where the commit
// conflicts, a new one decides anew.
type tx struct {
	x    *Exchange
	who  Actor
	opts Options
	now  time.Time

	threads map[string]*thread.Thread // read or made, as they will be
	order   []string                  // of threads that change
	was     map[string]past           // how each was read; the zero value for a new one
	changes []store.Change            // beside the threads
	grouped map[string]thread.Block   // entries of a lax block, which become one message for each thread
	told    int
	owner   map[string]bool // refs of threads of which the owner is told
	quiet   bool            // nobody is told of what is said

	ids      map[string]string          // client ids of this block's requests → refs
	made     map[string]bool            // refs of this block's requests
	own      map[string]File            // files of the owner's, by their file:// references
	read     int                        // bytes of files of older threads
	copied   int                        // bytes of them that new threads get
	named    map[string]map[string]bool // thread → files that are named
	last     string                     // the newest request of this block
	hasState map[string]bool            // threads that a status entry of this block is about

	changed []*Executor // to be put into the registry after the commit
	claims  []claimTime
	rules   []thread.Rule
	routed  bool // rules are to be set

	acks    []request
	result  Result
	answers thread.Block
}

// past is what a thread was.
type past struct {
	code         thread.Code
	turn, holder string
	serial       int
	updated      time.Time
}

// request is one of this block, for its ack.
type request struct{ id, ref string }

func (x *Exchange) begin(who Actor, opts Options) *tx {
	return &tx{
		x: x, who: who, opts: opts, now: time.Now().UTC().Round(time.Millisecond),
		threads: map[string]*thread.Thread{}, was: map[string]past{}, owner: map[string]bool{}, grouped: map[string]thread.Block{},
		ids: map[string]string{}, made: map[string]bool{}, hasState: map[string]bool{}, changes: slices.Clone(opts.Records),
	}
}

// run applies a block in memory.
func (t *tx) run(ctx context.Context, b thread.Block) error {
	for i, e := range b { // every entry is well formed before any is applied
		if err := e.Check(thread.EntryPath(i, e), t.now, t.opts.Lax); err != nil {
			return err
		}
	}
	if t.opts.IfSerial != 0 || t.opts.IfTurn != "" {
		th, err := t.load(ctx, t.opts.Re)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return noThread()
		case err != nil:
			return err
		case !t.x.sees(t.who, th): // the entries are refused, and how much was said is not told
		case t.opts.IfSerial != 0 && th.Serial != t.opts.IfSerial, t.opts.IfTurn != "" && th.Turn() != t.opts.IfTurn:
			return thread.ErrMoved
		}
	}
	if t.opts.Sent != "" {
		var err error
		if b, err = t.heard(ctx, b); err != nil {
			return err
		}
	}
	if err := t.readOwn(b); err != nil {
		return err
	}
	refs, err := t.reserve(ctx, b)
	if err != nil {
		return err
	}
	t.readStates(ctx, b)
	first, err := t.setFirst(ctx)
	if err != nil {
		return err
	}
	for i, e := range b {
		if err := t.entry(ctx, i, e, refs[i]); err != nil {
			return at400(err, thread.EntryPath(i, e))
		}
	}
	if t.opts.Set != nil && !first {
		if err := t.set(ctx); err != nil {
			return err
		}
	}
	t.flush()
	t.finish()
	if t.opts.Then != nil {
		t.changes = append(t.changes, t.opts.Then(t.threads[t.opts.Re])...)
	}
	if err := t.stands(ctx); err != nil {
		return err
	}
	return t.remember(t.opts.Once)
}

// readStates finds out which threads the status entries of a block are about, where a response asks for it (MESS-26). Each
// name is looked up once: what it names may take long to find, and whether it is there is judged with its entry.
func (t *tx) readStates(ctx context.Context, b thread.Block) {
	if t.opts.Lax || !slices.ContainsFunc(b, func(e thread.Entry) bool { return e.Type == "response" }) {
		return
	}
	looked := map[string]bool{}
	for i, e := range b {
		if e.Type != "status" {
			continue
		}
		list := thread.NewFields(e.Body, thread.EntryPath(i, e)).Refs("re", false)
		if len(list) == 0 {
			list = []string{t.opts.Re}
		}
		for _, re := range list {
			if looked[re] {
				continue
			}
			looked[re] = true
			if to, err := t.target(ctx, re); err == nil {
				t.hasState[to.Ref] = true
			}
		}
	}
}

// setFirst applies the status of a PATCH where it goes before the entries, and says whether it did.
func (t *tx) setFirst(ctx context.Context) (bool, error) {
	if t.opts.Set == nil {
		return false, nil
	}
	th, err := t.about(ctx, t.opts.Re)
	err = t.orTaken(ctx, err, t.opts.Set.Code, nil)
	if err != nil || !t.x.roles(t.who, th).Has(thread.AsHolder|thread.AsEligible|thread.AsOwner) {
		return false, err
	}
	return true, t.set(ctx)
}

// set applies the status of a PATCH, unless the thread has it.
func (t *tx) set(ctx context.Context) error {
	th, err := t.about(ctx, t.opts.Re)
	if err != nil {
		return err
	}
	mine := t.x.roles(t.who, th).Has(thread.AsRequester | thread.AsHolder | thread.AsOwner)
	if mine && th.Status == t.opts.Set.Code && t.opts.Set.Message == "" {
		return nil
	}
	if r := t.x.roles(t.who, th); th.Status == t.opts.Set.Code && r.Has(thread.AsRequester) && !r.Has(thread.AsHolder|thread.AsOwner) {
		return nil
	}
	return t.status(ctx, thread.Entry{Type: "status", Body: t.opts.Set.Body}, "status")
}

// at400 names the entry in a refusal that does not name one yet.
func at400(err error, path string) error {
	e, ok := errors.AsType[*wire.Error](err)
	if !ok || len(e.Message) > 5 && e.Message[:5] == "MESS[" {
		return err
	}
	told := *e
	told.Message = path + ": " + e.Message
	return &told
}

// entry applies one entry.
func (t *tx) entry(ctx context.Context, i int, e thread.Entry, ref string) error {
	path := thread.EntryPath(i, e)
	switch e.Type {
	case "v":
		return nil
	case "request":
		return t.request(ctx, e, path, ref)
	case "status":
		return t.status(ctx, e, path)
	case "response":
		return t.response(ctx, e, path)
	case "reply":
		return t.reply(ctx, e, path)
	case "answer":
		return t.answer(ctx, e, path)
	case "cancel":
		return t.cancel(ctx, e, path)
	case "suggestion":
		return t.suggestion(ctx, e, path)
	case "query":
		return t.query(ctx, e, path)
	case "config":
		return t.config(ctx, e, path)
	case "ack":
		return nil // acks are never acknowledged (MESS-35)
	}
	return t.unknown(ctx, e)
}

// unknown keeps an entry of a type that we do not know, with the thread it names (MESS-5).
func (t *tx) unknown(ctx context.Context, e thread.Entry) error {
	re := thread.FirstRef(e.Body)
	if re == "" {
		re = t.opts.Re
	}
	if re == "" {
		t.ack(e, "")
		return nil
	}
	th, err := t.about(ctx, re)
	if err != nil {
		return err
	}
	if !t.x.takesPart(t.who, th) {
		return thread.Forbidden("claim the thread first: who only may claim it can add nothing to it")
	}
	th.Updated = t.now
	t.say(th, e)
	return nil
}

// load returns a thread for change. It is the same for the whole transaction.
func (t *tx) load(ctx context.Context, ref string) (*thread.Thread, error) {
	if th := t.threads[ref]; th != nil {
		return th, nil
	}
	th, err := t.x.Read(ctx, ref, t.now)
	if err != nil {
		return nil, err
	}
	t.threads[ref], t.was[ref] = th, past{th.Status, th.Turn(), th.Holder, th.Serial, th.Updated}
	return th, nil
}

// touch marks a thread as changed.
func (t *tx) touch(th *thread.Thread) {
	if !slices.Contains(t.order, th.Ref) {
		t.order = append(t.order, th.Ref)
	}
	th.Updated = t.now
}

// say adds an entry to a thread as a message of the actor, and acknowledges it.
func (t *tx) say(th *thread.Thread, e thread.Entry) {
	t.touch(th)
	if t.opts.Lax {
		t.grouped[th.Ref] = append(t.grouped[th.Ref], e)
		return
	}
	ref := t.add(th, t.who.ID, thread.Block{e})
	if t.who.system || e.Type == "request" {
		return
	}
	t.ack(e, ref)
}

// flush turns what a lax block said in each thread into one message.
func (t *tx) flush() {
	for _, ref := range t.order {
		if b := t.grouped[ref]; b != nil {
			t.add(t.threads[ref], t.who.ID, b)
		}
	}
}

// add appends a message and returns its ref. Large inline data moves to attachments first.
func (t *tx) add(th *thread.Thread, from string, b thread.Block) string {
	th.Serial++
	m := thread.Message{Serial: th.Serial, From: from, At: t.now, Channel: t.who.Channel}
	head := b[0]
	for _, e := range b {
		if e.Type != "v" {
			head = e
			break
		}
	}
	m.Ref = thread.NewMessageRef(th.Ref, head, th.Serial)
	if re := thread.FirstRef(head.Body); re != "" {
		m.Re = []string{re}
	}
	for i, e := range b {
		b[i] = t.detach(th, e)
	}
	m.Mess = b.Tree()
	t.names(th.Ref, m.Mess)
	rec := messageRecord(m, th.Ref)
	th.Bytes += len(rec.Body)
	t.changes = append(t.changes, store.Change{Record: rec})
	if n := len(th.History); n > 0 && th.History[n-1].Ref == "" && th.History[n-1].At.Equal(t.now) {
		th.History[n-1].Ref = m.Ref
	}
	t.notify(th, from, head, th.Serial)
	return m.Ref
}

// commit makes the transaction durable and takes it over in memory.
func (t *tx) commit(ctx context.Context) error {
	t.tellTurns()
	t.tellEnded()
	if err := t.unmark(ctx); err != nil {
		return err
	}
	changes := t.changes
	for _, ref := range t.order {
		th := t.threads[ref]
		if why := th.FullReason(); why != "" && (th.Status.Open() || !t.was[ref].code.Open()) { // its end may always be said
			return thread.Conflict("%s", why)
		}
		touch(th, t.was[ref])
		th.Version++
		changes = append(changes, store.Change{Record: threadRecord(th), IfRev: th.Rev})
	}
	if len(changes) == 0 {
		return nil
	}
	if err := t.x.records.Apply(ctx, changes, t.now); err != nil {
		return err
	}
	for _, ref := range t.order {
		t.x.index.publish(t.threads[ref])
	}
	for _, e := range t.changed {
		t.x.Executors.put(e)
	}
	for _, c := range t.claims {
		t.x.Executors.claimed(c)
	}
	if t.routed {
		t.x.Executors.setRules(t.rules)
	}
	if t.told > 0 {
		t.x.WakeTeller()
	}
	if len(t.order) > 0 {
		t.x.changed(t.order)
	}
	return nil
}

// ended lists the threads that may have met, or failed, what others depend on.
func (t *tx) ended() []string {
	var out []string
	for _, ref := range t.order {
		if th := t.threads[ref]; th.Status.Terminal() && t.was[ref].code != th.Status {
			out = append(out, ref)
		}
	}
	return out
}

func IDKey(requester, id string) string {
	sum := sha256.Sum256([]byte(requester + "\x00" + id))
	return hex.EncodeToString(sum[:16])
}

// touch dates what was said behind the change before it: who follows the thread knows by the time of its last change
// whether there is something new, and two may come in one millisecond. A clock that was set back is followed.
func touch(t *thread.Thread, was past) {
	behind := was.updated.Sub(t.Updated)
	if (t.Serial > was.serial || t.Status != was.code) && behind >= 0 && behind < time.Second {
		t.Updated = was.updated.Add(time.Millisecond)
	}
}

// The namespaces of the exchange's records.
const (
	NSThreads      = "mess/threads"
	NSMessages     = "mess/messages"
	NSIDs          = "mess/ids"     // (requester, client id) → newest thread
	NSFiles        = "mess/files"   // attachments, and uploads of the owner
	NSUploads      = "mess/uploads" // uploads that no message names yet
	NSExecutors    = "mess/executors"
	NSCapabilities = "mess/capabilities"
	NSMeta         = "mess/meta"
	NSNotices      = "mess/notices" // what somebody must still be told (MESS-28)
	NSSeen         = "mess/seen"    // messages of the mesh and of links that were taken in

)

func threadRecord(t *thread.Thread) store.Record {
	return store.Record{NS: NSThreads, Key: t.Ref, Body: thread.Encode(t)}
}

func decodeThread(rec store.Record) (*thread.Thread, error) {
	t := &thread.Thread{Rev: rec.Rev}
	if err := json.Unmarshal(rec.Body, t); err != nil {
		return nil, fmt.Errorf("decode thread: %w", err)
	}
	return t, nil
}

func messageKey(ref string, serial int) string { return fmt.Sprintf("%s/%06d", ref, serial) }

func messageRecord(m thread.Message, ref string) store.Record {
	return store.Record{NS: NSMessages, Key: messageKey(ref, m.Serial), Body: thread.Encode(m)}
}

func decodeMessage(rec store.Record) (thread.Message, error) {
	var m thread.Message
	if err := json.Unmarshal(rec.Body, &m); err != nil {
		return m, fmt.Errorf("decode message: %w", err)
	}
	return m, nil
}
