package exchange

import (
	"cmp"
	"container/heap"
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// entry is what the index keeps of a thread: enough to list, find and wake it, never its text.
type entry struct {
	ref       string
	client    string
	requester string
	holder    string
	status    thread.Code
	created   time.Time
	updated   time.Time
	version   uint64
	needs     []thread.Need
	declined  []string
	only      string
	depends   []string
	deadline  time.Time
	start     time.Time // not before this time
	tags      []string  // keys in index.tags
	external  string
	via       string // the link through which a peer requested the thread, while it is open
	priority  string
	intent    string // "" if it is longer than maxIndexedIntent
}

// maxIndexedIntent bounds the intents that are kept in memory for lists.
const maxIndexedIntent = 512

// summary returns what a list shows of the thread. complete is false if the intent must be read from the store.
func (e *entry) summary() (s Summary, complete bool) {
	return Summary{e.ref, e.client, e.requester, e.holder, e.status, e.intent, e.priority, e.created, e.updated}, e.intent != ""
}

// compare orders entries by their last change, oldest first. Pages are read from the end (MESS-52).
func (e *entry) compare(o *entry) int {
	return cmp.Or(e.updated.Compare(o.updated), cmp.Compare(e.ref, o.ref))
}

// index keeps all threads in memory, ordered by their last change: as a whole, and by state, requester and holder. It
// follows the store, so callers read a thread from the store before they act on it.
type index struct {
	mu           sync.RWMutex
	byRef        map[string]*entry
	lists        map[string][]*entry
	clients      map[string][]string // client id → refs, oldest first
	own          map[string]string   // (requester, client id) → newest ref
	tags         map[string]string   // (requester, id of an open suggestion or question) → ref
	newest       map[string]*entry   // by requester
	waiting      map[string][]string // ref → threads that depend on it
	predecessors map[string][]string // ref → threads that it replaced
	serials      map[string]int      // day → highest number
	alarms       alarms
	alarmSet     chan struct{} // has a value after an alarm was set
}

func newIndex() *index {
	return &index{
		byRef: map[string]*entry{}, lists: map[string][]*entry{}, clients: map[string][]string{}, tags: map[string]string{},
		own:    map[string]string{},
		newest: map[string]*entry{}, waiting: map[string][]string{}, predecessors: map[string][]string{}, serials: map[string]int{}, alarmSet: make(chan struct{}, 1),
	}
}

const allThreads = "all"

// stripMetadata returns capabilities without their metadata, which may be large and stays in the store.
func stripMetadata(needs []thread.Need) []thread.Need {
	out := make([]thread.Need, len(needs))
	for i, n := range needs {
		out[i].ID = n.ID
	}
	return out
}

// listNames returns the names of the lists that the thread is in.
func (e *entry) listNames() []string {
	out := []string{allThreads, "state:" + string(e.status), "from:" + e.requester}
	if e.holder != "" {
		out = append(out, "held:"+e.holder)
	}
	if e.via != "" {
		out = append(out, "via:"+e.via)
	}
	return out
}

// publish adds or updates a committed thread, unless the index has a newer version.
func (x *index) publish(t *thread.Thread) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.put(t)
}

// publishNewer publishes a thread that was read from the store if the commit that wrote it has not published it yet.
// Every participant that sees a suggestion or a question in a thread can then answer it by its id.
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
	e := &entry{
		ref: t.Ref, client: t.ClientID, requester: t.Requester, holder: t.Holder, status: t.Status, created: t.Created, updated: t.Updated,
		version: t.Version, needs: stripMetadata(t.Requires), declined: t.Declined, only: t.Only, depends: t.DependsOn,
		deadline: t.Deadline, start: t.NotBefore, external: t.External, priority: t.Priority,
	}
	if len(t.Intent) <= maxIndexedIntent {
		e.intent = t.Intent
	}
	if t.Status.Open() {
		e.via = requestLink(t)
	}
	if old != nil {
		x.unlink(old)
		x.untag(old)
	} else {
		x.addNew(e)
	}
	x.byRef[t.Ref] = e
	for _, name := range e.listNames() {
		i, _ := slices.BinarySearchFunc(x.lists[name], e, (*entry).compare)
		x.lists[name] = slices.Insert(x.lists[name], i, e)
	}
	if n := x.newest[e.requester]; n == nil || n.ref == e.ref || n.created.Before(e.created) || n.created.Equal(e.created) && n.ref < e.ref {
		x.newest[e.requester] = e
	}
	for _, next := range t.Successors {
		if !slices.Contains(x.predecessors[next], t.Ref) {
			x.predecessors[next] = append(x.predecessors[next], t.Ref)
		}
	}
	x.tag(e, t)
	x.setAlarms(old, t)
}

// addNew does what is needed once for each thread.
func (x *index) addNew(e *entry) {
	if e.client != "" {
		x.clients[e.client] = append(x.clients[e.client], e.ref)
		key := ownKey(e.requester, e.client)
		if other := x.byRef[x.own[key]]; other == nil || !other.created.After(e.created) {
			x.own[key] = e.ref
		}
	}
	for _, dependency := range e.depends {
		x.waiting[dependency] = append(x.waiting[dependency], e.ref)
	}
	x.countSerial(e.ref)
}

// countSerial remembers the highest thread number of a day. It ignores a number from a thread file that is so high that
// it leaves no room for more. A new thread whose number turns out to be taken gets the next one.
func (x *index) countSerial(ref string) {
	if len(ref) < len("2006-01-02-001") {
		return
	}
	day, rest := ref[:10], ref[11:]
	number, _, _ := strings.Cut(rest, "-")
	n := 0
	for _, c := range number {
		if c < '0' || c > '9' || n > 1e7 {
			return
		}
		n = n*10 + int(c-'0')
	}
	if n > 1e8 {
		return
	}
	x.serials[day] = max(x.serials[day], n)
}

func ownKey(requester, id string) string { return requester + "\x00" + id }

// tag records the ids of suggestions and questions that the requester can answer.
func (x *index) tag(e *entry, t *thread.Thread) {
	add := func(id string) {
		if id != "" {
			key := ownKey(t.Requester, id)
			x.tags[key] = t.Ref
			e.tags = append(e.tags, key)
		}
	}
	for _, s := range t.Suggestions {
		if s.Decided == "" {
			add(s.ID)
		}
	}
	for _, q := range t.Questions {
		if t.Status == thread.NeedsInput && !q.Answered {
			add(q.ID)
		}
	}
}

func (x *index) untag(e *entry) {
	for _, key := range e.tags {
		if x.tags[key] == e.ref {
			delete(x.tags, key)
		}
	}
}

// setAlarms sets an alarm for each time at which the thread changes by itself, unless old has that alarm already.
func (x *index) setAlarms(old *entry, t *thread.Thread) {
	if t.Status.Terminal() {
		return
	}
	now := time.Now()
	if !t.Deadline.IsZero() && (old == nil || !old.deadline.Equal(t.Deadline) || t.IsExpirable() && !now.Before(t.Deadline)) {
		heap.Push(&x.alarms, alarm{nextMilli(t.Deadline), t.Ref})
	}
	if !t.NotBefore.IsZero() && (old == nil || !old.start.Equal(t.NotBefore)) {
		heap.Push(&x.alarms, alarm{nextMilli(t.NotBefore), t.Ref})
	}
	x.wakeRun()
}

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

// remove removes a thread from the index.
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
	removeRef(x.clients, e.client, ref)
	for _, dependency := range e.depends {
		removeRef(x.waiting, dependency, ref)
	}
	if key := ownKey(e.requester, e.client); x.own[key] == ref {
		delete(x.own, key)
	}
	if len(x.alarms) > 2*len(x.byRef)+1000 { // most belong to removed threads
		x.alarms = slices.DeleteFunc(x.alarms, func(a alarm) bool { return x.byRef[a.ref] == nil })
		heap.Init(&x.alarms)
	}
	if x.newest[e.requester] == e {
		delete(x.newest, e.requester)
		if l := x.lists["from:"+e.requester]; len(l) > 0 {
			x.newest[e.requester] = l[len(l)-1]
		}
	}
}

// removeRef removes ref from one list of m.
func removeRef(m map[string][]string, key, ref string) {
	refs := m[key]
	if i := slices.Index(refs, ref); i >= 0 {
		m[key] = slices.Delete(slices.Clone(refs), i, i+1)
	}
	if len(m[key]) == 0 {
		delete(m, key)
	}
}

// load fills an empty index.
func (x *index) load(threads []*thread.Thread) {
	x.mu.Lock()
	defer x.mu.Unlock()
	slices.SortFunc(threads, func(a, b *thread.Thread) int { // in list order, so that each insertion is at the end
		return cmp.Or(a.Updated.Compare(b.Updated), cmp.Compare(a.Ref, b.Ref))
	})
	for _, t := range threads {
		x.put(t)
	}
	for _, refs := range x.clients {
		slices.SortFunc(refs, func(a, b string) int { return x.byRef[a].created.Compare(x.byRef[b].created) })
	}
}

func (x *index) get(ref string) *entry {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.byRef[ref]
}

// requester returns the requester of a thread, or "" if the thread does not exist.
func (x *index) requester(ref string) string {
	if e := x.get(ref); e != nil {
		return e.requester
	}
	return ""
}

// hasThreads reports whether an actor with this id is the requester or the holder of a thread.
func (x *index) hasThreads(id string) bool { return x.length("from:"+id)+x.length("held:"+id) > 0 }

// page returns at most limit refs of a list that pass keep, after the position after. next is the zero position on the
// last page.
func (x *index) page(name string, after position, limit int, keep func(*entry) bool) (refs []string, next position) {
	list, next := x.entries(name, after, limit, keep)
	for _, e := range list {
		refs = append(refs, e.ref)
	}
	return refs, next
}

// entries is page, but returns entries. An entry is never changed, only replaced.
func (x *index) entries(name string, after position, limit int, keep func(*entry) bool) (out []*entry, next position) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	l := x.lists[name]
	if after.ref != "" {
		i, _ := slices.BinarySearchFunc(l, &entry{ref: after.ref, updated: after.updated}, (*entry).compare)
		l = l[:i]
	}
	for _, e := range slices.Backward(l) {
		if !keep(e) {
			continue
		}
		if len(out) == limit {
			last := out[limit-1]
			return out, position{last.updated, last.ref}
		}
		out = append(out, e)
	}
	return out, position{}
}

// position is a place in a list: the last thread of a page with its update time then, even if the thread has moved
// since.
type position struct {
	updated time.Time
	ref     string
}

// length returns the length of a list.
func (x *index) length(name string) int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return len(x.lists[name])
}

// nextNumber returns an unused thread number of the day.
func (x *index) nextNumber(day string) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.serials[day]++
	if len(x.serials) > 1000 { // older days are not needed, because new refs have today's date
		for d := range x.serials {
			if d < day {
				delete(x.serials, d)
			}
		}
	}
	return x.serials[day]
}

// String returns the position as an opaque cursor, "" for the zero position.
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
	if err != nil || !ok || numErr != nil || !thread.SafeRef.MatchString(ref) {
		return position{}, thread.Bad("after", "does not come from a page")
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

// ownByClientID returns the requester's newest thread with a client id.
func (x *index) ownByClientID(requester, id string) (string, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	ref, ok := x.own[ownKey(requester, id)]
	return ref, ok
}

// threadByTag returns the thread in which a suggestion or question with this id waits for the requester.
func (x *index) threadByTag(requester, id string) (string, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	ref, ok := x.tags[ownKey(requester, id)]
	return ref, ok
}

func (x *index) newestOf(requester string) (string, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if e := x.newest[requester]; e != nil {
		return e.ref, true
	}
	return "", false
}

// dependents returns the threads that wait for ref, or for a thread that ref replaced.
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
