package a2arelay

import (
	"fmt"
	"testing"

	"github.com/agentmesh/agentmesh/node/wire"
)

// TestHubIsBounded: 10,000 open streams meet a bound for all, for one source and for one task, and leave nothing
// behind.
func TestHubIsBounded(t *testing.T) {
	var h hub
	var all []*waiter
	bySource, byTask := map[wire.AgentID]int{}, map[string]int{}
	for i := range 10_000 {
		w := h.enter(fmt.Sprint("task", i%500), caller{source: wire.AgentID(fmt.Sprint("a2a:", i%2500))})
		if w == nil {
			continue
		}
		all = append(all, w)
		bySource[w.from.source]++
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
		h.enter(fmt.Sprint(len(h.waiters)), caller{source: "a2a:one"})
	}
	if h.enter("other", caller{source: "a2a:one"}) != nil || h.enter("other", caller{source: "a2a:two"}) == nil {
		t.Error("one source keeps another out, or has no bound")
	}
}

// TestHubOfNetworks: one network does not take all places, whatever its width, and many sources that hold places leave
// the second half to sources that have none.
func TestHubOfNetworks(t *testing.T) { // THREATS row 31, AM-42
	from := func(address, narrow, wide string) caller {
		return caller{source: wire.AgentID(address), networks: []wire.AgentID{wire.AgentID(narrow), wire.AgentID(wide)}}
	}
	const sources = maxWaiters / maxWaitersOfOne
	for name, tt := range map[string]struct {
		source func(i int) caller
		want   int
	}{
		"one /56":  {func(i int) caller { return from(fmt.Sprint("a", i), "/56", "/48") }, 2 * maxWaitersOfOne},
		"one /48":  {func(i int) caller { return from(fmt.Sprint("a", i), fmt.Sprint("n", i), "/48") }, 4 * maxWaitersOfOne},
		"many /48": {func(i int) caller { return from(fmt.Sprint("a", i), fmt.Sprint("n", i), fmt.Sprint("w", i)) }, maxWaiters/2 + sources/2},
	} {
		var h hub
		var all []*waiter
		for i := range sources {
			for range maxWaitersOfOne {
				if w := h.enter(fmt.Sprint("task", len(all)), tt.source(i)); w != nil {
					all = append(all, w)
				}
			}
		}
		if len(all) != tt.want {
			t.Errorf("%s takes %d places, want %d", name, len(all), tt.want)
		}
		if h.enter("other", from("newcomer", "elsewhere", "far")) == nil {
			t.Errorf("%s keeps another network out", name)
		}
		for _, w := range all {
			h.leave(w)
		}
		if h.total != 1 || len(h.waiters) != 1 || len(h.sources) != 3 {
			t.Errorf("%s: %d, %d and %d are left", name, h.total, len(h.waiters), len(h.sources))
		}
	}
}
