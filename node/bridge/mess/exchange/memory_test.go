package exchange

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// BenchmarkResidentThreads measures the memory that 100,000 threads need, the time of reading them from the store, and
// the time of a page from memory and from the store. Half of the threads have ended, a third have a client id, and a
// tenth have a deadline.
func BenchmarkResidentThreads(b *testing.B) {
	const threads, batch = 100_000, 1000
	l := newLab(b)
	now := time.Now().UTC().Round(time.Millisecond)
	codes := []thread.Code{thread.Received, thread.Completed, thread.InProgress, thread.Completed}
	var changes []store.Change
	for i := range threads {
		at := now.Add(time.Duration(i-threads) * time.Minute / 2)
		th := &thread.Thread{
			Ref: thread.NewThreadRef(at, i+1, ""), Requester: fmt.Sprintf("agent%d", i%100), Status: codes[i%len(codes)], Version: 3,
			Intent: fmt.Sprintf("Find out what number %d of the %s stands for.", i, strings.Repeat("long list ", 5)), Priority: "normal",
			Requires: []thread.Need{{ID: "knife"}}, Created: at, Updated: at.Add(time.Hour),
			History: []thread.Event{{Action: "created", At: at, By: "agent"}},
		}
		if i%3 == 0 {
			th.ClientID = fmt.Sprintf("request-%d", i)
		}
		if th.Status != thread.Received {
			th.Holder = fmt.Sprintf("bob%d", i%20)
		}
		if i%10 == 0 {
			th.Deadline = now.Add(time.Duration(i) * time.Minute)
		}
		changes = append(changes, store.Change{Record: store.Record{NS: NSThreads, Key: th.Ref, Body: wire.MustMarshal(th)}})
		if len(changes) == batch {
			if err := l.records.Apply(b.Context(), changes, now); err != nil {
				b.Fatal(err)
			}
			changes = changes[:0]
		}
	}
	var before, after runtime.MemStats
	for b.Loop() {
		b.StopTimer()
		runtime.GC()
		runtime.ReadMemStats(&before)
		b.StartTimer()
		again := labOn(b, l.store)
		if err := again.Load(); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric((float64(after.HeapAlloc)-float64(before.HeapAlloc))/threads, "heap-B/thread")
		start := time.Now()
		page, err := again.List(b.Context(), Owner("test"), thread.Completed, "", 100)
		if err != nil || len(page.Threads) != 100 {
			b.Fatal(len(page.Threads), err)
		}
		b.ReportMetric(float64(time.Since(start).Microseconds()), "page-µs")
		start = time.Now()
		for _, s := range page.Threads {
			if _, err := again.Read(b.Context(), s.Ref, now); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(time.Since(start).Microseconds()), "page-from-store-µs")
		runtime.KeepAlive(again)
		b.StartTimer()
	}
}
