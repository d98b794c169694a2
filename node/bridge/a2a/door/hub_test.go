package door

import (
	"fmt"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/wire"
)

// TestHubIsBounded: 10,000 open streams meet a bound for all and for one source, a change wakes as many waiters of a
// task as the hub allows, and nothing is left behind.
func TestHubIsBounded(t *testing.T) {
	h := Hub{OfTask: 8}
	var all []*Waiter
	bySource := map[string]int{}
	for i := range 10_000 {
		source := fmt.Sprint("a", i%2500)
		w := h.Enter([]Share{{Key: source, Max: 16}, {Max: 2048, Fair: true}})
		if w == nil {
			continue
		}
		h.follow(w, fmt.Sprint("task", i%100))
		all = append(all, w)
		bySource[source]++
	}
	if len(all) != 2048 {
		t.Errorf("%d wait, want 2048", len(all))
	}
	for source, n := range bySource {
		if n > 16 {
			t.Errorf("%d of %s wait", n, source)
		}
	}
	woken := 0
	for range 3 {
		h.Changed(all[0].task, false) // never blocks
	}
	for _, w := range all {
		woken += len(w.changed)
		h.Leave(w)
	}
	if woken != h.OfTask {
		t.Errorf("%d waiters of one task are woken", woken)
	}
	if len(h.waiters) != 0 || len(h.taken) != 0 {
		t.Errorf("%d tasks and %d shares are left", len(h.waiters), len(h.taken))
	}
	one, two := []Share{{Key: "one", Max: 16}, {Max: 2048}}, []Share{{Key: "two", Max: 16}, {Max: 2048}}
	for range 16 {
		h.Enter(one)
	}
	if h.Enter(one) != nil || h.Enter(two) == nil {
		t.Error("one source keeps another out, or has no bound")
	}
}

// TestSentIsBounded: what agents send of tasks that they work on has a bound for each task and for all.
func TestSentIsBounded(t *testing.T) {
	var h Hub
	piece := func(text string) []wire.Value {
		artifact := wire.Obj(wire.TextField("artifactId", "a"), wire.Field("parts", wire.Arr(wire.Obj(wire.TextField("text", text)))))
		return []wire.Value{wire.Obj(wire.Field("artifactUpdate", wire.Obj(wire.Field("artifact", artifact), wire.Field("append", wire.Bool(true)))))}
	}
	for range 1000 {
		h.Report("long", piece(strings.Repeat("x", 1000)))
	}
	if n := len(h.sentBy("long")[0].artifact.JSON()); n > maxSentBytes {
		t.Errorf("%d bytes of a task are kept", n)
	}
	for i := range 1000 {
		h.Report(fmt.Sprint(i), piece("x"))
	}
	if len(h.sent) > maxSentTasks {
		t.Errorf("%d tasks are kept", len(h.sent))
	}
	h.Report("t", piece("x"))
	if h.Changed("t", true); len(h.sentBy("t")) != 1 {
		t.Error("a task at work lost what was sent")
	}
	if h.Changed("t", false); len(h.sentBy("t")) != 0 {
		t.Error("a task that has ended keeps what was sent")
	}
}
