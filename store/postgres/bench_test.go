//go:build unix && slow

package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
	"github.com/agentmesh/agentmesh/store/engine"
	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// clientCPU returns the processor time of this process.
func clientCPU() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage) // a benchmark
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// nothing is a store that accepts messages and does nothing.
type nothing struct{ store.Store }

type noSteps struct{ store.Steps }

func (nothing) Steps() store.Steps { return noSteps{} }

func (noSteps) Apply(context.Context, store.Step) (store.Applied, error) { return store.Applied{}, nil }

// BenchmarkAccept compares the engines on the same disk: acceptances of messages, and the processor time of each here
// and in the server. See send.
func BenchmarkAccept(b *testing.B) {
	b.Run("none/senders=64", func(b *testing.B) { send(b, 64, nothing{}) }) // the work of the test itself
	for _, senders := range []int{1, 64} {
		b.Run(fmt.Sprintf("bolt/senders=%d", senders), func(b *testing.B) {
			s, err := bolt.Open(b.Context(), filepath.Join(b.TempDir(), "mesh.db"), bolt.Config{})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			send(b, senders, s)
		})
		b.Run(fmt.Sprintf("postgres/senders=%d", senders), func(b *testing.B) {
			send(b, senders, open(b, Config{URL: pgtest.Database(b)}))
		})
	}
	b.Run("three/senders=64", func(b *testing.B) {
		url := pgtest.Database(b)
		send(b, 64, open(b, Config{URL: url}), open(b, Config{URL: url}), open(b, Config{URL: url}))
	})
}

// send accepts messages from a number of senders, who use any of the handles, as behind a load balancer. Each sender
// has conversations of its own.
func send(b *testing.B, senders int, handles ...store.Store) {
	b.Helper()
	server := pgtest.CPU()
	now, client := time.Now(), clientCPU()
	storetest.Send(b, senders, func(i int) error { return storetest.Accept(b.Context(), handles[rand.IntN(len(handles))], i, now) })
	reportCPU(b, clientCPU()-client, pgtest.CPU()-server)
}

// BenchmarkSlowCommit compares one process and three on a server that waits two milliseconds before each write of its
// log to the disk. Commits that wait at the same time share the write.
func BenchmarkSlowCommit(b *testing.B) {
	server := pgtest.New(b, "commit_delay=2000", "commit_siblings=0")
	for _, senders := range []int{64, 192} {
		for _, n := range []int{1, 3} {
			b.Run(fmt.Sprintf("processes=%d/senders=%d", n, senders), func(b *testing.B) {
				schemas++
				url, err := pgtest.Schema(server.URL("postgres"), fmt.Sprint("slow", schemas))
				if err != nil {
					b.Fatal(err)
				}
				var handles []store.Store
				for range n {
					handles = append(handles, open(b, Config{URL: url}))
				}
				send(b, senders, handles...)
			})
		}
	}
}

// schemas is the number of schemas of BenchmarkSlowCommit.
var schemas int

// fill stores cards 1 to n of a mix with COPY.
func fill(b *testing.B, s *Store, mix *storetest.CardMix, n int) {
	b.Helper()
	copyRows := func(tb *table, row func(i int) (key []byte, r row)) {
		rows := pgx.CopyFromSlice(n, func(i int) ([]any, error) {
			key, r := row(i + 1)
			return []any{key, r.num, r.due, r.value}, nil
		})
		if _, err := s.pool.CopyFrom(b.Context(), pgx.Identifier{tb.name}, []string{"key", "num", "due", "value"}, rows); err != nil {
			b.Fatal(err)
		}
	}
	copyRows(cards, func(i int) ([]byte, row) {
		c, err := engine.NormalizeCard(mix.Card(i))
		if err != nil {
			b.Fatal(err)
		}
		c.Seq, c.Rev = uint64(i), store.Rev(i)
		return []byte(c.ID), row{num: int64(i), due: engine.CardDue(c), value: engine.EncodeCard(engine.CardRow{Card: c, Change: c.Seq})}
	})
	copyRows(changes, func(i int) ([]byte, row) {
		line, err := json.Marshal(feedLine{At: mix.Now, Seq: uint64(i)})
		if err != nil {
			b.Fatal(err)
		}
		return []byte(storetest.CardID(i)), row{num: int64(i), due: engine.Never, value: line}
	})
	for _, sql := range []string{"update counters set num = $1 where key in ('cards', 'changes')", "select setval('revisions', $1)"} {
		if _, err := s.pool.Exec(b.Context(), sql, n); err != nil {
			b.Fatal(err)
		}
	}
}

// benchCards returns the number of cards of BenchmarkSearch, which AGENTMESH_BENCH_CARDS can set.
func benchCards(b *testing.B) int {
	n := 20_000
	if v := os.Getenv("AGENTMESH_BENCH_CARDS"); v != "" {
		var err error
		if n, err = strconv.Atoi(v); err != nil {
			b.Fatal(err)
		}
	}
	return n
}

// BenchmarkSearch measures how long it takes to open a database with many cards, and then searches of one client. Each
// search first reads the feed. A round trip alone is the control.
func BenchmarkSearch(b *testing.B) {
	url, mix, n := pgtest.Database(b), storetest.NewCardMix(time.Now()), benchCards(b)
	s := open(b, Config{URL: url})
	fill(b, s, mix, n)
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	b.Run("open", func(b *testing.B) { // once, whatever b.N is
		server := pgtest.CPU()
		begun, client := time.Now(), clientCPU()
		s := open(b, Config{URL: url})
		q := storetest.Words(storetest.WordOf(40))
		q.Limit, q.Now = 20, mix.Now
		if page, err := s.Cards().List(b.Context(), q); err != nil || len(page.Cards) == 0 {
			b.Fatalf("first search finds %d cards, %v", len(page.Cards), err)
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(time.Since(begun).Seconds(), "open-s")
		b.ReportMetric((clientCPU() - client).Seconds(), "client-s")
		b.ReportMetric((pgtest.CPU() - server).Seconds(), "server-s")
		_ = s.Close()
	})
	s = open(b, Config{URL: url})
	b.Run("round trip", func(b *testing.B) {
		var one int
		measure(b, func() error {
			return s.query(b.Context(), "select 1", nil, []any{&one}, func() error { return nil })
		})
	})
	for _, query := range storetest.Searches(n) {
		b.Run(query.Name, func(b *testing.B) {
			query.Limit, query.Now = 20, mix.Now
			measure(b, func() error {
				_, err := s.Cards().List(b.Context(), query.CardQuery)
				return err
			})
		})
	}
}

// measure calls op in a loop, and reports percentiles of its duration and its processor time here and in the server.
func measure(b *testing.B, op func() error) {
	took := make([]time.Duration, 0, b.N)
	server := pgtest.CPU()
	client := clientCPU()
	for b.Loop() {
		start := time.Now()
		if err := op(); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	reportCPU(b, clientCPU()-client, pgtest.CPU()-server)
	storetest.ReportPercentiles(b, took)
}

func reportCPU(b *testing.B, client, server time.Duration) {
	b.ReportMetric(float64(client.Microseconds())/float64(b.N), "client-µs/op")
	b.ReportMetric(float64(server.Microseconds())/float64(b.N), "server-µs/op")
}
