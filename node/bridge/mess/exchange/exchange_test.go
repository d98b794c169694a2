package exchange

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestClaimRace: of 64 concurrent claims one succeeds, and the others are refused with 409 (MESS-22).
func TestClaimRace(t *testing.T) {
	l := newLab(t)
	for i := range 64 {
		l.executor(fmt.Sprintf("e%d", i))
	}
	ref := l.request("agent", "{intent: race}")
	var mu sync.Mutex
	won, lost := 0, 0
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			_, err := l.try(fmt.Sprintf("e%d", i), "- status: {re: "+ref+", code: claimed}")
			mu.Lock()
			defer mu.Unlock()
			switch statusOf(err) {
			case 200:
				won++
			case 409:
				lost++
			default:
				t.Errorf("claim %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if won != 1 || lost != 63 {
		t.Errorf("%d claims won, %d lost", won, lost)
	}
	if th := l.thread(ref); len(th.History) != 2 || th.Serial != 2 {
		t.Errorf("%d events, %d messages, want 2 of each", len(th.History), th.Serial)
	}
}

// TestAllOrNothing: a block is one transaction. If its third entry is bad, nothing of it is applied (MESS-7).
func TestAllOrNothing(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	ref := l.request("agent", "{id: a, intent: one}")
	for _, last := range []string{
		"- status: {re: nowhere, code: claimed}", "- request: {intent: 3}", "- reply: {re: a, confirm: true}", "- v: 2.0.0",
		"- request: {intent: x, priority: high}", "- request: {intent: x, constraints: {depends_on: [nothing]}}", "- config: {routing: {rules: []}}",
	} {
		_, err := l.try("agent", "- request: {id: b, intent: two}\n- cancel: {re: a}\n"+last+"\n")
		if code := statusOf(err); code < 400 || code > 409 {
			t.Errorf("%s: %v, want a refusal", last, err)
		} else if !strings.Contains(err.Error(), "MESS[2]") {
			t.Errorf("%s: %v does not name the entry", last, err)
		}
	}
	l.want(ref, thread.Received)
	page, err := l.List(t.Context(), Owner("test"), "", "", 10)
	if err != nil || len(page.Threads) != 1 {
		t.Errorf("%d threads, %v, want the one", len(page.Threads), err)
	}
}

// TestResolve: references are resolved in the order of MESS-6.
func TestResolve(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	l.refuse(404, "agent", "- cancel: {re: last}")
	a := l.request("agent", "{id: 'sug:merge', intent: one}")
	l.request("other", "{id: fridge, intent: theirs}")
	b := l.request("agent", "{id: fridge, intent: two}")
	for re, want := range map[string]string{
		"last": b, "home:last": b, a: a, "home:" + a: a, a + "/request-001-sug-merge": a, "sug:merge": a, "home:sug:merge": a, "fridge": b, "home:fridge": b,
	} {
		r := l.do("agent", "- query: {type: status, filter: {re: '"+re+"'}}")
		content, _ := answerOf(r, "response").Get("content")
		structured, _ := content.At(0).Get("structured")
		list, _ := structured.Get("requests")
		if list.Len() != 1 || list.At(0).GetStr("ref") != want {
			t.Errorf("re: %s is %s, want %s", re, list.JSON(), want)
		}
	}
	for _, re := range []string{"nothing", "household:fridge", "home:", "home:home:fridge", "2026-01-01-001", "../x", a + "/claim-1"} {
		l.refuse(404, "agent", "- cancel: {re: '"+re+"'}")
	}
	l.do("bob", "- status: {re: fridge, code: claimed}") // as an executor: the newest that it may claim
	l.want(b, thread.Claimed)
}

// TestRepeatedRequest: the same id and content is the same request for a day. The same id with other content is a new
// request, and the id then names that one (MESS-16).
func TestRepeatedRequest(t *testing.T) {
	l := newLab(t)
	first := l.do("agent", "- request: {id: a, intent: one}")
	again := l.do("agent", "- request: {id: a, intent: one}")
	if len(again.Created) != 0 || answerOf(again, "ack").GetStr("ref") != first.Created[0] {
		t.Errorf("again = %+v, want the ack of %s", again, first.Created[0])
	}
	reordered := l.do("agent", "- request: {intent: one, id: a}")
	if len(reordered.Created) != 0 || answerOf(reordered, "ack").GetStr("ref") != first.Created[0] {
		t.Errorf("with the members in another order = %+v, want the ack of %s", reordered, first.Created[0])
	}
	other := l.request("agent", "{id: a, intent: two}")
	if other == first.Created[0] {
		t.Error("other content has the same ref")
	}
	l.do("agent", "- cancel: {re: a}")
	l.want(other, thread.Cancelled)
	l.want(first.Created[0], thread.Received)
	if r := l.do("stranger", "- request: {id: a, intent: one}"); len(r.Created) != 1 {
		t.Error("another requester's id is the same request")
	}
}

// TestDependencies: self references and cycles are refused, a failure ends the whole chain, and superseded threads are
// followed (MESS-29, MESS-30).
func TestDependencies(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	l.refuse(400, "agent", "- request: {id: a, intent: x, constraints: {depends_on: [a]}}")
	l.refuse(400, "agent", "- request: {id: a, intent: x, constraints: {depends_on: [b]}}\n- request: {id: b, intent: x, constraints: {depends_on: [c]}}\n- request: {id: c, intent: x, constraints: {depends_on: [a]}}")
	l.refuse(400, "agent", "- request: {intent: x, constraints: {depends_on: [last]}}")
	l.refuse(400, "agent", "- request: {id: a, intent: x, constraints: {depends_on: ['home:b']}}\n- request: {id: b, intent: x, constraints: {depends_on: ['home:a']}}")
	l.refuse(400, "agent", "- request: {intent: x, constraints: {depends_on: [nothing]}}")
	var chain strings.Builder
	for i := range 50 {
		fmt.Fprintf(&chain, "- request: {id: n%d, intent: link, constraints: {depends_on: [%s]}}\n", i, map[bool]string{true: fmt.Sprintf("n%d", i+1)}[i < 49])
	}
	refs := l.do("agent", chain.String()).Created
	l.want(refs[48], thread.Waiting)
	l.status("bob", refs[49], "failed, reason: no")
	for i, ref := range refs[:49] {
		th := l.want(ref, thread.Failed)
		if note := th.History[len(th.History)-1].Note; !strings.Contains(note, refs[i+1]) {
			t.Errorf("%s failed with %q, want it to name %s", ref, note, refs[i+1])
		}
	}
	a, b := l.request("agent", "{id: s1, intent: buy onions}"), l.request("agent", "{id: s2, intent: buy garlic}")
	after := l.request("agent", "{intent: cook, constraints: {depends_on: [s1]}}")
	l.do("bob", "- suggestion: {id: 'sug:merge-grocery', type: merge, re: [s1, s2], proposed: {combined_intent: buy onions and garlic}, reason: same store}")
	l.do("agent", "- reply: {re: 'sug:merge-grocery', accept: true}")
	merged := l.want(a, thread.Superseded).Successors[0]
	l.want(b, thread.Superseded)
	l.want(after, thread.Waiting)
	if th := l.want(merged, thread.Received); th.Intent != "buy onions and garlic" || th.Requester != "agent" {
		t.Errorf("merged = %+v", th)
	}
	l.status("bob", merged, "completed")
	l.want(after, thread.Received)
	dead := l.request("agent", "{intent: cook, constraints: {depends_on: [n1]}}")
	l.want(dead, thread.Failed)
}

// TestSuggestions: suggestions of the other types, accepted and refused (MESS-38), and delegation (MESS-27).
func TestSuggestions(t *testing.T) {
	t.Run("what must be confirmed stays so", func(t *testing.T) {
		l := newLab(t)
		l.executor("bob")
		one, two := l.request("agent", "{intent: a, confirm_before: true}"), l.request("agent", "{intent: b}")
		l.do("bob", "- suggestion: {id: m, type: merge, re: ["+one+", "+two+"], proposed: {intent: both}}")
		both := l.do("agent", "- reply: {re: m, accept: true}").Created[0]
		l.do("bob", "- suggestion: {id: s, type: split, re: "+both+", proposed: [c, d]}")
		for _, part := range l.do("agent", "- reply: {re: s, accept: true}").Created {
			l.refuse(409, "bob", "- status: {re: "+part+", code: completed}")
		}
	})
	t.Run("they open no more threads than requests do", func(t *testing.T) {
		l := newLab(t)
		l.newThreads.buckets = rate.NewBuckets(rate.PerHour(5), 5, 10)
		l.executor("agent")
		big := l.request("agent", "{intent: a}")
		l.do("agent", "- suggestion: {id: s, type: split, re: "+big+", proposed: [a, b, c, d, e, f]}")
		l.refuse(429, "agent", "- reply: {re: s, accept: true}")
		l.want(big, thread.Received)
	})
	l := newLab(t)
	l.executor("bob")
	l.executor("eve")
	a := l.request("agent", "{id: a, intent: clean the house}")
	l.refuse(403, "agent", "- suggestion: {id: s, type: alternative, re: a}")
	l.refuse(400, "bob", "- suggestion: {id: s, type: split, re: a, proposed: {requests: [one]}}")
	l.do("bob", "- suggestion: {id: s, type: split, re: a, proposed: {requests: [kitchen, {intent: bath, priority: urgent}]}}")
	l.refuse(409, "bob", "- suggestion: {id: s, type: alternative, re: a}")
	l.refuse(404, "other", "- reply: {re: s, accept: true}")
	l.do("agent", "- reply: {re: s, accept: true}")
	parts := l.want(a, thread.Superseded).Successors
	if len(parts) != 2 || l.thread(parts[1]).Priority != "urgent" {
		t.Fatalf("parts = %v", parts)
	}
	l.refuse(404, "agent", "- reply: {re: s, accept: true}") // decided already
	l.do("bob", "- suggestion: {id: s2, type: defer, re: "+parts[0]+", proposed: {until: 2h}}")
	l.do("agent", "- reply: {re: s2, accept: true}")
	if th := l.want(parts[0], thread.Waiting); th.Parked != thread.ParkedSchedule {
		t.Errorf("parked = %q", th.Parked)
	}
	l.do("bob", "- suggestion: {id: s3, type: delegate, re: "+parts[1]+", proposed: {executor: eve}}")
	l.do("agent", "- reply: {re: s3, accept: true}")
	next := l.want(parts[1], thread.Delegated).Successors[0]
	l.refuse(404, "bob", "- status: {re: "+next+", code: claimed}")
	l.status("eve", next, "claimed")
	l.status("eve", next, "delegated, delegated_to: bob")
	last := l.want(next, thread.Delegated).Successors[0]
	messages, _ := l.Messages(t.Context(), next)
	if ref := messages[len(messages)-1].Mess.At(0); !strings.Contains(string(ref.JSON()), last) {
		t.Errorf("status = %s does not name %s", ref.JSON(), last)
	}
	l.status("bob", last, "delegated, delegated_to: 'moltbook:somebody'")
	if th := l.want(last, thread.Delegated); len(th.Successors) != 0 {
		t.Error("delegation elsewhere has a successor")
	}
	b := l.request("agent", "{id: b, intent: x}")
	l.do("bob", "- suggestion: {id: s4, type: alternative, re: b, proposed: tea}")
	l.do("agent", "- reply: {re: s4, accept: true}")
	l.do("bob", "- suggestion: {id: s5, type: defer, re: b, proposed: 1d}")
	l.do("agent", "- reply: {re: s5, accept: false, reason: now}")
	l.want(b, thread.Received)
}

// TestQuestions: questions and answers (MESS-33).
func TestQuestions(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	a := l.request("agent", "{id: a, intent: vacuum}")
	l.refuse(404, "agent", "- answer: {value: x}")
	l.status("bob", a, "needs_input, questions: [{field: where, question: Which room?, options: [kitchen, bath]}, {id: when, question: When?}]")
	l.refuse(409, "bob", "- status: {re: a, code: completed}")
	l.refuse(409, "bob", "- response: {re: a, content: [done]}")
	l.refuse(409, "agent", "- answer: {value: kitchen}") // the thread has two questions
	l.refuse(403, "bob", "- answer: {re: "+a+", id: where, value: kitchen}")
	l.do("agent", "- answer: {re: where, value: kitchen}")
	l.want(a, thread.NeedsInput)
	l.do("agent", "- answer: {id: when, text: now}")
	l.want(a, thread.InProgress)
	l.status("bob", a, "needs-input, questions: [{field: where, question: Really?}]")
	b := l.request("agent", "{id: b, intent: other}")
	l.status("bob", b, "needs_input, questions: [{field: q, question: Why?}]")
	l.refuse(409, "agent", "- answer: {value: x}") // two threads have questions
	l.do("agent", "- reply: {re: b, answers: {q: because}}")
	l.do("agent", "- answer: {value: yes}")
	l.want(a, thread.InProgress)
	l.want(b, thread.InProgress)
	l.refuse(400, "agent", "- reply: {re: b}")
	l.refuse(400, "agent", "- reply: {re: b, confirm: true, accept: true}")
	l.refuse(409, "agent", "- reply: {re: b, confirm: true}")
	l.do("agent", "- cancel: {re: [a, b], reason: enough}")
	l.want(a, thread.Cancelled)
	l.want(b, thread.Cancelled)
}

// TestConfirmBefore: nothing gets around confirm_before (MESS-25).
func TestConfirmBefore(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	a := l.request("agent", "{id: a, intent: clear the garage, confirm_before: true}")
	l.refuse(409, "bob", "- status: {re: a, code: completed}")
	l.refuse(409, "bob", "- status: {re: a, code: claimed}\n- status: {re: a, code: partial, completed: [], remaining: []}")
	l.status("bob", a, "claimed")
	l.refuse(409, "bob", "- response: {re: a, content: [done]}")
	l.status("bob", a, "needs_confirmation, action: throw away 12 items, reversible: false")
	l.do("agent", "- reply: {re: a, confirm: false, reason: let me see them first}")
	if th := l.want(a, thread.Held); th.History[len(th.History)-1].Note != "let me see them first" {
		t.Errorf("history = %+v", th.History)
	}
	l.status("bob", a, "in_progress")
	l.status("bob", a, "needs_confirmation, action: throw away 3 items")
	l.do("agent", "- reply: {re: a, confirm: true}")
	l.do("bob", "- response: {re: a, content: [done]}")
	l.want(a, thread.Completed)
	b := l.request("agent", "{id: b, intent: x, confirm_before: true}")
	l.status("bob", b, "needs_confirmation, action: y")
	l.do("agent", "- reply: {re: b, confirm: false}")
	l.status("bob", b, "cancelled")
	l.want(b, thread.Cancelled)
}

// TestDecline: a declined thread goes to the others, and ends if nobody is left (MESS-24).
func TestDecline(t *testing.T) {
	l := newLab(t)
	l.executor("bob", "knife")
	l.executor("eve", "knife")
	l.executor("mallory", "spoon")
	a := l.request("agent", "{intent: dice, requires: [knife]}")
	l.status("bob", a, "declined, reason: busy")
	l.want(a, thread.Received)
	l.refuse(404, "bob", "- status: {re: "+a+", code: claimed}") // no longer a candidate
	l.status("eve", a, "declined, reason: busy")
	l.want(a, thread.Declined)
	b := l.request("agent", "{intent: dice, requires: [knife]}")
	l.status(thread.OwnerID, b, "declined, reason: not today")
	l.want(b, thread.Declined)
	c := l.request("agent", "{intent: dice, requires: [knife]}")
	l.status("bob", c, "claimed")
	l.status("bob", c, "declined, reason: cut my finger")
	l.want(c, thread.Declined)
	d := l.request("eve", "{intent: dice, requires: [knife]}") // over REST, every requester is a registered executor
	l.status("bob", d, "declined, reason: busy")
	l.want(d, thread.Declined)
	e := l.request("eve", "{intent: dice}")
	l.status("eve", e, "claimed")
	l.want(e, thread.Claimed)
}

// TestTime: deadlines and schedules (MESS-31, MESS-32). In the synctest bubble, days take milliseconds.
func TestTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.executor("bob")
		now := time.Now()
		at := func(d time.Duration) string { return "'" + wire.FormatTime(now.Add(d)) + "'" }
		soon := l.request("agent", "{intent: x, constraints: {timing: {expires: 1s}}}")
		both := l.request("agent", "{intent: x, needed_by: "+at(time.Hour)+", constraints: {timing: {expires: 1s}}}")
		if d := l.thread(both).Deadline.Sub(now); d < 50*time.Minute {
			t.Errorf("deadline is in %v: needed_by must beat expires", d)
		}
		l.refuse(400, "agent", "- request: {intent: x, needed_by: '9999-12-31T23:59:59-23:59'}\n") // the year 10000 in UTC
		claimed := l.request("agent", "{intent: x, constraints: {timing: {expires: 1s}}}")
		held := l.request("agent", "{intent: x, constraints: {timing: {expires: 1s}}}")
		l.status("bob", claimed, "claimed")
		l.status("bob", held, "held, reason: lunch")
		later := l.request("agent", "{intent: x, constraints: {timing: {not_before: "+at(time.Second)+"}}}")
		l.want(later, thread.Waiting)
		l.refuse(404, "bob", "- status: {re: "+later+", code: claimed}")
		l.workDue()
		l.want(soon, thread.Received)
		time.Sleep(1100 * time.Millisecond)
		l.workDue()
		if th := l.want(soon, thread.Expired); th.Stage != "received" {
			t.Errorf("stage = %q", th.Stage)
		}
		if th := l.want(held, thread.Expired); th.Stage != "held" {
			t.Errorf("stage = %q", th.Stage)
		}
		l.want(both, thread.Received)
		l.want(claimed, thread.Claimed)
		l.want(later, thread.Received)
		l.refuse(409, "bob", "- status: {re: "+held+", code: in_progress}")
		for _, bad := range []string{"tomorrow", "2026-01-31T10:00:00", "1h1d", "-1h", "PT", "P", "1", "99999999d"} {
			l.refuse(400, "agent", "- request: {intent: x, constraints: {timing: {expires: '"+bad+"'}}}")
		}
	})
}

// TestLateResponse: a response is accepted for 24 hours after the end, to the second (MESS-39).
func TestLateResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.executor("bob")
		l.executor("eve")
		for _, code := range []string{"completed", "partial, completed: [], remaining: []"} {
			ref := l.request("agent", "{intent: x}")
			l.status("bob", ref, code)
			end := l.thread(ref).Ended
			l.do("bob", "- response: {re: "+ref+", content: [now]}")
			// eve has no part in the thread (MESS-56)
			l.refuse(404, "eve", "- response: {re: "+ref+", content: [mine]}")
			l.refuse(403, "agent", "- response: {re: "+ref+", content: [mine]}")
			time.Sleep(time.Until(end.Add(24*time.Hour - time.Second)))
			l.do("bob", "- response: {re: "+ref+", content: [late]}")
			time.Sleep(2 * time.Second)
			l.refuse(409, "bob", "- response: {re: "+ref+", content: [too late]}")
		}
	})
}

// TestReferenceToALaterRequest: only depends_on may name a later request of the block. Any other entry is refused.
func TestReferenceToALaterRequest(t *testing.T) {
	l := newLab(t)
	for _, entry := range []string{
		"query: {type: status, filter: {re: later}}", "reply: {re: later, confirm: true}", "reply: {re: later, answers: {a: b}}",
		"answer: {re: later, value: x}", "cancel: {re: later}",
	} {
		l.refuse(http.StatusNotFound, "agent", "- "+entry+"\n- request: {id: later, intent: x}\n")
	}
}

// TestFailedRead: a store that cannot be read for a moment does not make a thread unknown. The sender gets an error
// after which it may repeat the block, and not a final refusal.
func TestFailedRead(t *testing.T) {
	l := newLab(t)
	b := &failingStore{Store: l.store, unread: NSThreads}
	l.records = b.Records()
	l.executor("bob")
	ref := l.request("agent", "{id: a, intent: x}")
	l.status("bob", ref, "claimed")
	l.do("bob", "- suggestion: {id: later, type: defer, re: "+ref+", proposed: 2h}")
	for who, block := range map[string]string{
		"bob":   "- status: {re: " + ref + ", code: in_progress}",
		"agent": "- reply: {re: later, accept: false}",
		"eve":   "- status: {re: " + ref + ", code: claimed}",
	} {
		b.failReads = 1
		l.refuse(500, who, block)
	}
	b.failReads, b.unread = 1, NSShared
	if ref, err := l.OfferedIn(t.Context(), "am_eve", "conv"); ref != "" || err == nil {
		t.Errorf("the thread of a conversation is %q, %v", ref, err)
	}
	if ref, err := l.OfferedIn(t.Context(), "am_eve", "conv"); ref != "" || err != nil {
		t.Errorf("the thread of an unknown conversation is %q, %v", ref, err)
	}
}

// TestRepeatedAtTheSameTime: two copies of a request, applied at the same time, get the ref of one thread (MESS-16).
func TestRepeatedAtTheSameTime(t *testing.T) {
	l := newLab(t)
	const block = "- request: {id: a, intent: x}"
	var first string
	l.records = &readHook{l.records, NSIDs, func() { first = l.do("agent", block).Created[0] }}
	r := l.do("agent", block)
	if ref, _ := r.RequestRef(); ref != first || len(r.Created) != 0 {
		t.Errorf("one request opened %s and %v", first, r.Created)
	}
}

// TestDeclineIsWrittenFirst: the last executor declines by PATCH. The thread has its message before that of the
// exchange, which ends the thread.
func TestDeclineIsWrittenFirst(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	ref := l.request("agent", "{intent: dig}")
	declined := mustParse(t, "- status: {code: declined, reason: busy}\n")
	if _, err := l.Do(t.Context(), actor("bob"), declined, Options{Lax: true, Re: ref}); err != nil {
		t.Fatal(err)
	}
	messages, err := l.Messages(t.Context(), l.want(ref, thread.Declined).Ref)
	if err != nil || len(messages) != 3 || messages[1].From != "bob" || messages[2].From != thread.ExchangeID {
		t.Errorf("messages = %v, %v", messages, err)
	}
}

// TestRequestIsWrittenFirst: the first message of a thread is its request, also if the request came through a link and
// the exchange parks the thread at once. Delegations and offers copy the request from there.
func TestRequestIsWrittenFirst(t *testing.T) {
	l := newLab(t)
	for timing, hold := range map[string]bool{"urgency: soon": true, "not_before: '2100-01-01T00:00:00Z'": false} {
		b := mustParse(t, "- request: {intent: dig, constraints: {timing: {"+timing+"}}}\n")
		r, err := l.Do(t.Context(), actor("am_peer"), b, Options{Lax: true, Hold: hold, Peer: &thread.Peer{Conv: "conv", Address: "mess:shed/eve"}})
		if err != nil {
			t.Fatal(err)
		}
		l.wantText(l.readRequest(thread.OwnerID, r.Created[0]), "timing")
	}
}
