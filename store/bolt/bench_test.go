package bolt

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// benchStore opens a database without the checks that follow a test.
func benchStore(b *testing.B) *Store {
	b.Helper()
	s, err := Open(b.Context(), filepath.Join(b.TempDir(), "mesh.db"), Config{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	// Pages per unit and units per commit hardly depend on the load of the machine.
	commits, pages := 0, int64(0)
	s.writer.commit = func(tx *bbolt.Tx) error {
		err := tx.Commit()
		stats := tx.Stats()
		commits, pages = commits+1, pages+stats.GetWrite()
		return err
	}
	b.Cleanup(func() {
		if commits > 0 {
			size := int64(0) // without what bbolt has added to the file for later
			s.db.View(func(tx *bbolt.Tx) error { size = tx.Size(); return nil })
			b.ReportMetric(float64(size)/float64(b.N), "file-B/op")
			b.ReportMetric(float64(b.N)/float64(commits), "op/commit")
			b.ReportMetric(float64(pages)/float64(b.N), "pages/op")
		}
	})
	return s
}

const benchRows = 10_000

// twoPuts is the unit of the group commit benchmark: it appends 700 bytes and updates one of 10,000 rows.
func twoPuts(tx *txn, i int, entry, row []byte) error {
	bucketReplays.in(tx).put(u64(uint64(i)), entry)
	bucketConvs.in(tx).put(u64(uint64(rand.IntN(benchRows))), row)
	return nil
}

func BenchmarkGroupCommit(b *testing.B) {
	entry, row := make([]byte, 700), make([]byte, 200)
	prepare := func(b *testing.B) *Store {
		s := benchStore(b)
		if err := s.db.Update(func(tx *bbolt.Tx) error {
			for i := range benchRows {
				bucketConvs.in(&txn{reads: reads{tx}, tally: make(tally)}).put(u64(uint64(i)), row)
			}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
		return s
	}
	for _, senders := range []int{1, 64} {
		b.Run(fmt.Sprintf("writer/senders=%d", senders), func(b *testing.B) {
			s := prepare(b)
			storetest.Send(b, senders, func(i int) error {
				return s.writer.do(b.Context(), func(t *txn) (func(store.Rev) error, error) {
					return func(store.Rev) error { return twoPuts(t, i, entry, row) }, nil
				})
			})
		})
		b.Run(fmt.Sprintf("update/senders=%d", senders), func(b *testing.B) {
			s := prepare(b)
			storetest.Send(b, senders, func(i int) error {
				return s.db.Update(func(tx *bbolt.Tx) error { return twoPuts(&txn{reads: reads{tx}, tally: make(tally)}, i, entry, row) })
			})
		})
		b.Run(fmt.Sprintf("rawlog/senders=%d", senders), func(b *testing.B) {
			l := newRawLog(b)
			storetest.Send(b, senders, func(int) error { return l.append(entry, row) })
		})
	}
}

// rawLog is the lower bound for group commit: one goroutine appends what has queued, and syncs.
type rawLog struct {
	queue chan rawEntry
}

type rawEntry struct {
	data []byte
	done chan error
}

func newRawLog(b *testing.B) *rawLog {
	b.Helper()
	f, err := os.Create(filepath.Join(b.TempDir(), "log"))
	if err != nil {
		b.Fatal(err)
	}
	l := &rawLog{queue: make(chan rawEntry, 1024)}
	var running sync.WaitGroup
	running.Go(func() {
		var buf []byte
		var group []rawEntry
		for e := range l.queue {
			group, buf = append(group[:0], e), append(buf[:0], e.data...)
			for more := true; more && len(group) < maxGroup; {
				select {
				case e, ok := <-l.queue:
					if more = ok; ok {
						group, buf = append(group, e), append(buf, e.data...)
					}
				default:
					more = false
				}
			}
			_, err := f.Write(buf)
			if err == nil {
				err = syncData(f)
			}
			for _, e := range group {
				e.done <- err
			}
		}
	})
	b.Cleanup(func() {
		close(l.queue)
		running.Wait()
		f.Close()
	})
	return l
}

func (l *rawLog) append(parts ...[]byte) error {
	e := rawEntry{data: binary.BigEndian.AppendUint32(nil, uint32(len(parts))), done: make(chan error, 1)}
	for _, p := range parts {
		e.data = append(e.data, p...)
	}
	l.queue <- e
	return <-e.done
}

// BenchmarkAccept measures the step that accepts a message: a replay record with its answer, a conversation, two
// transcript entries and an inbox record.
func BenchmarkAccept(b *testing.B) {
	for _, senders := range []int{1, 64} {
		b.Run(fmt.Sprintf("senders=%d", senders), func(b *testing.B) {
			s := benchStore(b)
			now := time.Now()
			storetest.Send(b, senders, func(i int) error { return storetest.Accept(b.Context(), s, i, now) })
		})
	}
}

// BenchmarkFileGrowth measures how much the file grows for a message of 500 bytes with an answer of 500 bytes. In the
// second case the owner reads each message later, which changes its record.
func BenchmarkFileGrowth(b *testing.B) {
	sizes := storetest.Acceptance{Message: 500, Answer: 500, Item: 750}
	b.Run("accept", func(b *testing.B) {
		s, now := benchStore(b), time.Now()
		storetest.Send(b, 64, func(i int) error { return sizes.Store(b.Context(), s, i, now) })
	})
	b.Run("accept and read", func(b *testing.B) {
		s, now := benchStore(b), time.Now()
		storetest.Send(b, 64, func(i int) error {
			const later = 1000
			if err := sizes.Store(b.Context(), s, i, now); err != nil || i <= later {
				return err
			}
			longer := sizes
			longer.Item += 40
			return longer.MarkRead(b.Context(), s, i-later, now)
		})
	})
}

func BenchmarkCardPut(b *testing.B) {
	for _, senders := range []int{1, 64} {
		b.Run(fmt.Sprintf("register/senders=%d", senders), func(b *testing.B) {
			s := benchStore(b)
			mix := newCardMix(time.Now())
			storetest.Send(b, senders, func(i int) error {
				_, err := s.Cards().Put(b.Context(), store.PutCard{Card: mix.Card(i), Now: mix.Now})
				return err
			})
		})
	}
	b.Run("renew/senders=64", func(b *testing.B) {
		s := benchStore(b)
		mix := newCardMix(time.Now())
		mix.fill(b, s, 20_000)
		storetest.Send(b, 64, func(int) error { return mix.renew(b.Context(), s) })
	})
}

// BenchmarkCount counts a thousand records by a term, and all of a namespace.
func BenchmarkCount(b *testing.B) {
	s := benchStore(b)
	var changes []store.Change
	for i := range 1000 {
		changes = append(changes, store.Change{Record: store.Record{NS: "n", Key: fmt.Sprint(i), Terms: []string{"t"}, Body: storetest.Text(i, 2000), Expires: now.Add(time.Hour)}})
	}
	if err := s.Records().Apply(b.Context(), changes, now); err != nil {
		b.Fatal(err)
	}
	for _, term := range []string{"t", ""} {
		b.Run("term="+term, func(b *testing.B) {
			for b.Loop() {
				if n, err := s.Records().Count(b.Context(), "n", term, 10_000, now); n != 1000 || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
}
