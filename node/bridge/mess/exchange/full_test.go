//go:build slow && !race

package exchange

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestFullThread: the bytes and the changes of a thread are bounded, and long messages are not repeated in its history.
// A message that ends the thread is always accepted.
func TestFullThread(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	ref := l.request("agent", "{intent: look, constraints: {timing: {expires: 3h}}}")
	note := "- note: {re: " + ref + ", text: " + strings.Repeat("x", 1<<20) + "}"
	for range thread.MaxThread>>20 - 1 {
		l.do("agent", note)
	}
	l.do("agent", "- note: {re: "+ref+", text: "+strings.Repeat("x", 900<<10)+"}")
	l.refuse(http.StatusConflict, "agent", note)
	l.status("bob", ref, "claimed, message: "+strings.Repeat("y", thread.MaxNote))
	l.do("agent", "- cancel: {re: "+ref+"}")
	l.refuse(http.StatusConflict, "agent", note)

	busy := l.request("agent", "{intent: look}")
	l.status("bob", busy, "claimed")
	long := strings.Repeat("z", 16<<10)
	step := strings.Repeat("- status: {re: "+busy+", code: in_progress, message: "+long+"}\n- status: {re: "+busy+", code: held, reason: x, message: "+long+"}\n", 20)
	for l.accepts("bob", step) {
	}
	th := l.thread(busy)
	if n := len(wire.MustMarshal(th)); n > 4<<20 || len(th.History) > thread.MaxEvents {
		t.Errorf("the thread has %d bytes and %d events", n, len(th.History))
	}
	l.do("agent", "- cancel: {re: "+busy+"}")

	ends := l.thread(l.request("agent", "{intent: look, constraints: {timing: {expires: 1s}}}"))
	ends.Serial, ends.Version = thread.MaxMessages, ends.Version+1
	if err := l.records.Apply(t.Context(), []store.Change{{Record: threadRecord(ends), IfRev: ends.Rev}}, time.Now()); err != nil {
		t.Fatal(err)
	}
	l.index.publish(ends)
	time.Sleep(time.Until(ends.Deadline) + time.Millisecond)
	l.workDue()
	l.want(ends.Ref, thread.Expired)
}

func (l *lab) accepts(who, block string) bool {
	_, err := l.try(who, block)
	return err == nil
}
