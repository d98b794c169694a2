package exchange

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestDelegatedRequestKeepsTheTime: the successor of a delegated thread begins no sooner and ends no later than that
// thread. A duration does not start again, and delegating a thread that waits for its time does not release it.
func TestDelegatedRequestKeepsTheTime(t *testing.T) {
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

// TestSplitOpensWhatItProposes: the parts of a split are the proposed requests, without anything else of the original
// request.
func TestSplitOpensWhatItProposes(t *testing.T) {
	l := newLab(t)
	l.executor("roomba", "vacuum-floor")
	l.executor("bob")
	l.do("alice", "- request: {id: key, intent: get the key}")
	ref := l.request("alice", `{id: big, intent: clean up, priority: urgent, requires: [vacuum-floor], context: [the key is under the mat],
    needed_by: '2099-01-01T10:00:00Z', constraints: {location: home, depends_on: [key]}}`)
	l.status("bob", "key", "completed")
	l.status("roomba", ref, "claimed")
	l.do("roomba", `- suggestion: {id: s, type: split, re: `+ref+`, proposed: [upstairs,
    {id: big, intent: downstairs, requires: [vacuum-floor], context: [by the stairs], constraints: {location: hall, depends_on: [key], timing: {expires: 2h}}}]}`)
	made := l.do("alice", "- reply: {re: s, accept: true}").Created
	if len(made) != 2 {
		t.Fatalf("made %v", made)
	}
	if th := l.want(ref, thread.Superseded); !slices.Equal(th.Successors, made) {
		t.Errorf("successors = %v, want %v", th.Successors, made)
	}
	if body := l.readRequest("bob", made[0]); string(body.JSON()) != `{"intent":"upstairs"}` {
		t.Errorf("the first part is %s", body.JSON())
	}
	if body := l.readRequest("roomba", made[1]); string(body.JSON()) != `{"intent":"downstairs","requires":["vacuum-floor"],"context":["by the stairs"],"constraints":{"location":"hall","timing":{"expires":"2h"}}}` {
		t.Errorf("the second part is %s", body.JSON())
	}
	for i, part := range made {
		if th := l.want(part, thread.Received); th.Requester != "alice" || th.Priority != "normal" || len(th.DependsOn) != 0 || th.Deadline.IsZero() != (i == 0) {
			t.Errorf("part %d = %+v", i, th)
		}
	}
	l.refuse(404, "bob", "- status: {re: "+made[1]+", code: claimed}")
	whole := l.request("alice", "{intent: more, confirm_before: true}")
	l.do("bob", "- suggestion: {id: s2, type: split, re: "+whole+", proposed: [x, y]}")
	for _, part := range l.do("alice", "- reply: {re: s2, accept: true}").Created {
		if !l.thread(part).ConfirmBefore {
			t.Errorf("the proposal took the need to confirm away from %s", part)
		}
	}
	l.refuse(400, "bob", "- suggestion: {id: s3, type: split, re: "+made[0]+", proposed: [x, {intent: y, priority: high}]}")
}

// TestMergeOpensWhatItProposes: a merge opens the proposed request for the proposed executor, if that executor can do it.
// Without an intent the request has the intents of the threads.
func TestMergeOpensWhatItProposes(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	l.executor("eve", "driving")
	merge := func(proposed string) *thread.Thread {
		t.Helper()
		one, two := l.request("alice", "{intent: buy onions, context: [two kilos], priority: urgent}"), l.request("alice", "{intent: fry onions}")
		l.do("bob", "- suggestion: {id: m, type: merge, re: ["+one+", "+two+"], proposed: "+proposed+"}")
		made := l.do("alice", "- reply: {re: m, accept: true}").Created[0]
		l.want(one, thread.Superseded)
		l.want(two, thread.Superseded)
		return l.thread(made)
	}
	if th := merge("{executor: 'home:eve', combined_intent: onions, priority: elevated}"); th.Only != "eve" || th.Intent != "onions" || th.Priority != "elevated" {
		t.Errorf("merged = %+v", th)
	} else if body := l.readRequest("eve", th.Ref); string(body.JSON()) != `{"priority":"elevated","intent":"onions"}` {
		t.Errorf("the request is %s", body.JSON())
	}
	if th := merge("{executor: bob, requires: [driving]}"); th.Only != "" || th.Intent != "buy onions; fry onions" || th.Priority != "normal" {
		t.Errorf("merged for somebody who cannot do it = %+v", th)
	}
	if th := merge("all at once"); th.Intent != "all at once" {
		t.Errorf("merged by a text = %+v", th)
	}
}

// TestDelegatedRequestHasItsFiles: the attachments of a request are copied to the thread that it is delegated to.
func TestDelegatedRequestHasItsFiles(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	l.executor("eve")
	data := strings.Repeat("1", thread.MaxInline)
	ref := l.request("alice", "{intent: a, context: [{image: {name: a.png, uri: 'data:image/png;base64,"+base64.StdEncoding.EncodeToString([]byte(data))+"'}}]}")
	l.status("eve", ref, "delegated, delegated_to: bob")
	next, names := l.thread(ref).Successors[0], 0
	body := l.readRequest("bob", next)
	l.wantText(body, `{"ref":"`+ref+`"}`)
	eachFile(body, func(name string) {
		names++
		if a, err := l.Attachment(t.Context(), actor("bob"), next, name); err != nil || string(a.Data) != data {
			t.Errorf("%s: %d bytes, %v", name, len(a.Data), err)
		}
	})
	if names != 1 {
		t.Errorf("the request names %d files", names)
	}
	var files, entries []string
	for n := range maxCopied/thread.MaxUpload + 1 {
		files = append(files, fmt.Sprintf("att-%03d-file-x.bin", n+1))
		entries = append(entries, "{file: {file: "+files[n]+", mime: a/b, size: 1}}")
	}
	large := l.request("alice", "{intent: a, context: ["+strings.Join(entries, ", ")+"]}")
	for _, name := range files {
		if err := l.KeepAttachment(t.Context(), large, Attachment{Name: name, Data: make([]byte, thread.MaxUpload)}); err != nil {
			t.Fatal(err)
		}
	}
	l.refuse(409, "eve", "- status: {re: "+large+", code: delegated, delegated_to: bob}")
}

// TestAckNamesNewThreads: the ack of an accepted suggestion names the new threads, and the thread shows the events in
// order.
func TestAckNamesNewThreads(t *testing.T) {
	for _, lax := range []bool{false, true} {
		l := newLab(t)
		l.executor("bob")
		ref := l.request("alice", "{intent: a}")
		l.do("bob", "- suggestion: {id: s, type: split, re: "+ref+", proposed: [x, y]}")
		block := mustParse(t, "- reply: {re: s, accept: true}")
		r, err := l.Do(t.Context(), actor("alice"), block, Options{Lax: lax, Re: ref})
		if err != nil {
			t.Fatal(err)
		}
		if list, _ := answerOf(r, "ack").Get("requests"); !lax && (list.Len() != 2 || list.At(0).GetStr("ref") != r.Created[0] || list.At(1).GetStr("ref") != r.Created[1]) {
			t.Errorf("the ack is %s, made was %v", answerOf(r, "ack").JSON(), r.Created)
		}
		messages, err := l.Messages(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		var order []string
		for _, m := range messages {
			order = append(order, m.Mess.At(0).Members()[0].Key)
		}
		if got := strings.Join(order, " "); got != "request suggestion reply status" {
			t.Errorf("lax %v: the thread has %s", lax, got)
		}
		if th := l.thread(ref); th.History[len(th.History)-1].Ref != messages[3].Ref {
			t.Errorf("the history names %+v", th.History)
		}
	}
}

// TestSplitInTheBlockOfItsRequest: a request, a suggestion to split it and the acceptance may stand in one block.
func TestSplitInTheBlockOfItsRequest(t *testing.T) {
	l := newLab(t)
	r := l.do(thread.OwnerID, "- request: {id: a, intent: a}\n- suggestion: {id: s, type: split, re: a, proposed: [x, y]}\n- reply: {re: s, accept: true}")
	if len(r.Created) != 3 {
		t.Fatalf("made %v", r.Created)
	}
	l.wantText(l.readRequest(thread.OwnerID, r.Created[2]), `"intent":"y"`)
}

// TestMergedThreadsDoNotWaitForThemselves: a merged thread does not depend on the threads that it replaces, and others
// that waited for one of them wait for it.
func TestMergedThreadsDoNotWaitForThemselves(t *testing.T) {
	l := newLab(t)
	first := l.request("alice", "{id: first, intent: a}")
	second := l.request("alice", "{id: second, intent: b, constraints: {depends_on: [first]}}")
	third := l.request("alice", "{id: third, intent: c, constraints: {depends_on: [second]}}")
	l.do(thread.OwnerID, "- suggestion: {id: s, type: merge, re: ["+first+", "+third+"], proposed: {}}")
	l.want(l.do("alice", "- reply: {re: s, accept: true}").Created[0], thread.Received)
	l.want(second, thread.Waiting)
}
