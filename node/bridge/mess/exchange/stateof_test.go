package exchange

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/store"
)

// TestResponseBesideAStatusOfSeveral: a response beside a status about the same thread does not complete the thread,
// even if the status names several threads.
func TestResponseBesideAStatusOfSeveral(t *testing.T) {
	for _, block := range []string{
		"- status: {re: [%s, %s], code: in_progress}\n- response: {re: [%[1]s, %[2]s], content: [half of it]}\n",
		"- response: {re: [%s, %s], content: [half of it]}\n- status: {re: [nothing, %[2]s, %[1]s], code: in_progress}\n",
	} {
		l := newLab(t)
		l.executor("bob")
		a, b := l.request("agent", "{intent: a}"), l.request("agent", "{id: nothing, intent: b}")
		for _, ref := range []string{a, b} {
			l.status("bob", ref, "claimed")
		}
		l.do("bob", fmt.Sprintf(block, a, b))
		l.want(a, thread.InProgress)
		l.want(b, thread.InProgress)
		l.do("bob", fmt.Sprintf("- response: {re: [%s, %s], content: [all of it]}\n", a, b))
		l.want(a, thread.Completed)
		l.want(b, thread.Completed)
	}
}

// repeatingBlock returns a block about a name that many threads have and the sender may not see: resolving it is slow.
func repeatingBlock(l *lab, entries int, first string, re func(i int) string) thread.Block {
	l.t.Helper()
	l.executor("eve")
	for i := range maxClientIDScan {
		l.request("agent", fmt.Sprintf("{id: same, intent: a%d, requires: [x]}", i))
	}
	var text strings.Builder
	text.WriteString(first)
	for i := range entries {
		fmt.Fprintf(&text, "- status: {re: %s, code: claimed}\n", re(i))
	}
	return mustParse(l.t, text.String())
}

type readStore struct {
	store.Store
	gets *atomic.Int64
}

type readRecords struct {
	store.Records
	gets *atomic.Int64
}

func (c readStore) Records() store.Records { return readRecords{c.Store.Records(), c.gets} }

func (c readRecords) Get(ctx context.Context, ns, key string, now time.Time) (store.Record, error) {
	c.gets.Add(1)
	return c.Records.Get(ctx, ns, key, now)
}

// TestStatesAreLookedUpOnce: a name that a block repeats is resolved once.
func TestStatesAreLookedUpOnce(t *testing.T) {
	var gets atomic.Int64
	l := newLab(t)
	l = labOn(t, readStore{l.store, &gets})
	l.executor("eve")
	mine := l.request("agent", "{intent: mine}")
	l.status("eve", mine, "claimed")
	for _, first := range []string{"", "- response: {re: " + mine + ", content: [x]}\n"} {
		gets.Store(0)
		if _, err := l.try("eve", first+strings.Repeat("- status: {re: same, code: claimed}\n", 1000)); statusOf(err) != http.StatusNotFound {
			t.Fatal(err)
		}
		if n := gets.Load(); n > 10 {
			t.Errorf("%d reads for a thousand times the same name", n)
		}
	}
}

// BenchmarkMissedStatuses sends a small block that repeats an unknown name, as a stranger with a key may.
func BenchmarkMissedStatuses(b *testing.B) {
	const entries = 2400
	for name, re := range map[string]func(int) string{
		"one": func(int) string { return "same" }, "distinct": func(i int) string { return fmt.Sprint("none", i) },
	} {
		for kind, first := range map[string]string{"statuses": "", "response": "- response: {re: mine, content: [x]}\n"} {
			b.Run(name+"/"+kind, func(b *testing.B) {
				l := newLab(b)
				block := repeatingBlock(l, entries, first, re)
				l.request("agent", "{id: mine, intent: mine}")
				l.status("eve", "mine", "claimed")
				for b.Loop() {
					if _, err := l.Do(b.Context(), actor("eve"), block, Options{}); statusOf(err) != http.StatusNotFound {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
