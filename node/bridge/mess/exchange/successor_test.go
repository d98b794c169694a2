package exchange

import (
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
