package node_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/owner/web"
)

// TestQuestionToTheOwner: the agent asks, the owner answers on the page or by a command, and the agent reads the answer.
// The agent cannot answer its own question.
func TestQuestionToTheOwner(t *testing.T) {
	sarah := meshtest.New(t).Node("sarah", open)
	var asked owner.Question
	if status := sarah.CallAgent("POST", "/questions", map[string]any{"text": "May I book <b>Tuesday</b>?", "wait_seconds": 0}, &asked); status != http.StatusOK {
		t.Fatalf("ask: %d", status)
	}
	if asked.State != acl.AskPending || asked.Kind != owner.AskQuestion {
		t.Fatalf("question = %+v", asked)
	}
	if notices, _, err := sarah.Notices.List(t.Context(), "", 10, time.Now()); err != nil || len(notices) != 1 || notices[0].Ask != asked.ID {
		t.Errorf("notices = %+v, %v", notices, err)
	}
	page := ownerPage(t, sarah, "approvals/"+asked.ID)
	if !strings.Contains(page, "May I book &lt;b&gt;Tuesday&lt;/b&gt;?") || !strings.Contains(page, "Your agent asks you") || !strings.Contains(page, `name="text"`) {
		t.Errorf("page = %s", page)
	}
	ask := theAsk(t, sarah)
	if status := sarah.CallAgent("POST", "/approvals/"+ask.ID, owner.Decision{Choice: acl.Approve, Hash: ask.Hash}, nil); status != http.StatusForbidden {
		t.Errorf("the agent answers itself: %d", status)
	}
	answer := make(chan owner.Question)
	go func() {
		var q owner.Question
		sarah.CallAgent("GET", "/questions/"+asked.ID+"?wait=20", nil, &q)
		answer <- q
	}()
	private := httpapi.NewOwner(httpapi.OwnerConfig{})
	web.Mount(private.Pages(), sarah.OwnerAPI(), nil, nil)
	form := url.Values{"choice": {"approve"}, "hash": {ask.Hash}, "text": {"yes, from 10"}}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, httpapi.PagePath+"/approvals/"+ask.ID, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	private.Handler().ServeHTTP(w, r)
	if w.Code != http.StatusSeeOther {
		t.Fatalf("page decides: %d %s", w.Code, w.Body)
	}
	if q := <-answer; q.State != acl.AskApproved || q.Answer != "yes, from 10" {
		t.Errorf("answer = %+v", q)
	}
}

// TestQuestionsAreBounded: an agent in a loop cannot fill the owner's list, and a decision about anything but a
// question takes no text.
func TestQuestionsAreBounded(t *testing.T) {
	sarah := meshtest.New(t).Node("sarah", open)
	for _, tt := range []struct {
		body map[string]any
		want int
	}{
		{map[string]any{"text": ""}, 400},
		{map[string]any{"text": strings.Repeat("x", owner.MaxQuestion+1)}, 400},
		{map[string]any{"text": "about what?", "conversation": "conv_none"}, 404},
		{map[string]any{"text": "wait", "wait_seconds": 56}, 400},
	} {
		if status := sarah.CallAgent("POST", "/questions", tt.body, nil); status != tt.want {
			t.Errorf("%.60v: %d, want %d", tt.body, status, tt.want)
		}
	}
	opened := 0
	for range 40 {
		if sarah.CallAgent("POST", "/questions", map[string]any{"text": "again?"}, nil) == http.StatusOK {
			opened++
		}
	}
	if opened != 20 {
		t.Errorf("%d questions are open, want 20", opened)
	}
	for _, ask := range pendingAsks(t, sarah) {
		decide(t, sarah, ask, acl.Reject)
	}
	if status := sarah.CallAgent("POST", "/questions", map[string]any{"text": "again?"}, nil); status != http.StatusTooManyRequests {
		t.Errorf("the 31st question of an hour: %d, want 429", status)
	}
	if status := sarah.CallAgent("GET", "/questions/ask_none", nil, nil); status != http.StatusNotFound {
		t.Errorf("unknown question: %d", status)
	}
}

// TestQuestionOfAnother: what a stranger's message asks is not a question of the agent.
func TestQuestionOfAnother(t *testing.T) {
	mesh := meshtest.New(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", mode(acl.Approval))
	must(t, meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), "mesh.message", hello))), http.StatusAccepted)
	ask := theAsk(t, sarah)
	if status := sarah.CallAgent("GET", "/questions/"+ask.ID, nil, nil); status != http.StatusNotFound {
		t.Errorf("a held message as a question: %d, want 404", status)
	}
	if status := sarah.Call("POST", "/approvals/"+ask.ID, owner.Decision{Choice: acl.Approve, Hash: ask.Hash, Text: "hi"}, nil); status != http.StatusBadRequest {
		t.Errorf("a text for a message: %d, want 400", status)
	}
}
