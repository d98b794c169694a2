package exchange

import (
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestClockGoesBack: the clock goes back by an hour, so stored times lie in the future. Nothing expires because of
// that, deadlines stand, a repeated request is recognized, and work goes on (MESS-32).
func TestClockGoesBack(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	waits := l.request("agent", "{id: waits, intent: look, constraints: {timing: {expires: 2h}}}")
	parked := l.request("agent", "{intent: look, constraints: {timing: {not_before: '"+wire.FormatTime(time.Now().Add(2*time.Hour))+"'}}}")
	held := l.request("agent", "{intent: look, constraints: {depends_on: [waits]}}")
	done := l.request("agent", "{intent: look}")
	l.status("bob", done, "claimed")
	l.status("bob", done, "completed")
	const back = time.Hour
	for th, err := range store.DecodeAll(t.Context(), l.records, NSThreads, "", time.Now(), decodeThread) {
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range []*time.Time{&th.Created, &th.Updated, &th.Ended, &th.NotBefore, &th.Deadline} {
			if !at.IsZero() {
				*at = at.Add(back)
			}
		}
		if err := l.records.Apply(t.Context(), []store.Change{{Record: threadRecord(th), IfRev: th.Rev}}, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	again := labOn(t, l.store)
	for range 2 {
		again.workDue()
	}
	again.want(waits, thread.Received)
	again.want(parked, thread.Waiting)
	again.want(held, thread.Waiting)
	if th := again.thread(waits); time.Until(th.Deadline) < 2*time.Hour {
		t.Errorf("the deadline is %v", th.Deadline)
	}
	if ref := again.do("agent", "- request: {id: waits, intent: look, constraints: {timing: {expires: 2h}}}").Answers[0].Body.GetStr("ref"); ref != waits {
		t.Errorf("the same request became %s", ref)
	}
	next := again.request("agent", "{intent: next}")
	for _, ref := range []string{waits, parked, held, done} {
		if ref == next {
			t.Errorf("%s is given twice", ref)
		}
	}
	again.status("bob", waits, "claimed")
	again.do("bob", "- response: {re: "+waits+", content: [seen]}")
	again.want(held, thread.Received)
	again.do("bob", "- response: {re: "+done+", content: [late]}")
	page, err := again.List(t.Context(), Owner("test"), "", "", 2)
	if err != nil || len(page.Threads) != 2 {
		t.Fatalf("page = %v, %v", page, err)
	}
	rest, err := again.List(t.Context(), Owner("test"), "", page.Next, 10)
	if err != nil || len(rest.Threads) != 3 {
		t.Errorf("the rest has %d threads, %v", len(rest.Threads), err)
	}
	if n, err := again.Purge(t.Context(), time.Now()); err != nil || n != 0 {
		t.Errorf("%d threads were removed, %v", n, err)
	}
}
