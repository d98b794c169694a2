// Package outbox decides when and in which order the entries of an outbox are delivered.
//
// It knows no message and no transport: [Config.Attempt] makes one attempt and stores how it ended. The entries
// themselves are in the store, and a [Scheduler] is rebuilt from them at start. It keeps the order within a
// conversation and nowhere else (AM-46), and bounds the attempts at once, in all and to one peer (AM-79).
//
// Start with [New]; call [Scheduler.Add] for what is committed, and [Scheduler.Run].
package outbox

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"log/slog"
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
	loadPause     = 5 * time.Second // after a store that could not be read
)

// Entry is what is known here of one entry that waits for its delivery.
type Entry struct {
	ID       string // see [Scheduler.NewID]
	Conv     store.ConvKey
	Due      time.Time
	InFlight bool // it is stored as being delivered
}

// Config configures [New]. Everything is required.
type Config struct {
	// Load returns at most limit waiting entries after the id named after; next is empty on the last page.
	Load func(ctx context.Context, after string, limit int) (entries []Entry, next string, err error)
	// Attempt makes one attempt and returns when the next one is due, the zero time if there is none. first reports
	// that no attempt for the entry has begun, although it is stored as in flight.
	Attempt func(ctx context.Context, id string, first bool) (due time.Time)
	Logger  *slog.Logger
}

// Scheduler schedules the attempts. It is safe for concurrent use.
type Scheduler struct {
	cfg  Config
	kick chan struct{} // holds one token when there may be something to do

	mu     sync.Mutex
	queues map[store.ConvKey]*queue // with at least one entry
	ready  queueHeap                // queues without an attempt under way, by when they are due
	peers  map[string]*peerLoad     // with an attempt under way
	active int                      // attempts under way
	last   int64                    // of NewID
	turns  uint64                   // attempts that began
}

// queue holds the entries of one conversation.
type queue struct {
	key     store.ConvKey
	entries []waiting // in the order of their ids
	turn    uint64    // when its last attempt began, in [Scheduler.turns]
}

// waiting is an entry in a queue.
type waiting struct {
	id    string
	due   time.Time
	first bool // it is stored as in flight for its first attempt, and no attempt has begun
}

// peerLoad counts the attempts to one peer. Queues that are due beyond its share are parked.
type peerLoad struct {
	active int
	parked []*queue
}

// New returns a scheduler without entries. It starts nothing.
func New(cfg Config) *Scheduler {
	return &Scheduler{
		cfg: cfg, kick: make(chan struct{}, 1), queues: make(map[store.ConvKey]*queue), peers: make(map[string]*peerLoad),
	}
}

// NewID returns an id that sorts after every id that this process gave before.
func (s *Scheduler) NewID(now time.Time) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = max(s.last+1, now.UnixMicro())
	return fmt.Sprintf("out_%014x", s.last)
}

// Counts returns how many entries wait or are on their way ("queued"), and how many are on their way ("delivering").
func (s *Scheduler) Counts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	queued := 0
	for _, q := range s.queues {
		queued += len(q.entries)
	}
	return map[string]int{"queued": queued, "delivering": s.active}
}

// IsBusy reports whether an attempt is under way or due.
func (s *Scheduler) IsBusy(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active > 0 || len(s.ready) > 0 && !s.ready[0].entries[0].due.After(now)
}

// Add schedules entries that this process has just stored.
func (s *Scheduler) Add(entries ...Entry) {
	if len(entries) > 0 {
		s.add(entries, true)
	}
}

// add puts entries into their queues, except those that are there.
func (s *Scheduler) add(entries []Entry, stored bool) {
	s.mu.Lock()
	for _, e := range entries {
		if n, err := strconv.ParseInt(strings.TrimPrefix(e.ID, "out_"), 16, 64); err == nil {
			s.last = max(s.last, n) // whatever the clock did meanwhile
		}
		q := s.queues[e.Conv]
		if q == nil {
			q = &queue{key: e.Conv}
			s.queues[e.Conv] = q
		}
		at, found := slices.BinarySearchFunc(q.entries, e.ID, func(w waiting, id string) int { return strings.Compare(w.id, id) })
		if found {
			continue
		}
		w := waiting{id: e.ID, due: e.Due, first: e.InFlight && (stored || at > 0)}
		q.entries = slices.Insert(q.entries, at, w)
		if len(q.entries) == 1 {
			heap.Push(&s.ready, q)
		} else if at == 0 {
			heap.Init(&s.ready) // the queue may be due earlier now
		}
	}
	s.mu.Unlock()
	s.poke()
}

func (s *Scheduler) poke() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// Run makes the attempts until ctx ends, and returns when those under way have ended.
func (s *Scheduler) Run(ctx context.Context) {
	for {
		err := s.load(ctx)
		if err == nil {
			break
		}
		s.cfg.Logger.Error("load outbox", "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(loadPause):
		}
	}
	var attempts sync.WaitGroup
	defer attempts.Wait()
	for {
		next := s.dispatch(ctx, &attempts)
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-s.kick:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// load takes up what an earlier process left. Only the first entry of a queue can have been on its way when that process
// ended, and then nobody knows what became of it (AM-48).
func (s *Scheduler) load(ctx context.Context) error {
	for after := ""; ; {
		entries, next, err := s.cfg.Load(ctx, after, loadPage)
		if err != nil {
			return err
		}
		s.add(entries, false)
		if after = next; after == "" {
			return nil
		}
	}
}

// dispatch starts the attempts that are due and returns how long to wait for the next one.
func (s *Scheduler) dispatch(ctx context.Context, attempts *sync.WaitGroup) time.Duration {
	const idle = 10 * time.Minute // what a process before this one put off is due by the wall clock, which may be set
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for len(s.ready) > 0 && s.active < maxDeliveries {
		q := s.ready[0]
		head := q.entries[0]
		if wait := head.due.Sub(now); wait > 0 {
			return min(wait, idle)
		}
		heap.Pop(&s.ready)
		load := s.peers[q.key.Peer]
		if load == nil {
			load = &peerLoad{}
			s.peers[q.key.Peer] = load
		}
		if load.active == maxPerPeer {
			load.parked = append(load.parked, q)
			continue
		}
		load.active++
		s.active++
		s.turns++
		q.turn = s.turns
		attempts.Go(func() { s.end(q, head.id, s.cfg.Attempt(ctx, head.id, head.first)) })
	}
	return idle
}

// end puts a queue back after an attempt for the entry with this id. A zero due means that the entry is done. It
// need not be the first any more: units are reported in another order than they were committed.
func (s *Scheduler) end(q *queue, id string, due time.Time) {
	s.mu.Lock()
	at := slices.IndexFunc(q.entries, func(w waiting) bool { return w.id == id })
	if due.IsZero() {
		q.entries = slices.Delete(q.entries, at, at+1)
	} else {
		q.entries[at].due, q.entries[at].first = due, false
	}
	if len(q.entries) > 0 {
		if head := &q.entries[0]; head.due.IsZero() {
			head.due = time.Now() // behind the conversations that have waited for their turn
		}
		heap.Push(&s.ready, q)
	} else {
		delete(s.queues, q.key)
	}
	s.active--
	load := s.peers[q.key.Peer]
	load.active--
	if len(load.parked) > 0 {
		heap.Push(&s.ready, load.parked[0])
		load.parked = load.parked[1:]
	} else if load.active == 0 {
		delete(s.peers, q.key.Peer)
	}
	s.mu.Unlock()
	s.poke()
}

// queueHeap orders queues by when their first entry is due; of those that are due together, the one that waits longest is
// first.
type queueHeap []*queue

func (h queueHeap) Len() int      { return len(h) }
func (h queueHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *queueHeap) Push(x any)   { *h = append(*h, x.(*queue)) }
func (h queueHeap) Less(i, j int) bool {
	return cmp.Or(h[i].entries[0].due.Compare(h[j].entries[0].due), cmp.Compare(h[i].turn, h[j].turn)) < 0
}

func (h *queueHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return last
}
