package rate

import (
	"container/heap"
	"encoding/json"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Limit is the number of tokens that a bucket regains per second.
type Limit float64

// PerHour returns the limit of n tokens per hour.
func PerHour(n int) Limit { return Limit(float64(n) / 3600) }

// PerMinute returns the limit of n tokens per minute.
func PerMinute(n int) Limit { return Limit(float64(n) / 60) }

// Buckets holds token buckets whose keys are strings.
type Buckets = BucketsBy[string]

// BucketsBy holds a token bucket for each of at most maxKeys keys. All its buckets have the same size. It is safe for
// concurrent use. A nil *BucketsBy is a limit that is switched off.
type BucketsBy[K comparable] struct {
	interval time.Duration // time in which a bucket regains one token
	maxDebt  time.Duration // the largest debt: the time in which an empty bucket becomes full
	maxKeys  int
	refused  atomic.Uint64

	mu    sync.Mutex
	keys  map[K]*bucket[K]
	order fullHeap[K]   // all buckets; the first one becomes full before the others
	last  time.Time     // latest time that clock returned
	ahead time.Duration // the time that clock adds to the callers' time
}

// maxDisorder is the largest difference between the times of concurrent callers. An even earlier time means that their
// clock was set back.
const maxDisorder = time.Second

// clock converts the callers' time to a time that never runs backward. Otherwise every wait would grow by an hour after
// the callers' clock was set back by an hour.
func (b *BucketsBy[K]) clock(now time.Time) time.Time {
	now = now.Add(b.ahead)
	if back := b.last.Sub(now); back > maxDisorder {
		b.ahead += back
		now = b.last
	}
	if now.After(b.last) {
		b.last = now
	}
	return b.last
}

// lock locks b, and returns the caller's time by the clock of b.
func (b *BucketsBy[K]) lock(now time.Time) time.Time {
	b.mu.Lock()
	return b.clock(now)
}

type bucket[K comparable] struct {
	key    K
	fullAt time.Time // the time at which the bucket will be full, or became full
	index  int       // position in order
}

// NewBuckets returns Buckets for at most maxKeys keys. Each bucket holds burst tokens and refills at the given limit.
// It panics if an argument is not positive.
func NewBuckets(limit Limit, burst, maxKeys int) *Buckets {
	return newBucketsBy[string](limit, burst, maxKeys)
}

func newBucketsBy[K comparable](limit Limit, burst, maxKeys int) *BucketsBy[K] {
	if limit <= 0 || math.IsInf(float64(limit), 0) || burst <= 0 || maxKeys <= 0 {
		panic(fmt.Sprintf("rate: limit %v, burst %d, %d keys: must be positive", limit, burst, maxKeys))
	}
	interval := time.Duration(math.Round(float64(time.Second) / float64(limit)))
	return &BucketsBy[K]{
		interval: interval,
		maxDebt:  interval * time.Duration(burst),
		maxKeys:  maxKeys,
		keys:     make(map[K]*bucket[K]),
	}
}

// Peek returns how long key must wait for a token, or 0 if it has one.
func (b *BucketsBy[K]) Peek(key K, now time.Time) time.Duration {
	if b == nil {
		return 0
	}
	now = b.lock(now)
	defer b.mu.Unlock()
	wait := b.wait(key, now)
	if wait > 0 {
		b.refused.Add(1)
	}
	return wait
}

// Take takes a token from the bucket of key, or returns how long key must wait for one. While maxKeys buckets exist, a
// key without a bucket waits until one of them is full.
func (b *BucketsBy[K]) Take(key K, now time.Time) (wait time.Duration, ok bool) {
	return b.take(key, now, false)
}

// TakeOrReplace is [BucketsBy.Take] for keys that strangers can invent: a key without a bucket never waits, because its
// bucket replaces the one that is closest to full.
func (b *BucketsBy[K]) TakeOrReplace(key K, now time.Time) (wait time.Duration, ok bool) {
	return b.take(key, now, true)
}

// take is [BucketsBy.TakeOrReplace] if replace is set, otherwise [BucketsBy.Take].
func (b *BucketsBy[K]) take(key K, now time.Time, replace bool) (wait time.Duration, ok bool) {
	if b == nil {
		return 0, true
	}
	now = b.lock(now)
	defer b.mu.Unlock()
	if !replace || b.has(key) {
		wait = b.wait(key, now)
	}
	if wait > 0 {
		b.refused.Add(1)
		return wait, false
	}
	b.set(key, b.debt(key, now)+b.interval, now)
	return 0, true
}

// Refusals returns how often Peek, Take and TakeOrReplace made a caller wait.
func (b *BucketsBy[K]) Refusals() uint64 {
	if b == nil {
		return 0
	}
	return b.refused.Load()
}

// wait returns how long key must wait for a token, or for a bucket if it has none.
func (b *BucketsBy[K]) wait(key K, now time.Time) time.Duration {
	if !b.has(key) && len(b.keys) >= b.maxKeys {
		return b.timeToFull(b.order[0], now)
	}
	return max(0, b.debt(key, now)+b.interval-b.maxDebt)
}

func (b *BucketsBy[K]) has(key K) bool { return b.keys[key] != nil }

// hasRoom reports whether key has a bucket or can get one. A new bucket may replace only a bucket that is full.
func (b *BucketsBy[K]) hasRoom(key K, now time.Time) bool {
	now = b.lock(now)
	defer b.mu.Unlock()
	return b.has(key) || len(b.keys) < b.maxKeys || b.timeToFull(b.order[0], now) == 0
}

// charge is [BucketsBy.TakeOrReplace] without refusals: an empty bucket stays empty.
func (b *BucketsBy[K]) charge(key K, now time.Time) {
	if b == nil {
		return
	}
	now = b.lock(now)
	defer b.mu.Unlock()
	b.set(key, min(b.debt(key, now)+b.interval, b.maxDebt), now)
}

// Return gives back a token that key took.
func (b *BucketsBy[K]) Return(key K, now time.Time) {
	if b == nil {
		return
	}
	now = b.lock(now)
	defer b.mu.Unlock()
	if b.has(key) {
		b.set(key, max(0, b.debt(key, now)-b.interval), now)
	}
}

// waitIfEmpty returns how long key must wait for a token, or 0 if its bucket is not empty. Unlike in [BucketsBy.Peek],
// a key without a bucket never waits.
func (b *BucketsBy[K]) waitIfEmpty(key K, now time.Time) time.Duration {
	if b == nil {
		return 0
	}
	now = b.lock(now)
	defer b.mu.Unlock()
	if !b.has(key) {
		return 0
	}
	return b.wait(key, now)
}

// debt returns how long the bucket of key needs to become full. A key without a bucket has a full one.
func (b *BucketsBy[K]) debt(key K, now time.Time) time.Duration {
	if entry := b.keys[key]; entry != nil {
		return b.timeToFull(entry, now)
	}
	return 0
}

// timeToFull returns how long the bucket needs to become full. It returns at most b.maxDebt, even if the clock was set
// back.
func (b *BucketsBy[K]) timeToFull(entry *bucket[K], now time.Time) time.Duration {
	return min(max(0, entry.fullAt.Sub(now)), b.maxDebt)
}

// set stores that the bucket of key will be full after debt. If b has no room for another bucket, set replaces the
// one that is closest to full.
func (b *BucketsBy[K]) set(key K, debt time.Duration, now time.Time) {
	if entry := b.keys[key]; entry != nil {
		entry.fullAt = now.Add(debt)
		heap.Fix(&b.order, entry.index)
		return
	}
	if len(b.keys) >= b.maxKeys {
		delete(b.keys, heap.Pop(&b.order).(*bucket[K]).key)
	}
	entry := &bucket[K]{key: key, fullAt: now.Add(debt)}
	b.keys[key] = entry
	heap.Push(&b.order, entry)
}

// Snapshot encodes the buckets that are not full, for [BucketsBy.Restore]. It rounds times down to milliseconds.
func (b *BucketsBy[K]) Snapshot(now time.Time) []byte {
	fullAt := map[K]int64{} // in Unix milliseconds
	if b != nil {
		clockNow := b.lock(now)
		defer b.mu.Unlock()
		for key, entry := range b.keys {
			if wait := b.timeToFull(entry, clockNow); wait > 0 {
				fullAt[key] = now.Add(wait).UnixMilli()
			}
		}
	}
	return wire.MustMarshal(fullAt)
}

// Restore adds the buckets of a snapshot, which may have been taken under another limit. A restored bucket is at worst
// empty. Restore ignores buckets for which b has no room.
func (b *BucketsBy[K]) Restore(data []byte, now time.Time) error {
	var fullAt map[K]int64
	if err := json.Unmarshal(data, &fullAt); err != nil {
		return fmt.Errorf("decode buckets: %w", err)
	}
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, full := range fullAt {
		if len(b.keys) >= b.maxKeys {
			break
		}
		if debt := min(time.UnixMilli(full).Sub(now), b.maxDebt); debt > 0 {
			b.set(key, debt, b.clock(now))
		}
	}
	return nil
}

// fullHeap orders buckets by fullAt; see [container/heap].
type fullHeap[K comparable] []*bucket[K]

func (f fullHeap[K]) Len() int           { return len(f) }
func (f fullHeap[K]) Less(i, j int) bool { return f[i].fullAt.Before(f[j].fullAt) }
func (f fullHeap[K]) Swap(i, j int) {
	f[i], f[j] = f[j], f[i]
	f[i].index, f[j].index = i, j
}
func (f *fullHeap[K]) Push(x any) {
	entry := x.(*bucket[K])
	entry.index = len(*f)
	*f = append(*f, entry)
}
func (f *fullHeap[K]) Pop() any {
	last := len(*f) - 1
	entry := (*f)[last]
	(*f)[last] = nil
	*f = (*f)[:last]
	return entry
}
