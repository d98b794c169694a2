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

// entry is what is kept of a thread in memory: enough to list, to find and to wake it, never its text.
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
	start     time.Time // not before
	tags      []string  // keys in index.tags
	external  string
	via       string // the link through which it was asked for, while it is open
	priority  string
	intent    string // "" where it is too long to be kept here
}

// keptIntent is how long an intent may be to be kept in memory, for lists.
const keptIntent = 512

// summary is what a list shows of the thread; whole is false where the store knows more.
func (e *entry) summary() (s Summary, whole bool) {
	return Summary{e.ref, e.client, e.requester, e.holder, e.status, e.intent, e.priority, e.created, e.updated}, e.intent != ""
}

// compare is the order of the lists: oldest change first. A page goes through one from its end (MESS-52).
func (e *entry) compare(o *entry) int {
	return cmp.Or(e.updated.Compare(o.updated), cmp.Compare(e.ref, o.ref))
}

// index is the threads in memory, in the order of their last change, as a whole and by state, requester and holder. It
// follows the store: what it offers is read there before it counts.
type index struct {
	mu       sync.RWMutex
	byRef    map[string]*entry
	lists    map[string][]*entry
	clients  map[string][]string // client id → refs, oldest first
	own      map[string]string   // (requester, client id) → newest ref
	tags     map[string]string   // (requester, id of a suggestion or question that waits) → ref
	newest   map[string]*entry   // of each requester
	waiting  map[string][]string // ref → threads that depend on it
	before   map[string][]string // ref → threads whose place it took
	serials  map[string]int      // day → newest number
	alarms   alarms
	alarmSet chan struct{}
}

func newIndex() *index {
	return &index{
		byRef: map[string]*entry{}, lists: map[string][]*entry{}, clients: map[string][]string{}, tags: map[string]string{},
		own:    map[string]string{},
		newest: map[string]*entry{}, waiting: map[string][]string{}, before: map[string][]string{}, serials: map[string]int{}, alarmSet: make(chan struct{}, 1),
	}
}

const allThreads = "all"

// bare are capabilities without their metadata, which may be large and is kept with the thread.
func bare(needs []thread.Need) []thread.Need {
	out := make([]thread.Need, len(needs))
	for i, n := range needs {
		out[i].ID = n.ID
	}
	return out
}

// lists names the lists that the thread is in.
func (e *entry) lists() []string {
	out := []string{allThreads, "state:" + string(e.status), "from:" + e.requester}
	if e.holder != "" {
		out = append(out, "held:"+e.holder)
	}
	if e.via != "" {
		out = append(out, "via:"+e.via)
	}
	return out
}

// publish takes over a committed thread, unless a newer version is there.
func (x *index) publish(t *thread.Thread) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.put(t)
}

// catchUp publishes a thread that was read from the store if the commit that wrote it has not published it yet. Every
// participant that sees a suggestion or a question in a thread can then answer it by its id.
func (x *index) catchUp(t *thread.Thread) {
	if e := x.get(t.Ref); e == nil || e.version < t.Version {
		x.publish(t)
	}
}

func (x *index) put(t *thread.Thread) {
	old := x.byRef[t.Ref]
	if old != nil && old.version >= t.Version {
		return
	}
	e := &entry{
		ref: t.Ref, client: t.ClientID, requester: t.Requester, holder: t.Holder, status: t.Status, created: t.Created, updated: t.Updated,
		version: t.Version, needs: bare(t.Requires), declined: t.Declined, only: t.Only, depends: t.DependsOn,
		deadline: t.Deadline, start: t.NotBefore, external: t.External, priority: t.Priority,
	}
	if len(t.Intent) <= keptIntent {
		e.intent = t.Intent
	}
	if t.Status.Open() {
		e.via = requestLink(t)
	}
	if old != nil {
		x.unlink(old)
		x.untag(old)
	} else {
		x.first(e)
	}
	x.byRef[t.Ref] = e
	for _, name := range e.lists() {
		i, _ := slices.BinarySearchFunc(x.lists[name], e, (*entry).compare)
		x.lists[name] = slices.Insert(x.lists[name], i, e)
	}
	if n := x.newest[e.requester]; n == nil || n.ref == e.ref || n.created.Before(e.created) || n.created.Equal(e.created) && n.ref < e.ref {
		x.newest[e.requester] = e
	}
	for _, next := range t.Successors {
		if !slices.Contains(x.before[next], t.Ref) {
			x.before[next] = append(x.before[next], t.Ref)
		}
	}
	x.tag(e, t)
	x.wake(old, t)
}

// first does what happens once for each thread.
func (x *index) first(e *entry) {
	if e.client != "" {
		x.clients[e.client] = append(x.clients[e.client], e.ref)
		key := own(e.requester, e.client)
		if before := x.byRef[x.own[key]]; before == nil || !before.created.After(e.created) {
			x.own[key] = e.ref
		}
	}
	for _, on := range e.depends {
		x.waiting[on] = append(x.waiting[on], e.ref)
	}
	x.count(e.ref)
}

// count keeps the number of a day's newest ref. One that leaves no room for more, as a file may bring it, does not count: who
// meets it takes the next number.
func (x *index) count(ref string) {
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

func own(requester, id string) string { return requester + "\x00" + id }

// tag remembers what of a thread its requester can answer by id.
func (x *index) tag(e *entry, t *thread.Thread) {
	add := func(id string) {
		if id != "" {
			key := own(t.Requester, id)
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

// wake sets alarms for what time will do to the thread, each once.
func (x *index) wake(old *entry, t *thread.Thread) {
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
	x.ring()
}

func (x *index) unlink(e *entry) {
	for _, name := range e.lists() {
		l := x.lists[name]
		if i, ok := slices.BinarySearchFunc(l, e, (*entry).compare); ok {
			l = slices.Delete(l, i, i+1)
		}
		if x.lists[name] = l; len(l) == 0 {
			delete(x.lists, name)
		}
	}
}

// drop forgets a thread.
func (x *index) drop(ref string) {
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
	delete(x.before, ref)
	forget(x.clients, e.client, ref)
	for _, on := range e.depends {
		forget(x.waiting, on, ref)
	}
	if key := own(e.requester, e.client); x.own[key] == ref {
		delete(x.own, key)
	}
	if len(x.alarms) > 2*len(x.byRef)+1000 { // of threads that are gone
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

// forget takes ref out of one list of m.
func forget(m map[string][]string, key, ref string) {
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
	slices.SortFunc(threads, func(a, b *thread.Thread) int { // in the order of the lists: each goes to the end
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

// requester returns who opened a thread, "" where there is none.
func (x *index) requester(ref string) string {
	if e := x.get(ref); e != nil {
		return e.requester
	}
	return ""
}

// named says whether somebody of this id has asked for something or works on it.
func (x *index) named(id string) bool { return x.length("from:"+id)+x.length("held:"+id) > 0 }

// page returns at most limit refs of a list that keep lets through, behind the position after.
func (x *index) page(name string, after position, limit int, keep func(*entry) bool) (refs []string, next position) {
	list, next := x.entries(name, after, limit, keep)
	for _, e := range list {
		refs = append(refs, e.ref)
	}
	return refs, next
}

// entries is page for who wants more than refs. An entry is never changed, only replaced.
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

// position names a place in a list: the last thread of a page, as it was then, also where it has moved since.
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

// nextNumber returns a number of the day that no thread has.
func (x *index) nextNumber(day string) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.serials[day]++
	if len(x.serials) > 1000 { // of days gone by only the newest matters: refs of today are made today
		for d := range x.serials {
			if d < day {
				delete(x.serials, d)
			}
		}
	}
	return x.serials[day]
}

// String writes a position as an opaque cursor, "" for none.
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

// maxLook bounds how many threads with the same client id are looked at: ids are a stranger's choice.
const maxLook = 1000

// newestWith returns the newest thread with a client id that keep lets through.
func (x *index) newestWith(id string, keep func(*entry) bool) (string, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	refs := x.clients[id]
	for i := len(refs) - 1; i >= max(0, len(refs)-maxLook); i-- {
		if e := x.byRef[refs[i]]; e != nil && keep(e) {
			return e.ref, true
		}
	}
	return "", false
}

// ownWith returns the requester's newest thread with a client id.
func (x *index) ownWith(requester, id string) (string, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	ref, ok := x.own[own(requester, id)]
	return ref, ok
}

// tagged returns the thread in which a suggestion or question of this id waits for the requester.
func (x *index) tagged(requester, id string) (string, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	ref, ok := x.tags[own(requester, id)]
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

// dependants returns the threads that wait for ref, or for a thread whose place it took.
func (x *index) dependants(ref string) []string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var out []string
	for queue, seen := []string{ref}, map[string]bool{}; len(queue) > 0; queue = queue[1:] {
		if seen[queue[0]] {
			continue
		}
		seen[queue[0]] = true
		out = append(out, x.waiting[queue[0]]...)
		queue = append(queue, x.before[queue[0]]...)
	}
	return out
}
