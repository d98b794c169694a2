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

// Limit is how many tokens a second come back.
type Limit float64

// PerHour is the limit of n tokens an hour.
func PerHour(n int) Limit { return Limit(float64(n) / 3600) }

// PerMinute is the limit of n tokens a minute.
func PerMinute(n int) Limit { return Limit(float64(n) / 60) }

// Buckets are token buckets of one size, by key. They are safe for concurrent use. A nil *Buckets is a limit that
// is switched off: it has every token.
type Buckets struct {
	interval time.Duration // one token comes back
	whole    time.Duration // an empty bucket is full again
	maxKeys  int
	refused  atomic.Uint64

	mu    sync.Mutex
	keys  map[string]*bucket
	order fullest       // every bucket, the one that is full first on top
	last  time.Time     // latest time by our own clock
	ahead time.Duration // what our own clock is ahead of the callers'
}

// stepBack is how far the callers' clock may run back before that counts as a step of the clock. Callers at work at the
// same time are a little out of order.
const stepBack = time.Second

// time returns our own time for a caller's. It never runs back: a clock that is set back an hour would make every debt
// an hour longer.
func (b *Buckets) time(now time.Time) time.Time {
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
	full  time.Time // when it will be full, or was
	index int       // in order
}

// NewBuckets returns buckets that hold burst tokens and refill by limit. There are at most maxKeys of them. It
// panics where one of the three is not positive.
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

// Peek returns how long key must wait for a token: 0 where one is there.
func (b *Buckets) Peek(key string, now time.Time) time.Duration {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now = b.time(now)
	wait := b.wait(key, now)
	if wait > 0 {
		b.refused.Add(1)
	}
	return wait
}

// Take takes a token of key, or says how long to wait for one.
func (b *Buckets) Take(key string, now time.Time) (wait time.Duration, ok bool) {
	if b == nil {
		return 0, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now = b.time(now)
	if wait := b.wait(key, now); wait > 0 {
		b.refused.Add(1)
		return wait, false
	}
	b.set(key, b.debt(key, now)+b.interval, now)
	return 0, true
}

// TakeOver is [Buckets.Take], except that at the bound a key without a bucket does not wait: it takes the place of the
// bucket that is next to full. It is for keys that anybody can make up.
func (b *Buckets) TakeOver(key string, now time.Time) (wait time.Duration, ok bool) {
	if b == nil {
		return 0, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now = b.time(now)
	if b.known(key) {
		if wait := b.wait(key, now); wait > 0 {
			b.refused.Add(1)
			return wait, false
		}
	}
	b.set(key, b.debt(key, now)+b.interval, now)
	return 0, true
}

// Refused returns how often Peek and Take told somebody to wait.
func (b *Buckets) Refused() uint64 {
	if b == nil {
		return 0
	}
	return b.refused.Load()
}

// wait is how long key must wait. An unknown key at the bound waits for the first bucket to be full.
func (b *Buckets) wait(key string, now time.Time) time.Duration {
	if !b.known(key) && len(b.keys) >= b.maxKeys {
		return b.left(b.order[0], now)
	}
	return max(0, b.debt(key, now)+b.interval-b.whole)
}

func (b *Buckets) known(key string) bool { return b.keys[key] != nil }

// hasRoom reports whether key has a bucket, or can have one without the loss of a bucket that is not full.
func (b *Buckets) hasRoom(key string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now = b.time(now)
	return b.known(key) || len(b.keys) < b.maxKeys || b.left(b.order[0], now) == 0
}

// add takes a token of key even if there is none, and at the bound forgets the bucket that is next to full. A bucket
// never owes more than an empty one.
func (b *Buckets) add(key string, now time.Time) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now = b.time(now)
	b.set(key, min(b.debt(key, now)+b.interval, b.whole), now)
}

// Return gives key back a token that was taken.
func (b *Buckets) Return(key string, now time.Time) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now = b.time(now)
	if b.known(key) {
		b.set(key, max(0, b.debt(key, now)-b.interval), now)
	}
}

// isEmpty reports whether key has a bucket without a token, and how long until one comes back. Unlike [Buckets.Peek] it
// never blames a key that has no bucket.
func (b *Buckets) isEmpty(key string, now time.Time) (wait time.Duration, empty bool) {
	if b == nil {
		return 0, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now = b.time(now)
	if b.known(key) {
		wait = max(0, b.debt(key, now)+b.interval-b.whole)
	}
	return wait, wait > 0
}

// debt is how long the bucket of key needs to be full.
func (b *Buckets) debt(key string, now time.Time) time.Duration {
	if k := b.keys[key]; k != nil {
		return b.left(k, now)
	}
	return 0
}

// left is never more than an empty bucket needs.
func (b *Buckets) left(k *bucket, now time.Time) time.Duration {
	return min(max(0, k.full.Sub(now)), b.whole)
}

// set makes the bucket of key full after debt. The caller made sure that there is room for a new one.
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

// Snapshot returns the buckets that are not full, for [Buckets.Restore]. It is coarse: to the millisecond.
func (b *Buckets) Snapshot(now time.Time) []byte {
	owed := map[string]int64{}
	if b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		own := b.time(now)
		for key, k := range b.keys {
			if left := b.left(k, own); left > 0 {
				owed[key] = now.Add(left).UnixMilli()
			}
		}
	}
	data, err := json.Marshal(owed)
	if err != nil {
		panic(fmt.Sprintf("rate: encode snapshot: %v", err)) // a map of strings to numbers
	}
	return data
}

// Restore adds the buckets of a snapshot, which may have been taken under another limit: what it says is held to
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
			b.set(key, debt, b.time(now))
		}
	}
	return nil
}

// fullest is a heap of buckets by the instant they are full.
type fullest []*bucket

func (f fullest) Len() int           { return len(f) }
func (f fullest) Less(i, j int) bool { return f[i].full.Before(f[j].full) }
func (f fullest) Swap(i, j int) {
	f[i], f[j] = f[j], f[i]
	f[i].index, f[j].index = i, j
}
func (f *fullest) Push(x any) {
	k := x.(*bucket)
	k.index = len(*f)
	*f = append(*f, k)
}
func (f *fullest) Pop() any {
	last := len(*f) - 1
	k := (*f)[last]
	(*f)[last] = nil
	*f = (*f)[:last]
	return k
}
