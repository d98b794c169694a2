// Package outbox decides when and in which order the entries of an outbox are delivered.
//
// It knows nothing about messages and transports: [Config.Attempt] makes one attempt and stores its outcome. The
// entries are in a store that several processes may share; one of them delivers all entries. While [Scheduler.Run]
// runs, that is this process: Run loads the stored entries, and [Scheduler.Add] accepts new ones. The scheduler keeps
// the order within a conversation, but not between conversations (AM-46). It bounds the concurrent attempts, both in
// total and to one peer (AM-79).
//
// Start with [New]; call [Scheduler.Add] for committed entries, and [Scheduler.Run].
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
	"unique"

	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/store"
)

const (
	maxDeliveries = 32              // concurrent attempts
	maxPerPeer    = 4               // concurrent attempts to one peer, so that a hanging peer does not delay the others (AM-79)
	loadPage      = 500             // entries that Run loads at once
	loadPause     = 5 * time.Second // before the store is read again after an error
	releaseGap    = time.Second     // between an attempt and the one that a release causes
	maxReleases   = 100             // releases that the scheduler remembers during an attempt
)

// Entry is an outbox entry that waits for its delivery.
type Entry struct {
	ID       string // see [Scheduler.NewID]
	Conv     store.ConvKey
	Due      time.Time
	InFlight bool // stored as being delivered
}

// Config configures [New]. Everything is required.
type Config struct {
	// Load returns a page of at most limit waiting entries, in the order of their ids. after is "" for the first
	// page, and otherwise next from the previous page. next is "" on the last page.
	Load func(ctx context.Context, after string, limit int) (entries []Entry, next string, err error)
	// Attempt makes one attempt and returns when the next attempt is due, or the zero time if the entry is done. first
	// means that no attempt has begun yet, although the entry is stored as in flight. If the attempt lacked something,
	// such as a connection, the string awaits names it; see [Scheduler.Release].
	Attempt func(ctx context.Context, id string, first bool) (due time.Time, awaits string)
	Logger  *slog.Logger
}

// Scheduler schedules delivery attempts. It is safe for concurrent use.
type Scheduler struct {
	cfg    Config
	wakeup chan struct{} // holds one token if there may be something to do

	mu       sync.Mutex
	state    state
	reload   bool               // entries may be missing
	queues   map[convKey]*queue // each has at least one entry
	ready    queueHeap          // queues that have no active attempt and are not parked, by due time
	peers    map[peer]*peerLoad // peers with an active attempt
	awaiting map[*queue]missing // queues with an active attempt, or whose last attempt lacked something
	active   int                // number of active attempts
	last     int64              // the number in the last id of NewID
	begun    uint64             // number of attempts that have begun
}

// state is what this process does with the outbox.
type state uint8

const (
	stopped state = iota // another process may deliver the entries
	loading              // this process delivers; the stored entries are being loaded
	serving              // this process delivers; all entries are loaded
	skipped              // this process leaves the delivery to another one, see [Scheduler.Skip]
)

// peer is an interned name, because many conversations have the same peer.
type peer = unique.Handle[string]

// convKey is a store.ConvKey with an interned peer.
type convKey struct {
	peer peer
	id   string
}

func newConvKey(c store.ConvKey) convKey { return convKey{unique.Make(c.Peer), c.ID} }

// queue holds the entries of one conversation.
type queue struct {
	key     convKey
	entries []queuedEntry // in the order of their ids
	last    uint64        // the number of its last attempt, counted in [Scheduler.begun]
}

// missing is what was missing for the last attempt of a queue.
type missing struct {
	awaits   string                     // "" while the attempt is active
	ended    time.Time                  // when the attempt ended
	released []func(awaits string) bool // what was released while the attempt was active
}

type queuedEntry struct {
	number int64 // in its id
	due    time.Time
	first  bool // stored as in flight for its first attempt, which has not begun
}

func formatID(number int64) string { return fmt.Sprintf("out_%014x", number) }

func parseID(id string) (number int64, err error) {
	return strconv.ParseInt(strings.TrimPrefix(id, "out_"), 16, 64)
}

// peerLoad counts the active attempts to one peer. Due queues beyond maxPerPeer are parked.
type peerLoad struct {
	active int
	parked []*queue
}

// New returns a scheduler without entries. It starts no background work.
func New(cfg Config) *Scheduler {
	return &Scheduler{
		cfg: cfg, wakeup: make(chan struct{}, 1), queues: make(map[convKey]*queue), peers: make(map[peer]*peerLoad),
		awaiting: make(map[*queue]missing),
	}
}

// NewID returns an id that sorts after all ids that it returned before, and after the id with the number last. last is
// the newest number in the conversation, which may come from another process. number is the number in the returned id.
func (s *Scheduler) NewID(now time.Time, last int64) (id string, number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = max(s.last+1, last+1, now.UnixMicro())
	return formatID(s.last), s.last
}

// Counts returns the number of entries ("queued"), and how many of them are being delivered ("delivering").
func (s *Scheduler) Counts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	queued := 0
	for _, q := range s.queues {
		queued += len(q.entries)
	}
	return map[string]int{"queued": queued, "delivering": s.active}
}

// IsDeliverer reports whether this process delivers the entries of the outbox. If so, a message that it stores is in
// flight at once.
func (s *Scheduler) IsDeliverer() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state == loading || s.state == serving
}

// IsBusy reports whether an attempt is active or due, or may be due because not all entries are loaded.
func (s *Scheduler) IsBusy(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state == stopped || s.state == loading || s.active > 0 || len(s.ready) > 0 && !s.ready[0].entries[0].due.After(now)
}

// origin is where an entry comes from. If the entry is in flight, origin decides whether an attempt may have begun.
type origin uint8

const (
	storedHere      origin = iota // this process has just stored it: no attempt has begun
	leftBehind                    // from the previous process: an attempt may have begun only for the first entry of a queue
	storedElsewhere               // from another process: an attempt may have begun, if that process believed that it delivers
)

// Add schedules entries that this process has just stored, if this process delivers.
func (s *Scheduler) Add(entries ...Entry) { s.add(entries, storedHere) }

// AddRemote schedules entries that another process has stored, if this process delivers.
func (s *Scheduler) AddRemote(entries ...Entry) { s.add(entries, storedElsewhere) }

// Release makes due the entries whose last attempt lacked something that is there now. matches gets what such an entry
// awaits, and reports whether it is there. A released entry is due no earlier than releaseGap after its last attempt.
func (s *Scheduler) Release(matches func(awaits string) bool) {
	s.mu.Lock()
	now := time.Now()
	for q, m := range s.awaiting {
		switch {
		case m.awaits == "" && len(m.released) < maxReleases: // the active attempt may have begun too early
			m.released = append(m.released, matches)
			s.awaiting[q] = m
		case m.awaits != "" && matches(m.awaits):
			q.entries[0].advance(now.Add(max(0, m.ended.Add(releaseGap).Sub(now))))
		}
	}
	heap.Init(&s.ready)
	s.mu.Unlock()
	s.wake()
}

// advance makes an entry due at t, unless it is due earlier.
func (w *queuedEntry) advance(t time.Time) {
	if w.due.After(t) {
		w.due = t
	}
}

// Reload makes Run load the stored entries again, because some may be missing.
func (s *Scheduler) Reload() {
	s.mu.Lock()
	s.reload = true
	s.mu.Unlock()
	s.wake()
}

// add puts entries that are not queued yet into their queues.
func (s *Scheduler) add(entries []Entry, from origin) {
	s.mu.Lock()
	if s.state == stopped || s.state == skipped || len(entries) == 0 {
		s.mu.Unlock()
		return
	}
	for _, e := range entries {
		number, err := parseID(e.ID)
		if err != nil {
			// The log key "letter" stands for an entry; docs/operations.md promises that it does not change.
			s.cfg.Logger.Error("the id of an outbox entry is wrong", "letter", e.ID) // a bug, because NewID makes the ids
			continue
		}
		key := newConvKey(e.Conv)
		q := s.queues[key]
		if q == nil {
			q = &queue{key: key}
			s.queues[key] = q
		}
		i, found := slices.BinarySearchFunc(q.entries, number, func(w queuedEntry, number int64) int { return cmp.Compare(w.number, number) })
		if found {
			continue
		}
		w := queuedEntry{number: number, due: e.Due, first: e.InFlight && (from == storedHere || from == leftBehind && i > 0)}
		q.entries = slices.Insert(q.entries, i, w)
		if len(q.entries) == 1 {
			heap.Push(&s.ready, q)
		} else if i == 0 {
			heap.Init(&s.ready) // the queue may be due earlier now
		}
	}
	s.mu.Unlock()
	s.wake()
}

func (s *Scheduler) wake() { waiting.Wake(s.wakeup) }

// Run makes attempts until ctx ends and the active attempts have ended.
func (s *Scheduler) Run(ctx context.Context) {
	s.setState(loading)
	var attempts sync.WaitGroup
	defer func() {
		s.setState(stopped)
		attempts.Wait()
		s.mu.Lock()
		clear(s.queues)
		clear(s.peers)
		clear(s.awaiting)
		s.ready = nil
		s.mu.Unlock()
	}()
	for err := s.load(ctx, leftBehind); err != nil; err = s.load(ctx, leftBehind) {
		if ctx.Err() != nil {
			return
		}
		s.cfg.Logger.Error("load outbox", "err", err)
		if !waiting.Pause(ctx, loadPause) {
			return
		}
	}
	s.setState(serving)
	for {
		if s.mustReload() {
			if err := s.load(ctx, storedElsewhere); err != nil && ctx.Err() == nil {
				s.cfg.Logger.Error("load outbox", "err", err)
				time.AfterFunc(loadPause, s.Reload)
			}
		}
		next := s.dispatch(ctx, &attempts)
		select {
		case <-ctx.Done():
			return
		case <-s.wakeup:
		case <-time.After(next):
		}
	}
}

// Skip leaves the delivery to another process, so that nothing is due in this process.
func (s *Scheduler) Skip() { s.setState(skipped) }

func (s *Scheduler) setState(to state) {
	s.mu.Lock()
	s.state = to
	s.mu.Unlock()
	s.wake()
}

// mustReload reports whether Reload was called since the last call.
func (s *Scheduler) mustReload() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	reload := s.reload
	s.reload = false
	return reload
}

// load queues the stored entries. If an earlier process ended during an attempt, that attempt was for the first entry
// of a queue, and its outcome is unknown (AM-48).
func (s *Scheduler) load(ctx context.Context, from origin) error {
	for after := ""; ; {
		entries, next, err := s.cfg.Load(ctx, after, loadPage)
		if err != nil {
			return err
		}
		s.add(entries, from)
		if after = next; after == "" {
			return nil
		}
	}
}

// dispatch starts the due attempts and returns how long to wait for the next one.
func (s *Scheduler) dispatch(ctx context.Context, attempts *sync.WaitGroup) time.Duration {
	const idle = 10 * time.Minute // stored due times follow the wall clock, which may be set meanwhile
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
		load := s.peers[q.key.peer]
		if load == nil {
			load = &peerLoad{}
			s.peers[q.key.peer] = load
		}
		if load.active == maxPerPeer {
			load.parked = append(load.parked, q)
			continue
		}
		load.active++
		s.active++
		s.begun++
		q.last, s.awaiting[q] = s.begun, missing{}
		attempts.Go(func() {
			due, awaits := s.cfg.Attempt(ctx, formatID(head.number), head.first)
			s.finish(q, head.number, due, awaits)
		})
	}
	return idle
}

// finish puts a queue back after an attempt for the entry with this number. due and awaits are the results of the
// attempt; a zero due means that the entry is done. The entry need not be the first of its queue any more, because
// commits may be reported out of order.
func (s *Scheduler) finish(q *queue, number int64, due time.Time, awaits string) {
	s.mu.Lock()
	released, now := s.awaiting[q].released, time.Now()
	delete(s.awaiting, q)
	i := slices.IndexFunc(q.entries, func(w queuedEntry) bool { return w.number == number })
	if due.IsZero() {
		q.entries = slices.Delete(q.entries, i, i+1)
	} else {
		q.entries[i].due, q.entries[i].first = due, false
		if awaits != "" {
			s.awaiting[q] = missing{awaits: awaits, ended: now}
			if slices.ContainsFunc(released, func(matches func(string) bool) bool { return matches(awaits) }) {
				q.entries[i].advance(now.Add(releaseGap))
			}
		}
	}
	if len(q.entries) > 0 {
		if head := &q.entries[0]; head.due.IsZero() {
			head.due = now // after the conversations that already wait
		}
		heap.Push(&s.ready, q)
	} else {
		delete(s.queues, q.key)
	}
	s.active--
	load := s.peers[q.key.peer]
	load.active--
	if len(load.parked) > 0 {
		heap.Push(&s.ready, load.parked[0])
		load.parked = load.parked[1:]
	} else if load.active == 0 {
		delete(s.peers, q.key.peer)
	}
	s.mu.Unlock()
	s.wake()
}

// queueHeap orders queues by the due time of their first entry, and then by their last attempt, earliest first.
type queueHeap []*queue

func (h queueHeap) Len() int      { return len(h) }
func (h queueHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *queueHeap) Push(x any)   { *h = append(*h, x.(*queue)) }
func (h queueHeap) Less(i, j int) bool {
	return cmp.Or(h[i].entries[0].due.Compare(h[j].entries[0].due), cmp.Compare(h[i].last, h[j].last)) < 0
}

func (h *queueHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return last
}
