package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// listQuery is one of the searches of measureLists, as directory.Registry passes it to the store.
type listQuery struct {
	name  string
	q     store.CardQuery
	bound float64 // of the 99th percentile, in microseconds
}

// listQueries returns searches for words and capabilities that many, some and few cards have. n is the number of cards.
func listQueries(n int) []listQuery {
	frequent, some := wordOf(0), wordOf(40)
	return []listQuery{
		{"capability", store.CardQuery{All: []string{"cap:" + capability(3)}}, 150},
		{"capability + intent", store.CardQuery{All: []string{"cap:" + capability(150), "intent:mesh.request_info"}}, 150},
		{"one word", wordQuery(some), 150},
		{"deep cursor", store.CardQuery{All: []string{"cap:" + capability(3)}, After: store.Position{Seq: uint64(n) * 9 / 10}}, 150},
		{"two words + capability", withAll(wordQuery(frequent, some), "cap:"+capability(20)), 1000},
	}
}

// wordQuery returns the query of a text search (AM-53) in three tiers: names with all words, names in which the last
// word may be only a prefix, and then names and descriptions together, with the last word as a prefix.
func wordQuery(list ...string) store.CardQuery {
	withField := func(field string, list []string) []string {
		out := make([]string, len(list))
		for i, w := range list {
			out[i] = field + w
		}
		return out
	}
	whole, last := list[:len(list)-1], list[len(list)-1]
	return store.CardQuery{Tiers: []store.Tier{
		{All: withField("name:", list)},
		{All: withField("name:", whole), Prefix: "name:" + last},
		{All: withField("word:", whole), Prefix: "word:" + last},
	}}
}

// withAll returns q for only the cards that also have all terms.
func withAll(q store.CardQuery, terms ...string) store.CardQuery {
	q.All = append(slices.Clone(q.All), terms...)
	return q
}

// measureLists measures searches in a big directory, without and during renewals, and the memory of the directory.
func (s *study) measureLists(ctx context.Context) (err error) {
	if err := fillBig(ctx, s.p, s.data, s.Cards); err != nil {
		return err
	}
	before := liveHeap()
	b, err := openBig(ctx, s.data)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	s.add(newFigure(fmt.Sprintf("heap of everything except bodies, %d cards", s.Cards), mib(liveHeap()-before), "MiB", "after GC; bodies stay in the file").withMax(300))
	queries := listQueries(s.Cards)
	found := make([]int, len(queries))
	for i, q := range queries { // also warms up: it reads the pages once
		if _, found[i], err = runQuery(ctx, b, q.q, s.Duration/4); err != nil {
			return err
		}
	}
	quiet, busy, p50s := make([][]float64, len(queries)), make([][]float64, len(queries)), make([][]float64, len(queries))
	var renewalRates []float64
	for r := range s.Rounds {
		for _, renewing := range []bool{false, true} {
			s.p.say("list: round %d of %d, renewing %t", r+1, s.Rounds, renewing)
			results, stop := quiet, func() float64 { return 0 }
			if renewing {
				results, stop = busy, b.startRenewals(ctx, s.Cards, s.Renewals)
			}
			for i, q := range queries {
				result, _, err := runQuery(ctx, b, q.q, s.Duration/4)
				if err != nil {
					stop()
					return err
				}
				results[i] = append(results[i], micros(result.P99))
				if !renewing {
					p50s[i] = append(p50s[i], micros(result.P50))
				}
			}
			if rate := stop(); renewing {
				renewalRates = append(renewalRates, rate)
			}
		}
	}
	for i, q := range queries {
		f := newFigure(fmt.Sprintf("list: %s, p99, %d cards", q.name, s.Cards), median(quiet[i]), "µs", "store.Cards.List, a page of %d, p50 %.0f µs", found[i], median(p50s[i]))
		s.add(f.withMax(q.bound))
	}
	for i, q := range queries {
		var slowdowns []float64
		for r := range quiet[i] {
			if quiet[i][r] > 0 { // otherwise the clock is too coarse
				slowdowns = append(slowdowns, busy[i][r]/quiet[i][r])
			}
		}
		s.add(newFigure("list: "+q.name+", p99 while renewing beside p99 without renewals", median(slowdowns), "×", "%.0f µs at %.0f renewals/s", median(busy[i]), median(renewalRates)).withMax(2))
	}
	return ctx.Err()
}

// liveHeap returns the bytes of this process's heap that are in use.
func liveHeap() int64 {
	runtime.GC()
	runtime.GC() // also frees what finalizers and pools held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// runQuery repeats one query for d and returns the number of cards on its page.
func runQuery(ctx context.Context, b *bigDirectory, q store.CardQuery, d time.Duration) (sample, int, error) {
	q.Limit = 20
	n := 0
	result := drive(ctx, 1, d, func(ctx context.Context, _ int) error {
		q.Now = time.Now()
		page, err := b.Cards().List(ctx, q)
		n = len(page.Cards)
		return err
	})
	if result.Errors > 0 {
		return result, n, errors.New(result.Fault)
	}
	return result, n, nil
}

// startRenewals renews cards at a rate until the caller calls stop, which returns the rate that was reached.
func (b *bigDirectory) startRenewals(ctx context.Context, cards, rate int) (stop func() float64) {
	ctx, cancel := context.WithCancel(ctx)
	due := make(chan struct{}, rate)
	var done atomic.Int64
	var running sync.WaitGroup
	begin := time.Now()
	running.Go(func() {
		defer close(due)
		tick := time.Tick(10 * time.Millisecond)
		for sent := 0; ; {
			select {
			case <-ctx.Done():
				return
			case <-tick:
			}
			for want := int(time.Since(begin).Seconds() * float64(rate)); sent < want; sent++ {
				select {
				case due <- struct{}{}:
				default: // the store is behind; the reached rate shows that
				}
			}
		}
	})
	for range 32 {
		running.Go(func() {
			for range due {
				if b.renew(context.WithoutCancel(ctx), rand.IntN(cards)) == nil {
					done.Add(1)
				}
			}
		})
	}
	return func() float64 {
		took := time.Since(begin)
		n := done.Load()
		cancel()
		running.Wait()
		return float64(n) / took.Seconds()
	}
}
