package bolt

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/engine"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// cardMix is the mix of cards, with the number of cards that fill has stored.
type cardMix struct {
	*storetest.CardMix
	count int
}

func newCardMix(now time.Time) *cardMix { return &cardMix{CardMix: storetest.NewCardMix(now)} }

// writeCard stores a new card.
func writeCard(t *txn, card store.Card, now time.Time) (err error) {
	row := engine.CardRow{Card: card}
	row.Rev = t.NextRev()
	if row.Seq, err = t.NextCard(); err != nil {
		return err
	}
	if row.Change, err = t.NextChange(); err != nil {
		return err
	}
	t.Put(engine.Row{
		Kind: engine.KindCard, Num: row.Seq, Due: engine.CardDue(card), Key: []byte(card.ID), Value: engine.EncodeCard(row), Terms: card.Counts,
	}, engine.Row{})
	change := store.CardChange{Change: row.Change, ID: card.ID, At: now}
	return t.PutChange(engine.ChangeRow{CardChange: change, Seq: row.Seq}, &row, nil)
}

// fill stores cards 1 to n without the cost of n commits.
func (m *cardMix) fill(b testing.TB, s *Store, n int) {
	b.Helper()
	const batch = 5000
	for from := m.count + 1; from <= n; from += batch {
		err := s.writer.do(b.Context(), func(t *txn) (func(store.Rev) error, error) {
			return func(store.Rev) error {
				for i := from; i < min(from+batch, n+1); i++ {
					c, err := engine.NormalizeCard(m.Card(i))
					if err != nil {
						return err
					}
					if err := writeCard(t, c, m.Now); err != nil {
						return err
					}
				}
				return nil
			}, nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	m.count = n
}

// renew puts one of the cards again with the same terms and a later expiry.
func (m *cardMix) renew(ctx context.Context, s *Store) error {
	id := fmt.Sprintf("am_%026x", 1+rand.IntN(m.count))
	var c store.Card
	err := s.db.View(func(tx *bbolt.Tx) error {
		row, err := reads{tx}.Row(engine.KindCard, []byte(id))
		if err != nil {
			return err
		}
		card, err := engine.DecodeCard(row.Num, row.Value)
		c = card.Card
		return err
	})
	if err != nil {
		return err
	}
	c.Expires = c.Expires.Add(time.Second)
	_, err = s.Cards().Put(ctx, store.PutCard{Card: c, IfRev: store.Any, Now: m.Now})
	return err
}

// listCards returns the number of cards of the list benchmarks, which AGENTMESH_BENCH_CARDS can set.
func listCards(b *testing.B) int {
	if v := os.Getenv("AGENTMESH_BENCH_CARDS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			b.Fatal(err)
		}
		return n
	}
	return 100_000
}

func BenchmarkList(b *testing.B) {
	n := listCards(b)
	path := filepath.Join(b.TempDir(), "mesh.db")
	s, err := Open(b.Context(), path, Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { s.Close() }()
	mix := newCardMix(time.Now())
	mix.fill(b, s, n)
	measure := func(b *testing.B, q store.CardQuery) {
		q.Limit, q.Now = 20, mix.Now
		took := make([]time.Duration, 0, b.N)
		for b.Loop() {
			start := time.Now()
			if _, err := s.Cards().List(b.Context(), q); err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Since(start))
		}
		storetest.ReportPercentiles(b, took)
	}
	for _, query := range storetest.Searches(n) {
		b.Run("quiet/"+query.Name, func(b *testing.B) { measure(b, query.CardQuery) })
	}
	stop := make(chan struct{})
	var renewing sync.WaitGroup
	renewing.Go(func() {
		tick := time.NewTicker(2 * time.Millisecond) // 500 a second
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				if err := mix.renew(b.Context(), s); err != nil {
					b.Error(err)
				}
			}
		}
	})
	for _, query := range storetest.Searches(n) {
		b.Run("renewing/"+query.Name, func(b *testing.B) { measure(b, query.CardQuery) })
	}
	close(stop)
	renewing.Wait()
}

// BenchmarkOpen measures Open of a database with many cards after a kill, up to the first search result, and reports
// the memory that the index needs.
func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), "mesh.db")
	s, err := Open(b.Context(), path, Config{})
	if err != nil {
		b.Fatal(err)
	}
	mix := newCardMix(time.Now())
	mix.fill(b, s, listCards(b))
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	s = nil
	var before, after runtime.MemStats
	runtime.GC() // twice, because pools keep their memory for one more round
	runtime.GC()
	runtime.ReadMemStats(&before)
	for b.Loop() {
		s, err := Open(b.Context(), path, Config{})
		if err != nil {
			b.Fatal(err)
		}
		q := storetest.Words(storetest.WordOf(40))
		q.Limit, q.Now = 20, mix.Now
		if page, err := s.Cards().List(b.Context(), q); err != nil || len(page.Cards) == 0 {
			b.Fatalf("first search finds %d cards, %v", len(page.Cards), err)
		}
		b.StopTimer()
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&after)
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "heap-MiB")
}
