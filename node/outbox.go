package node

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

const (
	maxDeliveries = 32 // attempts at once
	maxPerPeer    = 4  // of them to one peer, so that one which hangs does not hold up the others (AM-79)
	loadPage      = 500
)

// outbox knows which letters wait and when they are due. The letters themselves are in the store; this is rebuilt
// from it at start. Order is kept within a conversation and nowhere else (AM-46).
type outbox struct {
	n    *Node
	kick chan struct{} // holds one token when there may be something to do

	mu       sync.Mutex
	lanes    map[store.ConvKey]*lane // with at least one letter
	ready    laneHeap                // lanes without an attempt under way, by when they are due
	peers    map[string]*peerLoad    // with an attempt under way
	active   int                     // attempts under way
	watchers map[string]chan<- Sent  // who waits for the first outcome of a letter
	last     int64                   // of newID
	turns    uint64                  // attempts that began
}

// lane is the queue of one conversation.
type lane struct {
	key     store.ConvKey
	letters []waiting // in the order of their ids
	turn    uint64    // when its last attempt began, in [outbox.turns]
}

// waiting is a letter in a lane.
type waiting struct {
	id    string
	due   time.Time
	fresh bool // it is stored as in flight for its first attempt, and no attempt has begun
}

// peerLoad counts the attempts to one peer. Lanes that are due beyond its share are parked.
type peerLoad struct {
	active int
	parked []*lane
}

func newOutbox(n *Node) *outbox {
	return &outbox{
		n: n, kick: make(chan struct{}, 1),
		lanes: make(map[store.ConvKey]*lane), peers: make(map[string]*peerLoad), watchers: make(map[string]chan<- Sent),
	}
}

// newID returns an id that sorts after every one that this process gave before.
func (o *outbox) newID(now time.Time) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = max(o.last+1, now.UnixMicro())
	return fmt.Sprintf("out_%014x", o.last)
}

// watch returns a channel that gets what the next attempt for the letter brings. It must be taken back by unwatch.
func (o *outbox) watch(id string) <-chan Sent {
	ch := make(chan Sent, 1)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.watchers[id] = ch
	return ch
}

func (o *outbox) unwatch(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.watchers, id)
}

func (o *outbox) tell(id string, sent Sent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if ch := o.watchers[id]; ch != nil {
		ch <- sent // it has room for one, and is told once
		delete(o.watchers, id)
	}
}

// counts says how many letters wait and how many are on their way.
func (o *outbox) counts() map[string]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	queued := 0
	for _, l := range o.lanes {
		queued += len(l.letters)
	}
	return map[string]int{"queued": queued, "delivering": o.active}
}

// busy says whether an attempt is under way or due.
func (o *outbox) busy(now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.active > 0 || len(o.ready) > 0 && !o.ready[0].letters[0].due.After(now)
}

// committed has the new letters among the changes of a committed unit delivered.
func (o *outbox) committed(changes []store.Change) {
	var letters []Letter
	for _, c := range changes {
		if c.Record.NS != nsOutbox || c.Delete || c.IfRev != store.Absent {
			continue
		}
		l, err := decodeLetter(c.Record)
		if err != nil {
			o.n.log.Error("read letter", "letter", c.Record.Key, "err", err) // we wrote it
			continue
		}
		if l.State == SendQueued && l.Attempts == 0 {
			letters = append(letters, l)
		}
	}
	if len(letters) > 0 {
		o.add(letters, true)
	}
}

// add puts letters into their lanes, but for those that are there.
func (o *outbox) add(letters []Letter, fresh bool) {
	o.mu.Lock()
	for _, l := range letters {
		key := l.key()
		if n, err := strconv.ParseInt(strings.TrimPrefix(l.ID, "out_"), 16, 64); err == nil {
			o.last = max(o.last, n) // whatever the clock did meanwhile
		}
		ln := o.lanes[key]
		if ln == nil {
			ln = &lane{key: key}
			o.lanes[key] = ln
		}
		at, found := slices.BinarySearchFunc(ln.letters, l.ID, func(w waiting, id string) int { return strings.Compare(w.id, id) })
		if found {
			continue
		}
		w := waiting{id: l.ID, due: l.Due, fresh: l.InFlight && (fresh || at > 0)}
		ln.letters = slices.Insert(ln.letters, at, w)
		if len(ln.letters) == 1 {
			heap.Push(&o.ready, ln)
		} else if at == 0 {
			heap.Init(&o.ready) // the lane may be due earlier now
		}
	}
	o.mu.Unlock()
	o.poke()
}

func (o *outbox) poke() {
	select {
	case o.kick <- struct{}{}:
	default:
	}
}

// run delivers until ctx ends, and returns when the attempts under way have ended.
func (o *outbox) run(ctx context.Context) {
	for {
		err := o.load(ctx)
		if err == nil {
			break
		}
		o.n.log.Error("load outbox", "err", err)
		if !pause(ctx, sendPauses[0]) {
			return
		}
	}
	var attempts sync.WaitGroup
	defer attempts.Wait()
	for {
		next := o.dispatch(ctx, &attempts)
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-o.kick:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// load takes up what an earlier process left. Only the first letter of a lane can have been on its way when that one
// ended, and then nobody knows what became of it (AM-48).
func (o *outbox) load(ctx context.Context) error {
	for after := ""; ; {
		letters, next, err := o.n.letters(ctx, "state:"+string(SendQueued), after, loadPage)
		if err != nil {
			return err
		}
		o.add(letters, false)
		if after = next; after == "" {
			return nil
		}
	}
}

// dispatch starts the attempts that are due and returns how long to wait for the next one.
func (o *outbox) dispatch(ctx context.Context, attempts *sync.WaitGroup) time.Duration {
	const idle = time.Hour
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	for len(o.ready) > 0 && o.active < maxDeliveries {
		ln := o.ready[0]
		head := ln.letters[0]
		if wait := head.due.Sub(now); wait > 0 {
			return min(wait, idle)
		}
		heap.Pop(&o.ready)
		load := o.peers[ln.key.Peer]
		if load == nil {
			load = &peerLoad{}
			o.peers[ln.key.Peer] = load
		}
		if load.active == maxPerPeer {
			load.parked = append(load.parked, ln)
			continue
		}
		load.active++
		o.active++
		o.turns++
		ln.turn = o.turns
		attempts.Go(func() {
			due := o.n.attempt(ctx, head)
			o.ended(ln, head.id, due)
		})
	}
	return idle
}

// ended puts a lane back after an attempt for the letter with this id. A zero due means that the letter is done. It
// need not be the first any more: steps are told in another order than they were committed.
func (o *outbox) ended(ln *lane, id string, due time.Time) {
	o.mu.Lock()
	at := slices.IndexFunc(ln.letters, func(w waiting) bool { return w.id == id })
	if due.IsZero() {
		ln.letters = slices.Delete(ln.letters, at, at+1)
	} else {
		ln.letters[at].due, ln.letters[at].fresh = due, false
	}
	if len(ln.letters) > 0 {
		if head := &ln.letters[0]; head.due.IsZero() {
			head.due = time.Now() // behind the conversations that have waited for their turn
		}
		heap.Push(&o.ready, ln)
	} else {
		delete(o.lanes, ln.key)
	}
	o.active--
	load := o.peers[ln.key.Peer]
	load.active--
	if len(load.parked) > 0 {
		heap.Push(&o.ready, load.parked[0])
		load.parked = load.parked[1:]
	} else if load.active == 0 {
		delete(o.peers, ln.key.Peer)
	}
	o.mu.Unlock()
	o.poke()
}

// laneHeap orders lanes by when their first letter is due; of those that are due together the one is first that waits longest.
type laneHeap []*lane

func (h laneHeap) Len() int      { return len(h) }
func (h laneHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *laneHeap) Push(x any)   { *h = append(*h, x.(*lane)) }
func (h laneHeap) Less(i, j int) bool {
	return cmp.Or(h[i].letters[0].due.Compare(h[j].letters[0].due), cmp.Compare(h[i].turn, h[j].turn)) < 0
}

func (h *laneHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return last
}
