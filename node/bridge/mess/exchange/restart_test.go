package exchange

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestRestart: after a restart the exchange has the same threads, order, ids and numbers of the day. Time stands still
// except in the sleeps: changes of one thread within a millisecond are dated ahead of the clock, and a later change of
// another thread would then be listed behind them.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.executor("bob")
		a := l.request("agent", "{id: a, intent: one}")
		b := l.request("agent", "{id: b, intent: two, constraints: {depends_on: [a]}}")
		l.status("bob", a, "needs_input, questions: [{field: q, question: Why?}]")
		time.Sleep(time.Second)
		again := labOn(t, l.store)
		again.do("agent", "- reply: {re: q, answers: {q: because}}")
		again.want(a, thread.InProgress)
		time.Sleep(time.Second)
		c := again.request("agent", "{intent: three}")
		if c == a || c == b || !strings.HasSuffix(c, "-003") {
			t.Errorf("ref = %s", c)
		}
		time.Sleep(time.Second)
		again.status("bob", "a", "completed")
		again.want(b, thread.Received)
		page, err := again.List(t.Context(), Owner("test"), "", "", 10)
		var refs []string
		for _, s := range page.Threads {
			refs = append(refs, s.Ref)
		}
		if err != nil || !slices.Equal(refs, []string{b, a, c}) { // b is offered because a was completed
			t.Errorf("the list has %s, %v, want %s", refs, err, []string{b, a, c})
		}
		again.status("bob", b, "completed") // a dependency stays as long as the thread is open
		old := labOn(t, l.store)
		old.cfg.Retention = time.Nanosecond
		if err := old.Load(); err != nil {
			t.Fatal(err)
		}
		if n, err := old.Purge(t.Context(), time.Now().Add(time.Hour)); err != nil || n != 2 {
			t.Errorf("%d threads were removed, %v; want the two that are completed", n, err)
		}
		if messages, err := old.Messages(t.Context(), a); err != nil || len(messages) != 0 {
			t.Errorf("%d messages are left, %v", len(messages), err)
		}
	})
}

// BenchmarkOpenThreads creates 100,000 open threads, pages through them and restarts.
func BenchmarkOpenThreads(b *testing.B) {
	for b.Loop() {
		l := newLab(b)
		l.executor("bob", "knife")
		const threads, workers = 100_000, 128
		work := make(chan int)
		done := make(chan error, workers)
		start := time.Now()
		for range workers {
			go func() {
				for i := range work {
					body := wire.Obj(wire.TextField("intent", fmt.Sprintf("request number %d", i)), wire.Field("requires", wire.Texts([]string{"knife"})))
					if _, err := l.Do(context.Background(), actor(fmt.Sprintf("agent%d", i%100)), thread.Block{{Type: "request", Body: body}}, Options{}); err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
		}
		for i := range threads {
			work <- i
		}
		close(work)
		for range workers {
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(threads/time.Since(start).Seconds(), "creates/s")
		var times []time.Duration
		after := ""
		for range 500 {
			at := time.Now()
			page, err := l.List(b.Context(), Owner("test"), thread.Received, after, 100)
			if err != nil || len(page.Threads) != 100 {
				b.Fatal(len(page.Threads), err)
			}
			times = append(times, time.Since(at))
			after = page.Next
		}
		slices.Sort(times)
		b.ReportMetric(float64(times[250].Microseconds())/1000, "page-p50-ms")
		b.ReportMetric(float64(times[495].Microseconds())/1000, "page-p99-ms")
		start = time.Now()
		again := labOn(b, l.store)
		if err := again.Load(); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(start).Seconds(), "restart-s")
	}
}
