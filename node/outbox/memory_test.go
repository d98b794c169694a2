package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// BenchmarkResidentEntries measures the memory that 100,000 waiting entries need, with one and with a hundred entries
// in each conversation. A peer has ten conversations.
func BenchmarkResidentEntries(b *testing.B) {
	const entries = 100_000
	for _, each := range []int{1, 100} {
		b.Run(fmt.Sprint(each, " in a conversation"), func(b *testing.B) {
			load := func(_ context.Context, after string, limit int) (page []Entry, next string, err error) {
				from := 0
				if after != "" {
					fmt.Sscanf(after, "out_%x", &from)
				}
				for i := from; i < min(from+limit, entries); i++ {
					conv := i / each
					page = append(page, Entry{
						ID: fmt.Sprintf("out_%014x", i+1), Due: time.Now().Add(time.Hour).UTC().Round(0),
						Conv: store.ConvKey{Peer: fmt.Sprintf("am_peer_%d_%s", conv/10, strings.Repeat("x", 12)), ID: fmt.Sprintf("conv_%d_%s", conv, strings.Repeat("y", 20))},
					})
				}
				if from+limit < entries {
					next = page[limit-1].ID
				}
				return page, next, nil
			}
			var before, after runtime.MemStats
			for b.Loop() {
				runtime.GC()
				runtime.ReadMemStats(&before)
				s := New(Config{Load: load, Logger: slog.New(slog.DiscardHandler)})
				ctx, stop := context.WithCancel(b.Context())
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					s.Run(ctx)
				}()
				for s.Counts()["queued"] < entries {
					time.Sleep(10 * time.Millisecond)
				}
				runtime.GC()
				runtime.ReadMemStats(&after)
				b.ReportMetric((float64(after.HeapAlloc)-float64(before.HeapAlloc))/entries, "heap-B/entry")
				stop()
				<-ended
			}
		})
	}
}
