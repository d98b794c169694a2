package directory

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/a2a/door/doortest"
)

// TestCallLists: a caller lists its own tasks, newest state first, with and without their results, in pages and by
// context. Callers without a token have no list (A2A-11, A2A-20).
func TestCallLists(t *testing.T) {
	w := newCallWorld(t)
	w.call("one", "SendMessage", sendParams("m1", "x", `,"contextId":"a"`))
	w.call("one", "SendMessage", sendParams("m2", "x", `,"contextId":"b"`))
	w.call("two", "SendMessage", sendParams("m3", "x", `,"contextId":"a"`))
	w.call("", "SendMessage", sendParams("m4", "x", `,"contextId":"a"`))
	calls, _ := w.calls()
	want(t, w.report(calls[1], strings.ReplaceAll(remoteTask("TASK_STATE_COMPLETED", "01"), "2026-", "2099-")), 200, "")
	for _, tt := range []struct{ token, params, contexts string }{
		{"one", `{}`, "b a"}, {"one", `{"contextId":"a"}`, "a"}, {"two", `{}`, "a"}, {"three", `{}`, ""}, {"one", `{"pageSize":1}`, "b"},
		{"one", `{"status":"TASK_STATE_WORKING"}`, "a"}, {"one", `{"statusTimestampAfter":"2098-01-01T00:00:00Z"}`, "b"},
	} {
		result, _, rec := w.call(tt.token, "ListTasks", tt.params)
		var contexts []string
		for task := range at(result, "tasks").Elems() {
			contexts = append(contexts, task.GetStr("contextId"))
		}
		if got := strings.Join(contexts, " "); got != tt.contexts || strings.Contains(rec.Body.String(), "artifacts") {
			t.Errorf("%s %s: %s", tt.token, tt.params, rec.Body)
		}
	}
	page, _, _ := w.call("one", "ListTasks", `{"pageSize":1,"includeArtifacts":true}`)
	next, _, rec := w.call("one", "ListTasks", `{"pageSize":1,"pageToken":"`+page.GetStr("nextPageToken")+`"}`)
	if at(page, "tasks").At(0).GetStr("contextId") != "b" || at(at(page, "tasks").At(0), "artifacts").Len() != 1 || at(next, "tasks").At(0).GetStr("contextId") != "a" || next.GetStr("nextPageToken") != "" {
		t.Errorf("pages %s and %s", page.JSON(), rec.Body)
	}
	if _, failure, rec := w.call("", "ListTasks", `{}`); !strings.Contains(string(failure.JSON()), "UNAUTHENTICATED") {
		t.Errorf("a list without a token: %s", rec.Body)
	}
}

// TestCallDoor runs the tests of all back ends of the A2A door.
func TestCallDoor(t *testing.T) {
	server := httptest.NewServer(newCallWorld(t).edge.Handler())
	defer server.Close()
	doortest.Run(t, doortest.Target{URL: server.URL + "/a2a/am_alice", Token: "t", Lists: true})
}
