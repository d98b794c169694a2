package exchange

import (
	"cmp"
	"encoding/base64"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unique"

	"github.com/agentmesh/agentmesh/node/bridge/mess/registry"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// interned is a string that is stored once, because a few agents, states and capabilities occur in many threads.
type interned = unique.Handle[string]

// entry is what the index keeps of a thread: enough to list, find and wake the thread, but not its messages. An entry is
// small, because all threads have one in memory. Times are in microseconds since 1970.
type entry struct {
	ref, clientID               string
	requester, holder, priority interned
	status                      unique.Handle[thread.Code]
	created, updated            int64
	version                     uint64
	needs                       []interned // ids of the required capabilities
	intent                      string     // "" if it is longer than maxIndexedIntent
	*details
}

// details are the fields of an entry that few threads have.
type details struct {
	declined, depends []string
	only, external    string
	tags              []requestKey // keys in index.tags
}

// noDetails is shared by all entries whose details are empty.
var noDetails details

// maxIndexedIntent bounds the intents that are kept in memory for lists.
const maxIndexedIntent = 512

func newEntry(t *thread.Thread) *entry {
	e := &entry{
		ref: t.Ref, clientID: t.ClientID, requester: unique.Make(t.Requester), holder: unique.Make(t.Holder), status: unique.Make(t.Status),
		priority: unique.Make(t.Priority), created: t.Created.UnixMicro(), updated: t.Updated.UnixMicro(), version: t.Version, details: &noDetails,
	}
	if len(t.Intent) <= maxIndexedIntent {
		e.intent = t.Intent
	}
	for _, n := range t.Requires {
		e.needs = append(e.needs, unique.Make(n.ID))
	}
	d := details{
		declined: t.Declined, only: t.Only, depends: t.DependsOn, tags: openTags(t),
		external: t.External,
	}
	if len(d.declined)+len(d.only)+len(d.depends)+len(d.tags)+len(d.external) > 0 {
		e.details = &d
	}
	return e
}

// summary returns what a list shows of the thread. If complete is false, the intent must be read from the store.
func (e *entry) summary() (s Summary, complete bool) {
	return Summary{
		e.ref, e.clientID, e.requester.Value(), e.holder.Value(), e.status.Value(), e.intent, e.priority.Value(),
		time.UnixMicro(e.created).UTC(), time.UnixMicro(e.updated).UTC(),
	}, e.intent != ""
}

func (e *entry) isOpen() bool { return e.status.Value().Open() }

func (e *entry) isHeld() bool { return e.holder.Value() != "" }

// canBeDoneBy reports whether an executor has all capabilities that the thread requires (MESS-41).
func (e *entry) canBeDoneBy(c *registry.Executor) bool {
	return !slices.ContainsFunc(e.needs, func(id interned) bool { return !c.Has(id.Value()) })
}

// compare orders entries by their last change, oldest first. Pages are read from the end (MESS-52).
func (e *entry) compare(o *entry) int {
	return cmp.Or(cmp.Compare(e.updated, o.updated), cmp.Compare(e.ref, o.ref))
}

// index keeps all threads in memory, ordered by their last change: as a whole, and by state, requester and
// holder. It may be behind the store, so callers read a thread from the store before they act on it.
type index struct {
	mu           sync.RWMutex
	byRef        map[string]*entry
	lists        map[string][]*entry
	clients      map[string][]string   // client id → refs, oldest first
	own          map[requestKey]string // requester and client id → newest ref
	tags         map[requestKey]string // requester and id of an open suggestion or question → ref
	newest       map[string]*entry     // by requester
	waiting      map[string][]string   // ref → threads that depend on it
	predecessors map[string][]string   // ref → threads that it replaced
	numbers      map[string]int        // day → highest thread number
	unsorted     bool                  // the lists are not in order, because load runs
}

func newIndex() *index {
	return &index{
		byRef: map[string]*entry{}, lists: map[string][]*entry{}, clients: map[string][]string{}, own: map[requestKey]string{},
		tags: map[requestKey]string{}, newest: map[string]*entry{}, waiting: map[string][]string{}, predecessors: map[string][]string{}, numbers: map[string]int{},
	}
}

// allThreads is the name of the list of all threads.
const allThreads = "all"

// requestKey is a requester together with a client id of that requester, or with the id of a suggestion or question
// that is open for the requester.
type requestKey struct{ requester, id string }

// listNames returns the names of the lists that contain the entry.
func (e *entry) listNames() []string {
	out := []string{allThreads, "state:" + string(e.status.Value()), "from:" + e.requester.Value()}
	if e.isHeld() {
		out = append(out, "held:"+e.holder.Value())
	}
	return out
}

// publish adds or updates a committed thread, unless the index has a newer version.
func (x *index) publish(t *thread.Thread) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.put(t)
}

// publishNewer publishes a thread that was read from the store if the commit that wrote it has not published it yet. A
// requester that sees a suggestion or a question in the thread can then answer it by its id.
func (x *index) publishNewer(t *thread.Thread) {
	if e := x.get(t.Ref); e == nil || e.version < t.Version {
		x.publish(t)
	}
}

// put does the work of publish. The caller holds the lock.
func (x *index) put(t *thread.Thread) {
	old := x.byRef[t.Ref]
	if old != nil && old.version >= t.Version {
		return
	}
	e := newEntry(t)
	if old != nil {
		x.unlink(old)
		x.untag(old)
	} else {
		x.addNew(e)
	}
	x.byRef[t.Ref] = e
	for _, name := range e.listNames() {
		i := len(x.lists[name])
		if !x.unsorted {
			i, _ = slices.BinarySearchFunc(x.lists[name], e, (*entry).compare)
		}
		x.lists[name] = slices.Insert(x.lists[name], i, e)
	}
	// if e is the newest thread of the requester
	if n := x.newest[e.requester.Value()]; n == nil || n.ref == e.ref || n.created < e.created || n.created == e.created && n.ref < e.ref {
		x.newest[e.requester.Value()] = e
	}
	for _, next := range t.Successors {
		if !slices.Contains(x.predecessors[next], t.Ref) {
			x.predecessors[next] = append(x.predecessors[next], t.Ref)
		}
	}
	for _, key := range e.tags {
		x.tags[key] = e.ref
	}
}

// addNew indexes what never changes in a thread: the client id, the dependencies and the number.
func (x *index) addNew(e *entry) {
	if e.clientID != "" {
		x.clients[e.clientID] = append(x.clients[e.clientID], e.ref)
		key := requestKey{e.requester.Value(), e.clientID}
		if other := x.byRef[x.own[key]]; other == nil || other.created <= e.created {
			x.own[key] = e.ref
		}
	}
	for _, dependency := range e.depends {
		x.waiting[dependency] = append(x.waiting[dependency], e.ref)
	}
	x.countNumber(e.ref)
}

// countNumber remembers the highest thread number of a day. It ignores a number above 1e8, which only a thread file can
// have, so that the numbers do not run out. If a new thread gets a number that is taken, its commit conflicts, and the
// next attempt takes the next number.
func (x *index) countNumber(ref string) {
	if len(ref) < len("2006-01-02-001") {
		return
	}
	day, rest := ref[:10], ref[11:]
	number, _, _ := strings.Cut(rest, "-")
	n, err := strconv.Atoi(number)
	if err != nil || n > 1e8 {
		return
	}
	x.numbers[day] = max(x.numbers[day], n)
}

// openTags returns the keys of the suggestions and questions that the requester can answer.
func openTags(t *thread.Thread) (keys []requestKey) {
	for _, s := range t.Suggestions {
		if s.ID != "" && s.Decided == "" {
			keys = append(keys, requestKey{t.Requester, s.ID})
		}
	}
	for _, q := range t.Questions {
		if q.ID != "" && t.Status == thread.NeedsInput && !q.Answered {
			keys = append(keys, requestKey{t.Requester, q.ID})
		}
	}
	return keys
}

// untag removes the tags of an entry, unless they lead to another thread by now.
func (x *index) untag(e *entry) {
	for _, key := range e.tags {
		if x.tags[key] == e.ref {
			delete(x.tags, key)
		}
	}
}

// unlink removes an entry from its lists.
func (x *index) unlink(e *entry) {
	for _, name := range e.listNames() {
		l := x.lists[name]
		if i, ok := slices.BinarySearchFunc(l, e, (*entry).compare); ok {
			l = slices.Delete(l, i, i+1)
		}
		if x.lists[name] = l; len(l) == 0 {
			delete(x.lists, name)
		}
	}
}

func (x *index) remove(ref string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.byRef[ref]
	if e == nil {
		return
	}
	x.unlink(e)
	x.untag(e)
	delete(x.byRef, ref)
	delete(x.waiting, ref)
	delete(x.predecessors, ref)
	removeFrom(x.clients, e.clientID, ref)
	for _, dependency := range e.depends {
		removeFrom(x.waiting, dependency, ref)
	}
	if key := (requestKey{e.requester.Value(), e.clientID}); x.own[key] == ref {
		delete(x.own, key)
	}
	if x.newest[e.requester.Value()] == e {
		delete(x.newest, e.requester.Value())
		if l := x.lists["from:"+e.requester.Value()]; len(l) > 0 {
			x.newest[e.requester.Value()] = slices.MaxFunc(l, func(a, b *entry) int {
				return cmp.Or(cmp.Compare(a.created, b.created), cmp.Compare(a.ref, b.ref))
			})
		}
	}
}

// removeFrom removes an item from one list of m, and the list when it is empty.
func removeFrom[T comparable](m map[string][]T, key string, item T) {
	list := m[key]
	if i := slices.Index(list, item); i >= 0 {
		m[key] = slices.Delete(slices.Clone(list), i, i+1)
	}
	if len(m[key]) == 0 {
		delete(m, key)
	}
}

// load puts many threads into the index, which nobody uses yet.
func (x *index) load(threads iter.Seq2[*thread.Thread, error]) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.unsorted = true
	for t, err := range threads {
		if err != nil {
			return err
		}
		x.put(t)
	}
	x.unsorted = false
	for _, l := range x.lists {
		slices.SortFunc(l, (*entry).compare)
	}
	for _, refs := range x.clients {
		slices.SortFunc(refs, func(a, b string) int { return cmp.Compare(x.byRef[a].created, x.byRef[b].created) })
	}
	return nil
}

func (x *index) get(ref string) *entry {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.byRef[ref]
}

// requester returns the requester of a thread, or "" for an unknown thread.
func (x *index) requester(ref string) string {
	if e := x.get(ref); e != nil {
		return e.requester.Value()
	}
	return ""
}

// hasThreads reports whether an actor with this id is the requester or the holder of a thread.
func (x *index) hasThreads(id string) bool { return x.length("from:"+id)+x.length("held:"+id) > 0 }

// refs returns at most limit refs of a list: those that pass keep, the newest change first.
func (x *index) refs(name string, limit int, keep func(*entry) bool) (refs []string) {
	list, _ := x.entries(name, position{}, limit, keep)
	for _, e := range list {
		refs = append(refs, e.ref)
	}
	return refs
}

// entries returns at most limit entries of a list: those after the given position that pass keep, the newest change
// first. next is the zero position on the last page. An entry is never changed, only replaced.
func (x *index) entries(name string, after position, limit int, keep func(*entry) bool) (out []*entry, next position) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	l := x.lists[name]
	if after.ref != "" {
		i, _ := slices.BinarySearchFunc(l, &entry{ref: after.ref, updated: after.updated.UnixMicro()}, (*entry).compare)
		l = l[:i]
	}
	for _, e := range slices.Backward(l) {
		if !keep(e) {
			continue
		}
		if len(out) == limit {
			last := out[limit-1]
			return out, position{time.UnixMicro(last.updated).UTC(), last.ref}
		}
		out = append(out, e)
	}
	return out, position{}
}

// position is a place in a list: the last thread of a page, with its update time when the page was read.
type position struct {
	updated time.Time
	ref     string
}

// length returns the number of entries in a list.
func (x *index) length(name string) int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return len(x.lists[name])
}

// nextNumber returns the number for a new thread of a day.
func (x *index) nextNumber(day string) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.numbers[day]++
	if len(x.numbers) > 1000 { // older days are not needed, because new refs have today's date
		for d := range x.numbers {
			if d < day {
				delete(x.numbers, d)
			}
		}
	}
	return x.numbers[day]
}

// String returns the position as an opaque text, "" for the zero position.
func (p position) String() string {
	if p.ref == "" {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(p.updated.UnixNano(), 36) + " " + p.ref))
}

func parsePosition(s string) (position, error) {
	if s == "" {
		return position{}, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(s)
	at, ref, ok := strings.Cut(string(raw), " ")
	nanos, numErr := strconv.ParseInt(at, 36, 64)
	if err != nil || !ok || numErr != nil || !thread.IsSafeRef(ref) {
		return position{}, thread.Bad("after", "must be the member next of the previous page")
	}
	return position{time.Unix(0, nanos).UTC(), ref}, nil
}

// maxClientIDScan bounds how many threads with the same client id are examined: strangers choose these ids.
const maxClientIDScan = 1000

// newestByClientID returns the newest thread with a client id that passes keep.
func (x *index) newestByClientID(id string, keep func(*entry) bool) (string, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	refs := x.clients[id]
	for i := len(refs) - 1; i >= max(0, len(refs)-maxClientIDScan); i-- {
		if e := x.byRef[refs[i]]; e != nil && keep(e) {
			return e.ref, true
		}
	}
	return "", false
}

// ownByClientID returns the requester's own newest thread with a client id.
func (x *index) ownByClientID(requester, id string) (string, bool) {
	return x.find(x.own, requester, id)
}

// threadByTag returns the thread in which a suggestion or question with this id waits for the requester.
func (x *index) threadByTag(requester, id string) (string, bool) {
	return x.find(x.tags, requester, id)
}

func (x *index) find(refs map[requestKey]string, requester, id string) (string, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	ref, ok := refs[requestKey{requester, id}]
	return ref, ok
}

// newestOf returns the newest thread of a requester.
func (x *index) newestOf(requester string) (string, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if e := x.newest[requester]; e != nil {
		return e.ref, true
	}
	return "", false
}

// dependents returns the threads that depend on ref, or on a thread that ref replaced. Some may have ended.
func (x *index) dependents(ref string) []string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var out []string
	for queue, seen := []string{ref}, map[string]bool{}; len(queue) > 0; queue = queue[1:] {
		if seen[queue[0]] {
			continue
		}
		seen[queue[0]] = true
		out = append(out, x.waiting[queue[0]]...)
		queue = append(queue, x.predecessors[queue[0]]...)
	}
	return out
}
