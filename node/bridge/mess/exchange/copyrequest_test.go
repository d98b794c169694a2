package exchange

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

const bigJob = `{id: big, intent: clean up, precision: exact, priority: urgent, requires: [vacuum-floor, {stairs: {level: 2}}],
    context: [the key is under the mat, {image: 'data:image/png;base64,iVBORw0KGgo='}], response_hint: [image],
    constraints: {location: home, environment: [indoor], timing: {expires: 2h, urgency: soon}}}`

// TestPartsOfASplitKeepWhatTheWorkNeeds: each part of a split inherits the capabilities, the context and the limits of
// the original request, so that its executor can do the work.
func TestPartsOfASplitKeepWhatTheWorkNeeds(t *testing.T) {
	l := newLab(t)
	l.executor("roomba", "vacuum-floor", "stairs")
	l.executor("bob")
	l.executor("plumber", "plumbing")
	ref := l.request("alice", bigJob)
	l.status("roomba", ref, "claimed")
	l.do("roomba", `- suggestion: {id: s, type: split, re: `+ref+`, proposed: [upstairs, {intent: downstairs},
    {intent: the tap, priority: normal, requires: [plumbing], context: [it drips], constraints: {location: kitchen, timing: {urgency: now}}}]}`)
	time.Sleep(3 * time.Millisecond) // a duration that starts now would end later
	made := l.do("alice", "- reply: {re: s, accept: true}").Created
	if len(made) != 3 {
		t.Fatalf("made %v", made)
	}
	ends := `"expires":"` + wire.FormatTime(l.thread(ref).Deadline) + `"`
	for _, part := range made[:2] {
		l.wantText(l.readRequest("roomba", part), `"requires":["vacuum-floor",{"stairs":{"level":2}}]`, `the key is under the mat`, `iVBORw0KGgo=`, `"location":"home"`,
			`"environment":["indoor"]`, `"urgency":"soon"`, ends, `"priority":"urgent"`, `"precision":"exact"`, `"response_hint":["image"]`, `{"ref":"`+ref+`"}`)
		if th := l.thread(part); th.Urgency != "soon" || th.Priority != "urgent" {
			t.Errorf("%s has urgency %s and priority %s", part, th.Urgency, th.Priority)
		}
		l.refuse(404, "bob", "- status: {re: "+part+", code: claimed}")
	}
	own := l.readRequest("plumber", made[2])
	l.wantText(own, `"requires":["plumbing"]`, "it drips", `"location":"kitchen"`, `"environment":["indoor"]`, `"urgency":"now"`, ends, `"priority":"normal"`)
	if strings.Contains(string(own.JSON()), "under the mat") {
		t.Errorf("%s has the context of the whole beside its own", own.JSON())
	}
	l.refuse(404, "roomba", "- status: {re: "+made[2]+", code: claimed}")
}

// TestMergeKeepsWhatTheWorkNeeds: a merged request asks for everything that the original requests asked for.
func TestMergeKeepsWhatTheWorkNeeds(t *testing.T) {
	l := newLab(t)
	l.executor("bob", "driving", "cooking")
	l.executor("eve", "driving")
	l.do("alice", "- request: {id: money, intent: get money}")
	l.status("bob", "money", "completed")
	one := l.request("alice", "{intent: buy onions, requires: [driving], context: [two kilos, cash only], response_hint: [text], constraints: {location: the market, depends_on: [money], timing: {urgency: whenever}}}")
	two := l.request("alice", "{intent: fry onions, precision: exact, requires: [cooking, driving], needed_by: '2099-01-01T10:00:00Z', context: [cash only, {url: 'https://pan.example'}], response_hint: [text, image], constraints: {location: home, environment: [indoor], timing: {urgency: soon}}}")
	l.do("bob", "- suggestion: {id: m, type: merge, re: ["+one+", "+two+"], proposed: {executor: eve, combined_intent: onions}}")
	made := l.do("alice", "- reply: {re: m, accept: true}").Created[0]
	body := l.readRequest("bob", made)
	l.wantText(body, `"requires":["driving","cooking"]`, `"two kilos"`, "pan.example", `{"location":"the market"}`, `{"location":"home"}`, `"environment":["indoor"]`,
		`"urgency":"soon"`, `"precision":"exact"`, `"response_hint":["text","image"]`, "2099-01-01T10:00:00", `"depends_on":["`+l.thread(one).DependsOn[0]+`"]`)
	if n := strings.Count(string(body.JSON()), "cash only"); n != 1 {
		t.Errorf("%s says the same %d times", body.JSON(), n)
	}
	// eve cannot cook, so the thread is offered to all
	if th := l.thread(made); th.Urgency != "soon" || len(th.DependsOn) != 1 || th.Only != "" {
		t.Errorf("merged = %+v", th)
	}
	l.refuse(404, "eve", "- status: {re: "+made+", code: claimed}")

	here := []string{l.request("alice", "{intent: a, constraints: {location: home}}"), l.request("alice", "{intent: b, constraints: {location: home}}"), l.request("alice", "{intent: c}")}
	l.do("bob", "- suggestion: {id: m, type: merge, re: ["+strings.Join(here, ", ")+"], proposed: {}}")
	l.wantText(l.readRequest("bob", l.do("alice", "- reply: {re: m, accept: true}").Created[0]), `"location":"home"`, `"intent":"a; b; c"`)
}

// TestSuccessorsHaveTheFiles: the attachments of a thread are copied to its successors, and two files of the same name
// stay two.
func TestSuccessorsHaveTheFiles(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	l.executor("eve")
	picture := func(fill string) string {
		return "{image: {name: a.png, uri: 'data:image/png;base64," + base64.StdEncoding.EncodeToString([]byte(strings.Repeat(fill, thread.MaxInline))) + "'}}"
	}
	files := func(ref string) (out []string) {
		t.Helper()
		eachFile(l.readRequest("bob", ref), func(name string) {
			a, err := l.Attachment(t.Context(), actor("bob"), ref, name)
			if err != nil || len(a.Data) != thread.MaxInline || a.Size != thread.MaxInline {
				t.Errorf("%s of %s: %d bytes, %v", name, ref, len(a.Data), err)
				return
			}
			out = append(out, string(a.Data[:1]))
		})
		return out
	}
	one, two := l.request("alice", "{intent: a, context: ["+picture("1")+"]}"), l.request("alice", "{intent: b, context: ["+picture("2")+"]}")
	l.do("bob", "- suggestion: {id: m, type: merge, re: ["+one+", "+two+"], proposed: {}}")
	both := l.do("alice", "- reply: {re: m, accept: true}").Created[0]
	if got := files(both); !slices.Equal(got, []string{"1", "2"}) {
		t.Errorf("the merged request has the files %v", got)
	}
	l.do("bob", "- suggestion: {id: s, type: split, re: "+both+", proposed: [x, y]}")
	for _, part := range l.do("alice", "- reply: {re: s, accept: true}").Created {
		if got := files(part); !slices.Equal(got, []string{"1", "2"}) {
			t.Errorf("a part has the files %v", got)
		}
		l.status("eve", part, "delegated, delegated_to: bob")
		if got := files(l.thread(part).Successors[0]); !slices.Equal(got, []string{"1", "2"}) {
			t.Errorf("a delegated part has the files %v", got)
		}
	}
	large := l.request("alice", "{intent: a, context: ["+picture("1")+strings.Repeat(", "+picture("2"), 20)+"]}")
	l.do("bob", "- suggestion: {id: s, type: split, re: "+large+", proposed: ["+strings.TrimSuffix(strings.Repeat("x, ", 50), ", ")+"]}")
	l.refuse(409, "alice", "- reply: {re: s, accept: true}") // fifty copies are too large
	l.want(large, thread.Received)
}

// TestSuccessorsWaitForTheSame: the successor of a thread has its dependencies.
func TestSuccessorsWaitForTheSame(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	first := l.request("alice", "{id: first, intent: a}")
	ref := l.request("alice", "{intent: b, constraints: {depends_on: [first]}}")
	l.want(ref, thread.Waiting)
	l.do(thread.OwnerID, "- suggestion: {id: s, type: split, re: "+ref+", proposed: [x, y]}")
	parts := l.do("alice", "- reply: {re: s, accept: true}").Created
	for _, part := range parts {
		l.want(part, thread.Waiting)
	}
	l.status("bob", first, "completed")
	for _, part := range parts {
		l.want(part, thread.Received)
	}
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
	r := l.do(thread.OwnerID, "- request: {id: a, intent: a, context: [the key]}\n- suggestion: {id: s, type: split, re: a, proposed: [x, y]}\n- reply: {re: s, accept: true}")
	if len(r.Created) != 3 {
		t.Fatalf("made %v", r.Created)
	}
	l.wantText(l.readRequest(thread.OwnerID, r.Created[2]), `"the key"`)
}

// TestMergedThreadsDoNotWaitForThemselves: a merged thread does not depend on the threads that it replaces.
func TestMergedThreadsDoNotWaitForThemselves(t *testing.T) {
	l := newLab(t)
	first := l.request("alice", "{id: first, intent: a}")
	second := l.request("alice", "{id: second, intent: b, constraints: {depends_on: [first]}}")
	third := l.request("alice", "{id: third, intent: c, constraints: {depends_on: [second]}}")
	l.do(thread.OwnerID, "- suggestion: {id: s, type: merge, re: ["+first+", "+third+"], proposed: {}}")
	l.refuse(409, "alice", "- reply: {re: s, accept: true}")
	l.do(thread.OwnerID, "- suggestion: {id: s2, type: merge, re: ["+first+", "+second+"], proposed: {}}")
	l.want(l.do("alice", "- reply: {re: s2, accept: true}").Created[0], thread.Received)
	l.want(third, thread.Waiting)
}
