package rate

import (
	"container/heap"
	"encoding/json"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Limit is the number of tokens that come back per second.
type Limit float64

// PerHour returns the limit of n tokens per hour.
func PerHour(n int) Limit { return Limit(float64(n) / 3600) }

// PerMinute returns the limit of n tokens per minute.
func PerMinute(n int) Limit { return Limit(float64(n) / 60) }

// Buckets are token buckets of one size, by key. They are safe for concurrent use. A nil *Buckets is a limit that is
// switched off and never refuses.
type Buckets struct {
	interval time.Duration // time in which one token comes back
	whole    time.Duration // time in which an empty bucket becomes full
	maxKeys  int
	refused  atomic.Uint64

	mu    sync.Mutex
	keys  map[string]*bucket
	order fullHeap      // all buckets, with the one that is full first on top
	last  time.Time     // latest time by the buckets' own clock
	ahead time.Duration // how far the own clock is ahead of the callers' clock
}

// stepBack is how far the callers' clock may run back before that counts as a step of the clock. Concurrent callers may
// pass times that are slightly out of order.
const stepBack = time.Second

// clock returns the time by the buckets' own clock, which never runs back. Otherwise a clock that is set back by an
// hour would make every wait an hour longer.
func (b *Buckets) clock(now time.Time) time.Time {
	now = now.Add(b.ahead)
	if back := b.last.Sub(now); back > stepBack {
		b.ahead += back
		now = b.last
	}
	if now.After(b.last) {
		b.last = now
	}
	return b.last
}

type bucket struct {
	key   string
	full  time.Time // when it will be full, or became full
	index int       // position in order
}

// NewBuckets returns at most maxKeys buckets that hold burst tokens and refill by limit. It panics if one of the three
// is not positive.
func NewBuckets(limit Limit, burst, maxKeys int) *Buckets {
	if limit <= 0 || math.IsInf(float64(limit), 0) || burst <= 0 || maxKeys <= 0 {
		panic(fmt.Sprintf("rate: limit %v, burst %d, %d keys: must be positive", limit, burst, maxKeys))
	}
	interval := time.Duration(math.Round(float64(time.Second) / float64(limit)))
	return &Buckets{
		interval: interval,
		whole:    interval * time.Duration(burst),
		maxKeys:  maxKeys,
		keys:     make(map[string]*bucket),
	}
}

// Peek returns how long key must wait for a token, or 0 if it has one.
func (b *Buckets) Peek(key string, now time.Time) time.Duration {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now = b.clock(now)
	wait := b.wait(key, now)
	if wait > 0 {
		b.refused.Add(1)
	}
	return wait
}

// Take takes a token of key, or returns how long to wait for one.
func (b *Buckets) Take(key string, now time.Time) (wait time.Duration, ok bool) {
	if b == nil {
		return 0, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now = b.clock(now)
	if wait := b.wait(key, now); wait > 0 {
		b.refused.Add(1)
		return wait, false
	}
	b.set(key, b.debt(key, now)+b.interval, now)
	return 0, true
}

// TakeOver is [Buckets.Take], except that at the bound, a key without a bucket does not wait: it replaces the bucket
// that is closest to full. Use it for keys that strangers can invent.
func (b *Buckets) TakeOver(key string, now time.Time) (wait time.Duration, ok bool) {
	if b == nil {
		return 0, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now = b.clock(now)
	if b.has(key) {
		if wait := b.wait(key, now); wait > 0 {
			b.refused.Add(1)
			return wait, false
		}
	}
	b.set(key, b.debt(key, now)+b.interval, now)
	return 0, true
}

// Refusals returns how often Peek and Take made a caller wait.
func (b *Buckets) Refusals() uint64 {
	if b == nil {
		return 0
	}
	return b.refused.Load()
}

// wait returns how long key must wait. At the bound, a key without a bucket waits until the first bucket is full.
func (b *Buckets) wait(key string, now time.Time) time.Duration {
	if !b.has(key) && len(b.keys) >= b.maxKeys {
		return b.timeToFull(b.order[0], now)
	}
	return max(0, b.debt(key, now)+b.interval-b.whole)
}

func (b *Buckets) has(key string) bool { return b.keys[key] != nil }

// hasRoom reports whether key has a bucket, or can get one without the loss of a bucket that is not full.
func (b *Buckets) hasRoom(key string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now = b.clock(now)
	return b.has(key) || len(b.keys) < b.maxKeys || b.timeToFull(b.order[0], now) == 0
}

// add takes a token of key even from an empty bucket, and at the bound removes the bucket that is closest to full. A
// bucket never owes more than all its tokens.
func (b *Buckets) add(key string, now time.Time) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now = b.clock(now)
	b.set(key, min(b.debt(key, now)+b.interval, b.whole), now)
}

// Return gives back a token that key took.
func (b *Buckets) Return(key string, now time.Time) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now = b.clock(now)
	if b.has(key) {
		b.set(key, max(0, b.debt(key, now)-b.interval), now)
	}
}

// isEmpty reports whether key has an empty bucket, and how long until a token comes back. Unlike [Buckets.Peek], it
// never makes a key without a bucket wait.
func (b *Buckets) isEmpty(key string, now time.Time) (wait time.Duration, empty bool) {
	if b == nil {
		return 0, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now = b.clock(now)
	if b.has(key) {
		wait = max(0, b.debt(key, now)+b.interval-b.whole)
	}
	return wait, wait > 0
}

// debt returns the time after which the bucket of key is full.
func (b *Buckets) debt(key string, now time.Time) time.Duration {
	if k := b.keys[key]; k != nil {
		return b.timeToFull(k, now)
	}
	return 0
}

// timeToFull returns the time after which a bucket is full, which is at most that of an empty bucket.
func (b *Buckets) timeToFull(k *bucket, now time.Time) time.Duration {
	return min(max(0, k.full.Sub(now)), b.whole)
}

// set makes the bucket of key full after debt. At the bound, a new bucket replaces the one that is closest to full.
func (b *Buckets) set(key string, debt time.Duration, now time.Time) {
	if k := b.keys[key]; k != nil {
		k.full = now.Add(debt)
		heap.Fix(&b.order, k.index)
		return
	}
	if len(b.keys) >= b.maxKeys {
		delete(b.keys, heap.Pop(&b.order).(*bucket).key)
	}
	k := &bucket{key: key, full: now.Add(debt)}
	b.keys[key] = k
	heap.Push(&b.order, k)
}

// Snapshot returns the buckets that are not full, for [Buckets.Restore], to the millisecond.
func (b *Buckets) Snapshot(now time.Time) []byte {
	owed := map[string]int64{}
	if b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		own := b.clock(now)
		for key, k := range b.keys {
			if wait := b.timeToFull(k, own); wait > 0 {
				owed[key] = now.Add(wait).UnixMilli()
			}
		}
	}
	data, err := json.Marshal(owed)
	if err != nil {
		panic(fmt.Sprintf("rate: encode snapshot: %v", err)) // cannot happen: a map of strings to numbers
	}
	return data
}

// Restore adds the buckets of a snapshot. The snapshot may have been taken under another limit; its values are cut to
// the bounds of b.
func (b *Buckets) Restore(data []byte, now time.Time) error {
	var owed map[string]int64
	if err := json.Unmarshal(data, &owed); err != nil {
		return fmt.Errorf("decode buckets: %w", err)
	}
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, full := range owed {
		if len(b.keys) >= b.maxKeys {
			break
		}
		if debt := min(time.UnixMilli(full).Sub(now), b.whole); debt > 0 {
			b.set(key, debt, b.clock(now))
		}
	}
	return nil
}

// fullHeap is a heap of buckets, ordered by the time at which they are full.
type fullHeap []*bucket

func (f fullHeap) Len() int           { return len(f) }
func (f fullHeap) Less(i, j int) bool { return f[i].full.Before(f[j].full) }
func (f fullHeap) Swap(i, j int) {
	f[i], f[j] = f[j], f[i]
	f[i].index, f[j].index = i, j
}
func (f *fullHeap) Push(x any) {
	k := x.(*bucket)
	k.index = len(*f)
	*f = append(*f, k)
}
func (f *fullHeap) Pop() any {
	last := len(*f) - 1
	k := (*f)[last]
	(*f)[last] = nil
	*f = (*f)[:last]
	return k
}
