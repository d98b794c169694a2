package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/agentmesh/agentmesh/store"
)

// newTestQueue makes a queue whose commits append their groups to a log. A unit fails if its work is "refused".
func newTestQueue(limit int) (*Queue[string], *[]string) {
	var q *Queue[string]
	var log []string
	q = NewQueue[string](limit, func() {
		var group []string
		for _, u := range q.Take(nil, 3) {
			group = append(group, u.Work)
			if u.Work == "refused" {
				u.Report(errRefused)
			} else {
				u.Report(nil)
			}
		}
		if group != nil {
			log = append(log, strings.Join(group, " "))
		}
	})
	return q, &log
}

var errRefused = errors.New("refused")

// queueWhilePaused queues work in order while no commit may begin, and returns the outcomes after resume.
func queueWhilePaused(t *testing.T, q *Queue[string], works ...string) (resume func() []error) {
	t.Helper()
	end, err := q.Pause(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	errs := make([]error, len(works))
	for i, work := range works {
		go func() { errs[i] = q.Do(t.Context(), work) }()
		synctest.Wait()
	}
	return func() []error {
		end()
		synctest.Wait()
		return errs
	}
}

func TestQueueGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, log := newTestQueue(8)
		errs := queueWhilePaused(t, q, "a", "refused", "c", "d")()
		if !slices.Equal(*log, []string{"a refused c", "d"}) || !slices.Equal(errs, []error{nil, errRefused, nil, nil}) {
			t.Errorf("groups %q, outcomes %v", *log, errs)
		}
	})
}

// TestQueueLeaderReturns: a caller whose unit is committed returns, and leaves the units that were queued meanwhile to
// their own callers.
func TestQueueLeaderReturns(t *testing.T) {
	for range 50 {
		var q *Queue[string]
		later := &Unit[string]{err: make(chan error, 1)}
		commits := 0
		q = NewQueue[string](8, func() {
			for _, u := range q.Take(nil, 3) {
				if u != later {
					u.Report(q.add(later))
				}
			}
			commits++
		})
		if err := q.Do(t.Context(), ""); err != nil || commits != 1 || q.Len() != 1 {
			t.Fatalf("Do = %v after %d commits, and %d units wait; want one commit and one unit", err, commits, q.Len())
		}
	}
}

func TestQueueCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, log := newTestQueue(8)
		resume := queueWhilePaused(t, q)
		ctx, cancel := context.WithCancel(t.Context())
		canceled := make(chan error, 1)
		go func() { canceled <- q.Do(ctx, "a") }()
		synctest.Wait()
		cancel()
		if err := <-canceled; !errors.Is(err, context.Canceled) {
			t.Errorf("canceled work = %v", err)
		}
		resume()
		if err := errors.Join(q.Do(t.Context(), "b")); err != nil || !slices.Equal(*log, []string{"b"}) {
			t.Errorf("the next work = %v, groups %q; want only b", err, *log)
		}
		if err := q.Do(ctx, "c"); !errors.Is(err, context.Canceled) || len(*log) != 1 {
			t.Errorf("work with an ended context = %v, groups %q", err, *log)
		}
	})
}

func TestQueueLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, _ := newTestQueue(2)
		resume := queueWhilePaused(t, q, "a", "b")
		if err := q.Do(t.Context(), "c"); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("work behind a full queue = %v", err)
		}
		if errs := resume(); !slices.Equal(errs, []error{nil, nil}) {
			t.Errorf("queued work = %v", errs)
		}
	})
}

func TestQueueClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, log := newTestQueue(8)
		resume := queueWhilePaused(t, q, "a", "b", "c", "d")
		go q.Close()
		synctest.Wait()
		if err := q.Do(t.Context(), "late"); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("work after Close = %v", err)
		}
		if errs := resume(); !slices.Equal(errs, make([]error, 4)) || len(*log) != 2 {
			t.Errorf("work before Close = %v, groups %q", errs, *log)
		}
	})
}

func TestQueuePauseCanceled(t *testing.T) {
	q, _ := newTestQueue(8)
	resume, err := q.Pause(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer resume()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := q.Pause(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a second pause = %v", err)
	}
}
