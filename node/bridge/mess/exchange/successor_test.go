package exchange

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestSuccessorsKeepTheTime: a successor begins no sooner and ends no later than the thread that it replaces. A
// duration does not start again, and delegating a thread that waits for its time does not release it.
func TestSuccessorsKeepTheTime(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	l.executor("carol")
	begins := time.Now().Add(time.Hour).UTC().Round(time.Millisecond)
	timing := "constraints: {timing: {expires: 2h, not_before: '" + wire.FormatTime(begins) + "'}}"
	same := func(ref string, ends time.Time, begins time.Time, code thread.Code) {
		t.Helper()
		for _, next := range l.thread(ref).Successors {
			th := l.want(next, code)
			if !th.Deadline.Equal(ends) || !th.NotBefore.Equal(begins) {
				t.Errorf("%s is from %v to %v, want from %v to %v", next, th.NotBefore, th.Deadline, begins, ends)
			}
		}
	}
	wait := func() { time.Sleep(3 * time.Millisecond) } // a duration that starts now would end later

	delegated := l.request("agent", "{intent: dig, constraints: {timing: {expires: 2h}}}")
	ends := l.thread(delegated).Deadline
	wait()
	l.status("bob", delegated, "claimed")
	l.status("bob", delegated, "delegated, delegated_to: carol")
	same(delegated, ends, time.Time{}, thread.Received)

	waits := l.request("agent", "{intent: dig, "+timing+"}")
	ends = l.thread(waits).Deadline
	l.do(thread.OwnerID, "- suggestion: {id: carol, type: delegate, re: "+waits+", proposed: carol}")
	wait()
	l.do("agent", "- reply: {re: carol, accept: true}")
	same(waits, ends, begins, thread.Waiting)
	l.refuse(404, "carol", "- status: {re: "+l.thread(waits).Successors[0]+", code: claimed}")

	split := l.request("agent", "{intent: dig and plant, "+timing+"}")
	ends = l.thread(split).Deadline
	l.do(thread.OwnerID, "- suggestion: {id: parts, type: split, re: "+split+", proposed: [dig, {intent: plant, constraints: {timing: {expires: 3h}}}]}")
	l.do("agent", "- reply: {re: parts, accept: true}")
	same(split, ends, begins, thread.Waiting)

	first := l.request("agent", "{intent: dig, "+timing+"}")
	ends = l.thread(first).Deadline
	second := l.request("agent", "{intent: plant, constraints: {timing: {expires: 3h}}}")
	l.do(thread.OwnerID, "- suggestion: {id: both, type: merge, re: ["+second+", "+first+"], proposed: {}}")
	l.do("agent", "- reply: {re: both, accept: true}")
	same(first, ends, begins, thread.Waiting)
}

// TestSharedSuccessors: a thread is split and the parts are merged, again and again. A thread that waits for the first
// one looks at each of the threads once, although the number of ways to the last one grows with every round.
func TestSharedSuccessors(t *testing.T) {
	l := newLab(t)
	l.executor("agent")
	first := l.request("agent", "{intent: dig}")
	parts := strings.TrimSuffix(strings.Repeat("dig, ", 40), ", ")
	last, done := first, make(chan string)
	for i := range 6 {
		l.do("agent", fmt.Sprintf("- suggestion: {id: s%d, type: split, re: %s, proposed: [%s]}", i, last, parts))
		l.do("agent", fmt.Sprintf("- reply: {re: s%d, accept: true}", i))
		of := strings.Join(l.thread(last).Successors, ", ")
		l.do("agent", fmt.Sprintf("- suggestion: {id: m%d, type: merge, re: [%s], proposed: {intent: dig}}", i, of))
		last = l.do("agent", fmt.Sprintf("- reply: {re: m%d, accept: true}", i)).Created[0]
	}
	go func() {
		r, err := l.try("agent", "- request: {intent: plant, constraints: {depends_on: ["+first+"]}}")
		if err != nil || len(r.Created) == 0 {
			t.Error(err)
			r.Created = []string{""}
		}
		done <- r.Created[0]
	}()
	select {
	case waits := <-done:
		l.want(waits, thread.Waiting)
		l.status("agent", last, "completed")
		l.want(waits, thread.Received)
	case <-time.After(20 * time.Second):
		t.Fatal("the threads are looked at once for each way to them")
	}
}
