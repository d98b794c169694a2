package exchange

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// TestOwnerActs: the owner acts for the executor, the requester and the exchange.
func TestOwnerActs(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	a := l.request("agent", "{intent: x}")
	l.status("bob", a, "claimed")
	l.status(thread.OwnerID, a, "in_progress")
	if th := l.thread(a); th.Holder != "bob" || th.History[2].By != thread.OwnerID {
		t.Errorf("thread = %+v", th)
	}
	l.status(thread.OwnerID, a, "cancelled")
	l.want(a, thread.Cancelled)
	b := l.request("agent", "{intent: x}")
	l.do(thread.OwnerID, "- response: {re: "+b+", content: [it is done]}")
	if th := l.want(b, thread.Completed); th.Holder != thread.OwnerID {
		t.Errorf("holder = %q", th.Holder)
	}
	c := l.request("agent", "{intent: x}")
	l.status(thread.OwnerID, c, "held, reason: later")
	if th := l.want(c, thread.Held); th.Holder != "" || th.Parked != thread.ParkedApproval {
		t.Errorf("parked = %+v", th)
	}
	l.refuse(404, "bob", "- status: {re: "+c+", code: claimed}")
	l.status(thread.OwnerID, c, "received")
	l.status("bob", c, "claimed")
}

func entryOf(rt *rapid.T, refs []string) string {
	ref := rapid.SampledFrom(refs).Draw(rt, "ref")
	switch rapid.SampledFrom([]string{"status", "status", "status", "response", "confirm", "answers", "accept", "cancel", "suggest", "answer"}).Draw(rt, "call") {
	case "status":
		code := rapid.SampledFrom(thread.Codes()).Draw(rt, "code")
		return "- status: {re: '" + ref + "', code: " + string(code) + ", reason: merge, superseded_by: x, delegated_to: eve, action: a, " +
			"expired_at: '2026-01-31T10:00:00Z', completed: [], remaining: [], attempt: 1, max_attempts: 2, next_attempt: 5m, " +
			"waiting_for: {type: condition, condition: sun}, questions: [{field: f, question: q}, {field: g, question: q}]}"
	case "response":
		return "- response: {re: '" + ref + "', content: [done]}"
	case "confirm":
		return fmt.Sprintf("- reply: {re: '%s', confirm: %t}", ref, rapid.Bool().Draw(rt, "yes"))
	case "answers":
		return "- reply: {re: '" + ref + "', answers: {f: 1}}"
	case "answer":
		return "- answer: {re: '" + ref + "', id: f, value: 1}"
	case "accept":
		return fmt.Sprintf("- reply: {re: '%s', accept: %t}", ref, rapid.Bool().Draw(rt, "yes"))
	case "suggest":
		kind := rapid.SampledFrom([]string{"split", "delegate", "alternative", "defer"}).Draw(rt, "kind")
		proposed := map[string]string{"split": "[a, b]", "delegate": "eve", "alternative": "x", "defer": "1h"}[kind]
		return "- suggestion: {id: s, type: " + kind + ", re: '" + ref + "', proposed: " + proposed + "}"
	}
	return "- cancel: {re: '" + ref + "'}"
}

// TestModel: no sequence of calls leaves a terminal state or loses a message. After each call every thread is in the
// state that its history says, ended threads are unchanged except for a late response, and every accepted entry is
// among the messages.
func TestModel(t *testing.T) {
	l := newLab(t)
	for _, id := range []string{"bob", "eve", "agent"} {
		l.executor(id)
	}
	rapid.Check(t, func(rt *rapid.T) {
		r := l.do("agent", "- request: {intent: a, id: a"+fmt.Sprint(l.index.length(allThreads))+
			rapid.SampledFrom([]string{"", ", confirm_before: true"}).Draw(rt, "confirm")+"}\n- request: {intent: b, priority: urgent}")
		refs := r.Created
		counts := map[string]int{refs[0]: 1, refs[1]: 1}
		for range rapid.IntRange(1, 12).Draw(rt, "calls") {
			before := map[string]*thread.Thread{}
			for _, ref := range refs {
				before[ref] = l.thread(ref)
			}
			who := rapid.SampledFrom([]string{"agent", "bob", "eve", thread.OwnerID, "stranger"}).Draw(rt, "who")
			block := entryOf(rt, refs)
			if rapid.Bool().Draw(rt, "two") {
				block += "\n" + entryOf(rt, refs)
			}
			res, err := l.try(who, block)
			if statusOf(err) >= 500 {
				rt.Fatalf("%s sends %s: %v", who, block, err)
			}
			for _, ref := range refs {
				th := l.thread(ref)
				if b := before[ref]; b.Status.Terminal() && th.Status != b.Status {
					rt.Fatalf("%s sends %s: %s became %s", who, block, b.Status, th.Status)
				}
				if err != nil && th.Version != before[ref].Version {
					rt.Fatalf("%s sends %s: refused (%v), and the thread changed", who, block, err)
				}
				if last := th.History[len(th.History)-1].Action; last != string(th.Status) && !(last == "created" && th.Status == thread.Received) {
					rt.Fatalf("%s is %s, its history ends with %s", ref, th.Status, last)
				}
				messages, err := l.Messages(l.t.Context(), ref)
				if err != nil || len(messages) != th.Serial || len(messages) < counts[ref] {
					rt.Fatalf("%s has %d messages, serial %d, had %d, %v", ref, len(messages), th.Serial, counts[ref], err)
				}
				counts[ref] = len(messages)
			}
			refs = append(refs, res.Created...)
			if err == nil {
				checkAcks(rt, l, res)
			}
		}
	})
}

func checkAcks(rt *rapid.T, l *lab, res Result) {
	for _, e := range res.Answers {
		ref := e.Body.GetStr("ref")
		m := thread.MessageForm().FindStringSubmatch(ref)
		if m == nil {
			continue
		}
		messages, err := l.Messages(l.t.Context(), m[1])
		if err != nil || !slices.ContainsFunc(messages, func(x thread.Message) bool { return x.Ref == ref }) {
			rt.Fatalf("the ack names %s, which is not there (%v)", ref, err)
		}
	}
}
