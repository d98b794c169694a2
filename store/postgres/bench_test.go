//go:build unix

package postgres

import (
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// clientCPU returns the processor time of this process.
func clientCPU() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage) // a benchmark
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkAccept compares the engines on the same disk: acceptances of messages, and the processor time of each here
// and in the server. With three handles, the senders use them in turn, as behind a load balancer.
func BenchmarkAccept(b *testing.B) {
	run := func(b *testing.B, senders int, handles ...store.Store) {
		now, client, server := time.Now(), clientCPU(), pgtest.CPU()
		storetest.Send(b, senders, func(i int) error { return storetest.Accept(b.Context(), handles[i%len(handles)], i, now) })
		b.ReportMetric(float64((clientCPU()-client).Microseconds())/float64(b.N), "client-µs/op")
		b.ReportMetric(float64((pgtest.CPU()-server).Microseconds())/float64(b.N), "server-µs/op")
	}
	for _, senders := range []int{1, 64} {
		b.Run(fmt.Sprintf("bolt/senders=%d", senders), func(b *testing.B) {
			s, err := bolt.Open(b.Context(), filepath.Join(b.TempDir(), "mesh.db"), bolt.Config{})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			run(b, senders, s)
		})
		b.Run(fmt.Sprintf("postgres/senders=%d", senders), func(b *testing.B) {
			run(b, senders, open(b, Config{URL: pgtest.Database(b)}))
		})
	}
	b.Run("three/senders=64", func(b *testing.B) {
		url := pgtest.Database(b)
		run(b, 64, open(b, Config{URL: url}), open(b, Config{URL: url}), open(b, Config{URL: url}))
	})
}

// BenchmarkSearch searches 20,000 cards by a term, on a second handle whose index follows the first one.
func BenchmarkSearch(b *testing.B) {
	url := pgtest.Database(b)
	s, now := open(b, Config{URL: url}), time.Now()
	storeCards := func(i int) error {
		card := store.Card{
			ID: fmt.Sprintf("am_%06d", i), Body: make([]byte, 1500), Expires: now.Add(time.Hour),
			Terms: []string{fmt.Sprintf("word:%d", i%1000), fmt.Sprintf("cap:%d", i%20), "lang:en"},
		}
		_, err := s.Cards().Put(b.Context(), store.PutCard{Card: card, Now: now})
		return err
	}
	done := make(chan error, 64)
	for sender := range 64 {
		go func() {
			for i := sender; i < 20_000; i += 64 {
				if err := storeCards(i); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range 64 {
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
	start := time.Now()
	reader := open(b, Config{URL: url})
	b.Logf("opened with 20,000 cards in %v", time.Since(start))
	storetest.Send(b, 1, func(i int) error {
		_, err := reader.Cards().List(b.Context(), store.CardQuery{All: []string{fmt.Sprintf("cap:%d", i%20), "lang:en"}, Limit: 20, Now: now})
		return err
	})
}
