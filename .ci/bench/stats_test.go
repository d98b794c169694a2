package main

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestMedian(t *testing.T) {
	for _, tc := range []struct {
		name   string
		values []float64
		want   float64
	}{
		{"none", nil, 0},
		{"one", []float64{3}, 3},
		{"odd, unsorted", []float64{9, 1, 5}, 5},
		{"even", []float64{4, 1, 2, 100}, 3},
	} {
		if got := median(tc.values); got != tc.want {
			t.Errorf("%s: median(%v) = %v, want %v", tc.name, tc.values, got, tc.want)
		}
	}
}

func TestQuantile(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(i + 1)
	}
	for _, tc := range []struct {
		took []time.Duration
		q    float64
		want time.Duration
	}{
		{nil, 0.99, 0},
		{hundred[:1], 0.99, 1},
		{hundred, 0.5, 51},
		{hundred, 0.99, 100},
		{hundred, 1, 100},
	} {
		if got := quantile(tc.took, tc.q); got != tc.want {
			t.Errorf("quantile of %d, %v = %v, want %v", len(tc.took), tc.q, got, tc.want)
		}
	}
}

// TestRatio: a ratio compares rounds that ran side by side, so one slow round of both must not change it.
func TestRatio(t *testing.T) {
	at := func(ops ...int) (list []sample) {
		for _, n := range ops {
			list = append(list, sample{Ops: n, Elapsed: time.Second})
		}
		return list
	}
	for _, tc := range []struct {
		name string
		a, b []sample
		want float64
	}{
		{"steady", at(50, 50), at(100, 100), 0.5},
		{"one slow round of both", at(50, 5, 50), at(100, 10, 100), 0.5},
		{"a round without the other", at(50, 50), at(100, 0), 0.5},
		{"no control", at(50), nil, 0},
	} {
		if got := ratio(tc.a, tc.b, sample.rate); math.Abs(got-tc.want) > 1e-9 {
			t.Errorf("%s: ratio = %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestSample(t *testing.T) {
	s := sample{Ops: 200, Elapsed: 2 * time.Second, CPU: 10 * time.Millisecond}
	if s.rate() != 100 || s.cost() != 50 {
		t.Errorf("rate, cost = %v, %v, want 100, 50", s.rate(), s.cost())
	}
	if (sample{}).rate() != 0 || (sample{CPU: 1}).cost() != 0 {
		t.Error("a round without operations has a rate or a cost")
	}
}

func TestDrive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var busy, most atomic.Int64
		got := drive(t.Context(), 3, time.Second, func(_ context.Context, worker int) error {
			most.Store(max(most.Load(), busy.Add(1)))
			defer busy.Add(-1)
			time.Sleep(time.Duration(worker+1) * 10 * time.Millisecond)
			if worker == 2 {
				return errors.New("no")
			}
			return nil
		})
		// 100 of worker 0, 50 of worker 1; worker 2 fails 34 times.
		if got.Ops != 150 || got.Errors != 34 || got.Fault != "no" || most.Load() != 3 {
			t.Errorf("drive = %+v with %d at once, want 150 operations, 34 errors, 3 at once", got, most.Load())
		}
		if got.P50 != 10*time.Millisecond || got.P99 != 20*time.Millisecond {
			t.Errorf("p50, p99 = %v, %v, want 10ms, 20ms", got.P50, got.P99)
		}
	})
}

// TestDriveGivesUp: workers whose server is gone stop before the round ends, so that they do not spin.
func TestDriveGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := drive(t.Context(), 2, time.Hour, func(context.Context, int) error {
			time.Sleep(time.Millisecond)
			return errors.New("refused")
		})
		if got.Errors != 2*maxErrorsInRow || got.Elapsed > time.Minute {
			t.Errorf("drive = %d errors in %v, want %d at once", got.Errors, got.Elapsed, 2*maxErrorsInRow)
		}
	})
}

func TestInterleave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string
		last := ""
		c := func(name string) contender {
			used := time.Duration(0)
			return contender{name, 1, func(context.Context, int) error {
				if last != name {
					last, order = name, append(order, name)
				}
				time.Sleep(10 * time.Millisecond)
				used += time.Millisecond
				return nil
			}, func() time.Duration { return used }}
		}
		got := interleave(t.Context(), nil, 2, 100*time.Millisecond, c("a"), c("b"))
		if want := 6; len(order) != want { // warm up and two rounds of each, in turn
			t.Errorf("order of rounds = %v", order)
		}
		if len(got) != 2 || len(got[0]) != 2 || got[1][1].Ops != 10 || got[1][1].cost() != 1000 {
			t.Errorf("interleave = %+v, want two rounds each of 10 operations that cost 1 ms", got)
		}
	})
}

func TestFigure(t *testing.T) {
	for _, tc := range []struct {
		name string
		f    figure
		met  bool
		goal string
	}{
		{"below", newFigure("f", 1.2, "×", "").withMax(1.3), true, "≤ 1.3"},
		{"above", newFigure("f", 1.4, "×", "").withMax(1.3), false, "≤ 1.3"},
		{"enough", newFigure("f", 0.5, "×", "").withMin(0.5), true, "≥ 0.5"},
		{"too little", newFigure("f", 0.4, "×", "").withMin(0.5), false, "≥ 0.5"},
	} {
		if *tc.f.Met != tc.met || tc.f.Goal.String() != tc.goal {
			t.Errorf("%s: met %t, goal %s; want %t, %s", tc.name, *tc.f.Met, tc.f.Goal, tc.met, tc.goal)
		}
	}
}
