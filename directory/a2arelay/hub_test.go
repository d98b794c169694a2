package a2arelay

import (
	"fmt"
	"testing"

	"github.com/agentmesh/agentmesh/node/wire"
)

// TestHubIsBounded: 10,000 open streams meet a bound for all, for one source and for one task, and leave nothing behind.
func TestHubIsBounded(t *testing.T) {
	var h hub
	var all []*waiter
	bySource, byTask := map[wire.AgentID]int{}, map[string]int{}
	for i := range 10_000 {
		w := h.enter(fmt.Sprint("task", i%500), wire.AgentID(fmt.Sprint("a2a:", i%300)))
		if w == nil {
			continue
		}
		all = append(all, w)
		bySource[w.source]++
		byTask[w.task]++
	}
	if len(all) != maxWaiters {
		t.Errorf("%d wait, want %d", len(all), maxWaiters)
	}
	for source, n := range bySource {
		if n > maxWaitersOfOne {
			t.Errorf("%d of %s wait", n, source)
		}
	}
	for task, n := range byTask {
		if n > maxWaitersOfTask {
			t.Errorf("%d wait for %s", n, task)
		}
	}
	for range 3 {
		h.publish(all[0].task) // never blocks
	}
	for _, w := range all {
		h.leave(w)
	}
	if h.total != 0 || len(h.waiters) != 0 || len(h.sources) != 0 {
		t.Errorf("%d, %d and %d are left", h.total, len(h.waiters), len(h.sources))
	}
	for range maxWaitersOfOne {
		h.enter(fmt.Sprint(len(h.waiters)), "a2a:one")
	}
	if h.enter("other", "a2a:one") != nil || h.enter("other", "a2a:two") == nil {
		t.Error("one source keeps another out, or has no bound")
	}
}
