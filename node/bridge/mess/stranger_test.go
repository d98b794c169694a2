package mess

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/goldentest"
)

// TestOthersThreadsAreNotThere: refs count up, so every registered executor can guess them. A thread of somebody else
// does not exist for an executor, whatever it sends about the thread, and nothing of it is stored.
func TestOthersThreadsAreNotThere(t *testing.T) {
	for _, requires := range []string{"", ", requires: [knife]"} {
		l := newLab(t)
		l.executor("roomba", "knife")
		l.executor("bob")
		for _, state := range []string{"claimed", "in_progress", "completed", "failed, reason: no"} {
			ref := l.request("alice", "{id: bread, intent: "+state[:4]+requires+"}")
			l.status("roomba", ref, "claimed")
			if state != "claimed" {
				l.status("roomba", ref, state)
			}
			before := l.thread(ref)
			for _, name := range []string{ref, "bread", ref + "/claim-002"} {
				for _, said := range []string{
					"cancel: {re: %s}", "reply: {re: %s, confirm: true}", "reply: {re: %s, answers: {a: b}}", "reply: {re: %s, accept: true}",
					"answer: {re: %s, value: x}", "response: {re: %s, content: [x]}", "followup: {re: %s, text: x}", "gizmo: {re: %s}",
					"suggestion: {id: s, type: alternative, re: %s, proposed: x}", "status: {re: %s, code: completed}",
					"status: {re: %s, code: in_progress}", "status: {re: %s, code: cancelled}", "status: {re: %s, code: declined, reason: x}",
					"query: {type: status, filter: {re: %s}}",
				} {
					l.refuse(404, "bob", "- "+fmt.Sprintf(said, name))
				}
			}
			if after := l.thread(ref); after.Serial != before.Serial || after.Version != before.Version || after.Status != before.Status {
				t.Errorf("a stranger changed the thread that is %s: %+v", state, after)
			}
		}
	}
}

// TestLateClaimTellsOneThing: an executor that was offered a thread and claims it too late learns only that another one
// has it: not its state, and nothing about threads that were claimed before the executor registered.
func TestLateClaimTellsOneThing(t *testing.T) {
	l := newLab(t)
	l.executor("roomba")
	l.executor("bob")
	texts := map[string]bool{}
	for _, state := range []string{"claimed", "in_progress", "completed", "failed, reason: no"} {
		ref := l.request("alice", "{id: bread, intent: "+state[:4]+"}")
		l.status("roomba", ref, "claimed")
		if state != "claimed" {
			l.status("roomba", ref, state)
		}
		for _, re := range []string{ref, "bread"} {
			_, err := l.try("bob", "- status: {re: "+re+", code: claimed}\n- status: {re: "+re+", code: completed}")
			if statusOf(err) != 409 {
				t.Errorf("a late claim of %s that is %s: %v", re, state, err)
			} else {
				texts[err.Error()] = true
			}
		}
		time.Sleep(3 * time.Millisecond)
		l.executor("newcomer" + state[:2])
		l.refuse(404, "newcomer"+state[:2], "- status: {re: "+ref+", code: claimed}")
		l.refuse(404, "nobody", "- status: {re: "+ref+", code: claimed}")
	}
	if len(texts) != 1 {
		t.Errorf("late claims are told %v", texts)
	}
	only := l.request("alice", "{intent: dice}")
	l.do(thread.OwnerID, "- suggestion: {id: d, type: delegate, re: "+only+", proposed: roomba}")
	l.do("alice", "- reply: {re: d, accept: true}")
	next := l.thread(only).Successors[0]
	l.status("roomba", next, "claimed")
	l.refuse(404, "bob", "- status: {re: "+next+", code: claimed}") // it was never offered
}

// TestCandidatesSayLittle: an executor that may claim a thread sees it and may make a suggestion. Other messages need a
// claim, because otherwise anybody could fill threads of others.
func TestCandidatesSayLittle(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	ref := l.request("alice", "{intent: dice}")
	l.refuse(403, "bob", "- followup: {re: "+ref+", text: x}")
	l.refuse(403, "bob", "- response: {re: "+ref+", content: [x]}")
	if _, err := l.try("bob", "- response: {re: "+ref+", content: [x]}"); err == nil || !goldentest.Says(t, "before the claim", strings.ReplaceAll(err.Error(), ref, "REF")) {
		t.Errorf("a response before the claim: %v", err)
	}
	l.do("bob", "- suggestion: {id: s, type: alternative, re: "+ref+", proposed: slice}")
	l.status("bob", ref, "claimed")
	l.do("bob", "- followup: {re: "+ref+", text: which knife?}")
	l.do("alice", "- followup: {re: "+ref+", text: the small one}")
}

// TestOthersThreadsAreNotThereREST: the same over REST, where a thread is named in the path, and the name of a state or
// message could give it away.
func TestOthersThreadsAreNotThereREST(t *testing.T) {
	s := newHTTPLab(t, nil)
	alice, roomba, bob := s.register("alice"), s.register("roomba"), s.register("bob")
	ref := s.want(201, alice, "POST", "requests", `{"intent":"dice"}`).GetStr("ref")
	s.want(200, roomba, "PATCH", "requests/"+ref, `{"status":"claimed"}`)
	s.want(200, roomba, "PATCH", "requests/"+ref, `{"status":"completed"}`)
	for _, body := range []string{
		`{"status":"cancelled"}`, `{"status":"completed"}`, `{"status":"in_progress"}`, `{"message":"hi"}`, `{"mess":[{"followup":{"text":"x"}}]}`,
		`{"mess":[{"status":{"code":"completed"}}]}`, `{"mess":[{"reply":{"confirm":true}}]}`, `{"mess":[{"followup":{"text":"x"}},{"status":{"code":"claimed"}}]}`, `{}`,
	} {
		s.want(404, bob, "PATCH", "requests/"+ref, body)
	}
	s.want(409, bob, "PATCH", "requests/"+ref, `{"status":"claimed"}`)
	for _, serial := range []string{`"1"`, `"3"`} { // neither reveals the number of messages
		if code, text := s.call(bob, "PATCH", "requests/"+ref, `{"status":"claimed"}`, "If-Match", serial); code != 409 {
			t.Errorf("If-Match %s: %d %s", serial, code, text)
		}
	}
	s.want(404, bob, "GET", "requests/"+ref, "")
	s.want(404, bob, "GET", "export/"+ref, "")
}
