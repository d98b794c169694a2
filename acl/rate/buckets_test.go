package rate_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/agentmesh/agentmesh/acl/rate"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestTake(t *testing.T) {
	for _, tt := range []struct {
		name  string
		limit rate.Limit
		burst int
		wait  time.Duration // of the first call that must wait
	}{
		{"10 an hour", rate.PerHour(10), 10, 360 * time.Second},
		{"60 an hour", rate.PerHour(60), 60, 60 * time.Second},
		{"100 an hour", rate.PerHour(100), 100, 36 * time.Second},
		{"120 a minute", rate.PerMinute(120), 120, 500 * time.Millisecond},
		{"one at all", rate.PerHour(1), 1, time.Hour},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := rate.NewBuckets(tt.limit, tt.burst, 10)
			for i := range tt.burst {
				if wait, ok := b.Take("k", start); !ok {
					t.Fatalf("Take %d of %d = %v, false, want ok", i+1, tt.burst, wait)
				}
			}
			if wait, ok := b.Take("k", start); ok || wait != tt.wait {
				t.Errorf("Take of an empty bucket = %v, %v, want %v, false", wait, ok, tt.wait)
			}
			if wait := b.Peek("k", start); wait != tt.wait {
				t.Errorf("Peek of an empty bucket = %v, want %v", wait, tt.wait)
			}
			if wait, ok := b.Take("k", start.Add(tt.wait-time.Nanosecond)); ok || wait != time.Nanosecond {
				t.Errorf("Take before the wait is over = %v, %v, want 1ns, false", wait, ok)
			}
			if wait, ok := b.Take("k", start.Add(tt.wait)); !ok {
				t.Errorf("Take after the wait = %v, false, want ok", wait)
			}
			if wait, ok := b.Take("other", start); !ok {
				t.Errorf("Take of another key = %v, false, want ok", wait)
			}
		})
	}
}

func TestPeekTakesNothing(t *testing.T) {
	b := rate.NewBuckets(rate.PerHour(1), 1, 1)
	for range 3 {
		if wait := b.Peek("k", start); wait != 0 {
			t.Fatalf("Peek of a full bucket = %v, want 0", wait)
		}
	}
	if _, ok := b.Take("k", start); !ok {
		t.Error("Take after Peek was refused")
	}
}

func TestNilIsNoLimit(t *testing.T) {
	var b *rate.Buckets
	for range 1000 {
		if _, ok := b.Take("k", start); !ok {
			t.Fatal("Take of a nil *Buckets was refused")
		}
	}
	if wait := b.Peek("k", start); wait != 0 {
		t.Errorf("Peek of a nil *Buckets = %v, want 0", wait)
	}
	if err := b.Restore(b.Snapshot(start), start); err != nil {
		t.Errorf("Restore of a nil *Buckets: %v", err)
	}
}

func TestNewBucketsPanics(t *testing.T) {
	for _, args := range []struct {
		limit       rate.Limit
		burst, keys int
	}{{0, 1, 1}, {1, 0, 1}, {1, 1, 0}, {-1, 1, 1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("NewBuckets(%v) did not panic", args)
				}
			}()
			rate.NewBuckets(args.limit, args.burst, args.keys)
		}()
	}
}

// TestBound checks that at the bound, a key without a bucket waits until some bucket is full, and a limited key stays
// limited (AM-43).
func TestBound(t *testing.T) {
	b := rate.NewBuckets(rate.PerMinute(60), 2, 3)
	for _, key := range []string{"attacker", "attacker", "b", "b", "c"} {
		if _, ok := b.Take(key, start); !ok {
			t.Fatalf("Take(%q) was refused", key)
		}
	}
	if wait, ok := b.Take("new", start); ok || wait != time.Second {
		t.Errorf("Take of an unknown key at the bound = %v, %v, want 1s, false", wait, ok)
	}
	if wait := b.Peek("new", start); wait != time.Second {
		t.Errorf("Peek of an unknown key at the bound = %v, want 1s", wait)
	}
	if _, ok := b.Take("c", start); !ok {
		t.Error("Take of a known key at the bound was refused")
	}
	now := start.Add(2 * time.Second) // all three buckets are full
	b.Take("attacker", now)
	b.Take("attacker", now)
	if _, ok := b.Take("new", now); !ok {
		t.Error("Take of an unknown key was refused although buckets are full")
	}
	if _, ok := b.Take("attacker", now); ok {
		t.Error("the key that is limited was forgotten")
	}
}

// TestMillionKeys checks that a million keys of strangers take no more memory than the bound allows, and never reset a
// key that is at its limit (AM-43, THREATS row 25).
func TestMillionKeys(t *testing.T) {
	const bound = 10_000
	b := rate.NewBuckets(rate.PerMinute(10), 10, bound)
	for range 10 {
		b.Take("attacker", start)
	}
	before := heapBytes()
	served := 0
	for i := range 1_000_000 {
		now := start.Add(time.Duration(i) * time.Microsecond) // one second in total
		if _, ok := b.Take(fmt.Sprintf("key-%d", i), now); ok {
			served++
		}
		if i%1000 == 0 {
			if _, ok := b.Take("attacker", now); ok {
				t.Fatalf("the attacker was reset after %d keys", i)
			}
		}
	}
	if served != bound-1 {
		t.Errorf("%d unknown keys were served within a second, want %d", served, bound-1)
	}
	if grown := heapBytes() - before; grown > 400*bound {
		t.Errorf("a million keys took %d bytes, want at most %d", grown, 400*bound)
	}
	runtime.KeepAlive(b)
}

func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestClockSetBack(t *testing.T) {
	b := rate.NewBuckets(rate.PerHour(10), 10, 10)
	for range 10 {
		b.Take("k", start)
	}
	b.Take("drawn once", start)
	if wait := b.Peek("k", start.Add(-48*time.Hour)); wait != 360*time.Second {
		t.Errorf("Peek two days before = %v, want that of an empty bucket, 6m0s", wait)
	}
	if wait := b.Peek("drawn once", start.Add(-48*time.Hour)); wait != 0 {
		t.Errorf("Peek of a bucket with nine tokens two days before = %v, want 0", wait)
	}
	if wait := b.Peek("k", start.Add(-48*time.Hour+6*time.Minute)); wait != 0 {
		t.Errorf("Peek six minutes later by the new clock = %v, want 0", wait)
	}
}

// TestNeverMoreThanTheLimit checks that in any period no key gets more than the burst and the tokens that come back
// meanwhile, and that a caller that waits as long as required is served.
func TestNeverMoreThanTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		perHour := rapid.IntRange(1, 200).Draw(t, "per hour")
		b := rate.NewBuckets(rate.PerHour(perHour), perHour, rapid.IntRange(1, 3).Draw(t, "keys"))
		now := start
		taken := map[string]int{}
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "pause")))
			key := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "key")
			peek := b.Peek(key, now)
			wait, ok := b.Take(key, now)
			if ok != (wait == 0) || wait != peek {
				t.Fatalf("Peek = %v, Take = %v, %v", peek, wait, ok)
			}
			if ok {
				taken[key]++
			}
			maxTokens := perHour + int(now.Sub(start).Seconds()*float64(perHour)/3600+1e-6)
			if taken[key] > maxTokens {
				t.Fatalf("%d tokens of %q in %v, want at most %d", taken[key], key, now.Sub(start), maxTokens)
			}
			if !ok && rapid.Bool().Draw(t, "come back") {
				now = now.Add(wait)
				if wait, ok := b.Take(key, now); !ok {
					t.Fatalf("a caller that waited as required must wait again: %v", wait)
				}
				taken[key]++
			}
		}
	})
}

func TestSnapshot(t *testing.T) {
	limit, burst := rate.PerHour(10), 10
	b := rate.NewBuckets(limit, burst, 10)
	b.Take("full again", start.Add(-time.Hour))
	for range 10 {
		b.Take("empty", start)
	}
	data := b.Snapshot(start)

	restored := rate.NewBuckets(limit, burst, 10)
	if err := restored.Restore(data, start.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if wait := restored.Peek("empty", start.Add(time.Minute)); wait != 300*time.Second {
		t.Errorf("an empty bucket a minute after the restart waits %v, want 5m0s", wait)
	}
	if got := string(restored.Snapshot(start.Add(time.Minute))); got != string(data) {
		t.Errorf("second snapshot = %s, want %s", got, data)
	}

	smaller := rate.NewBuckets(rate.PerMinute(1), 1, 1)
	if err := smaller.Restore(data, start); err != nil {
		t.Fatal(err)
	}
	if wait := smaller.Peek("empty", start); wait != time.Minute {
		t.Errorf("under a smaller limit it waits %v, want 1m0s", wait)
	}
	if err := smaller.Restore([]byte("{"), start); err == nil {
		t.Error("Restore of a damaged snapshot = nil, want an error")
	}
}

func BenchmarkTake(b *testing.B) {
	buckets := rate.NewBuckets(rate.PerMinute(1000), 1000, 100_000)
	keys := make([]string, 50_000)
	for i := range keys {
		keys[i] = fmt.Sprintf("key-%d", i)
	}
	now, i := start, 0
	for b.Loop() {
		now = now.Add(time.Microsecond)
		buckets.Take(keys[i%len(keys)], now)
		i++
	}
}

// TestTakeOrReplace checks that at the bound, TakeOrReplace serves a key without a bucket, and still limits the others.
func TestTakeOrReplace(t *testing.T) {
	b, now := rate.NewBuckets(rate.PerMinute(2), 2, 10), time.Now()
	for i := range 10 {
		for range 2 {
			b.TakeOrReplace(fmt.Sprint("evil", i), now)
		}
	}
	if _, ok := b.TakeOrReplace("evil5", now); ok {
		t.Error("a key has more than its limit")
	}
	if _, ok := b.Take("newcomer", now); ok {
		t.Error("Take serves a key without a bucket at the bound")
	}
	if _, ok := b.TakeOrReplace("newcomer", now); !ok {
		t.Error("TakeOrReplace refuses a key without a bucket")
	}
}
