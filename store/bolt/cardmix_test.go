package bolt

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/engine"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// cardMix generates the cards of a directory: 12 words from a vocabulary with a long tail, one to three of 200
// capabilities, one to four intents, and a body of 900 bytes.
type cardMix struct {
	now   time.Time
	zipf  *rand.Zipf
	mu    sync.Mutex // guards zipf
	count int
}

func newCardMix(now time.Time) *cardMix {
	return &cardMix{now: now, zipf: rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.2, 8, 200_000)}
}

func (m *cardMix) word() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return wordOf(m.zipf.Uint64())
}

// wordOf turns a number into a word, so that words share prefixes as real words do.
func wordOf(n uint64) string { return strconv.FormatUint(n*2654435761%(1<<32)+36, 36) }

func (m *cardMix) card(i int) store.Card {
	rng := rand.New(rand.NewPCG(uint64(i), 7))
	c := store.Card{
		ID: fmt.Sprintf("am_%026x", i), Body: make([]byte, 900), Meta: make([]byte, 60), Counts: []string{fmt.Sprintf("token:%x", i), fmt.Sprintf("host:%d", i/5)},
		Registered: m.now, Updated: m.now, Expires: m.now.Add(30 * 24 * time.Hour), ReservedUntil: m.now.Add(60 * 24 * time.Hour),
	}
	for range 2 {
		w := m.word()
		c.Terms = append(c.Terms, "name:"+w, "word:"+w)
	}
	for range 10 {
		c.Terms = append(c.Terms, "word:"+m.word())
	}
	for range 1 + rng.IntN(3) {
		c.Terms = append(c.Terms, fmt.Sprintf("cap:%d", min(rng.IntN(200), rng.IntN(200))))
	}
	for k := range 1 + rng.IntN(4) {
		c.Terms = append(c.Terms, fmt.Sprintf("intent:%d", k))
	}
	return c
}

// fill stores cards 1 to n without the cost of n commits.
func (m *cardMix) fill(b testing.TB, s *Store, n int) {
	b.Helper()
	const batch = 5000
	for from := m.count + 1; from <= n; from += batch {
		err := s.writer.do(b.Context(), func(t *txn) (func() error, error) {
			return func() error {
				for i := from; i < min(from+batch, n+1); i++ {
					c, err := engine.NormalizeCard(m.card(i))
					if err != nil {
						return err
					}
					row := engine.CardRow{Card: c}
					if row.Rev, err = t.nextRev(); err != nil {
						return err
					}
					if err := writeCard(t, &row, store.Card{}, m.now); err != nil {
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
		row, _, err := cardByID(tx, id)
		c = row.Card
		return err
	})
	if err != nil {
		return err
	}
	c.Expires = c.Expires.Add(time.Second)
	_, err = s.Cards().Put(ctx, store.PutCard{Card: c, IfRev: store.Any, Now: m.now})
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
	frequent, middle := wordOf(0), wordOf(40)
	queries := []struct {
		name string
		q    store.CardQuery
	}{
		{"capability", store.CardQuery{All: []string{"cap:3"}}},
		{"capability+intent", store.CardQuery{All: []string{"cap:150", "intent:3"}}},
		{"word", words(middle)},
		{"prefix", words("a")},
		{"two words+capability", withAll(words(frequent, middle), "cap:199")},
		{"deep", store.CardQuery{All: []string{"cap:3"}, After: store.Position{Seq: uint64(n * 9 / 10)}}},
		{"all deep", store.CardQuery{After: store.Position{Seq: uint64(n * 9 / 10)}}},
	}
	measure := func(b *testing.B, q store.CardQuery) {
		q.Limit, q.Now = 20, mix.now
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
	for _, query := range queries {
		b.Run("quiet/"+query.name, func(b *testing.B) { measure(b, query.q) })
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
	for _, query := range queries {
		b.Run("renewing/"+query.name, func(b *testing.B) { measure(b, query.q) })
	}
	close(stop)
	renewing.Wait()
}

// words returns the query of a search for words: name, then prefix of a name, then description.
func words(all ...string) store.CardQuery {
	tier := func(kind string, prefixed bool) store.Tier {
		var t store.Tier
		for i, w := range all {
			if prefixed && i == len(all)-1 {
				t.Prefix = kind + w
			} else {
				t.All = append(t.All, kind+w)
			}
		}
		return t
	}
	return store.CardQuery{Tiers: []store.Tier{tier("name:", false), tier("name:", true), tier("word:", false), tier("word:", true)}}
}

func withAll(q store.CardQuery, all ...string) store.CardQuery {
	q.All = slices.Concat(q.All, all)
	return q
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
	// Remove the snapshot that filling may have started.
	if err := errors.Join(s.Close(), removeIfThere(s.snapshotPath())); err != nil {
		b.Fatal(err)
	}
	s = nil
	reopen := func(b *testing.B) {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for b.Loop() {
			s, err := Open(b.Context(), path, Config{})
			if err != nil {
				b.Fatal(err)
			}
			q := words(wordOf(40))
			q.Limit, q.Now = 20, mix.now
			if page, err := s.Cards().List(b.Context(), q); err != nil || len(page.Cards) == 0 {
				b.Fatalf("first search finds %d cards, %v", len(page.Cards), err)
			}
			b.StopTimer()
			runtime.GC()
			runtime.ReadMemStats(&after)
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "heap-MiB")
	}
	b.Run("build", func(b *testing.B) {
		if err := removeIfThere(path + ".index"); err != nil {
			b.Fatal(err)
		}
		reopen(b)
	})
	if s, err = Open(b.Context(), path, Config{}); err != nil {
		b.Fatal(err)
	}
	if err := errors.Join(s.writeSnapshot(b.Context()), s.Close()); err != nil {
		b.Fatal(err)
	}
	s = nil
	b.Run("snapshot", reopen)
}
