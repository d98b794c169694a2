package web_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/guard"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// moody is a guard that has the same opinion of every text, or crashes.
type moody struct{ verdict atomic.Value }

func (m *moody) Ask(_ context.Context, q hook.Question) ([]byte, error) {
	question, err := wire.ParseObject(q.Document)
	verdict := m.verdict.Load().(string)
	if err == nil && verdict == "" {
		err = errors.New("out of luck")
	}
	return fmt.Appendf(nil, `{"digest":%q,"verdict":%q,"reason":"odd <words>"}`, question.GetStr("digest"), verdict), err
}

// TestPageGuard (AM-95): the owner finds what the guard stopped, in both directions, and why, and may have the guard
// asked again if it failed. The owner's agent finds none of it.
func TestPageGuard(t *testing.T) {
	mesh := meshtest.New(t)
	m := new(moody)
	sarah := mesh.Node("sarah", func(cfg *node.Config) {
		unlimited(cfg)
		cfg.Policy.Mode = acl.Open
		cfg.Guard = &guard.Guard{Hook: m, Settings: "1", In: true, Out: true}
	})
	chris := mesh.Stranger("chris")
	p := servePage(t, sarah)
	const listed = "inbox?state=guard"
	for i, tt := range []struct{ verdict, shown string }{{"deny", "deny: odd &lt;words&gt;"}, {"review", "review: odd &lt;words&gt;"}, {"", "no verdict"}, {"allow", ""}} {
		m.verdict.Store(tt.verdict)
		must(t, meshtest.Post(t, sarah.URL, chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), map[bool]int{true: http.StatusOK, false: http.StatusAccepted}[tt.shown == ""])
		body := p.must(listed)
		if !strings.Contains(body, tt.shown) || strings.Count(body, "guard: ") != min(i+1, 3) {
			t.Errorf("%s: the list of what the guard stopped:\n%s", tt.verdict, body)
		}
	}
	item := link(t, p.must(listed), "inbox/in_") // the newest is the one without a verdict
	if body := p.must(item); !strings.Contains(body, ">no verdict<") || !strings.Contains(body, `id="retry"`) {
		t.Fatalf("a message without a verdict:\n%s", body)
	}
	if status, body := p.post(item+"/retry", url.Values{}); status != http.StatusOK {
		t.Fatalf("ask again: %d\n%s", status, body)
	}
	waitFor(t, "the guard allows it", func() bool { return strings.Contains(p.must(item), ">new<") })
	if body := p.must(listed); strings.Contains(body, "no verdict") || strings.Count(body, "guard: ") != 2 {
		t.Errorf("after it was asked again:\n%s", body)
	}
	var list owner.List[owner.Item]
	if status := sarah.Call("GET", "/inbox?state=guard", nil, &list); status != http.StatusOK || len(list.Items) != 2 {
		t.Errorf("the owner's list: %d, %d items", status, len(list.Items))
	}
	if status := sarah.CallAgent("GET", "/inbox?state=guard", nil, nil); status != http.StatusBadRequest {
		t.Errorf("the agent's list: %d", status)
	}

	for _, verdict := range []string{"deny", ""} {
		m.verdict.Store(verdict)
		var sent owner.Sent
		sarah.CallAgent("POST", "/send", map[string]any{
			"to": chris.ID, "intent": "mesh.message", "payload": map[string]any{"action": "deliver", "message": map[string]string{"body": "mine"}},
		}, &sent)
		want := map[string]string{"deny": "the guard says deny: odd &lt;words&gt;", "": "the guard gave no verdict"}[verdict]
		path := "approvals/" + sent.Ask
		body := p.must(path)
		if !strings.Contains(body, want) || strings.Contains(body, `value="ask_again"`) != (verdict == "") {
			t.Errorf("the question about the agent's message lacks %q:\n%s", want, body)
		}
		if verdict != "" {
			continue
		}
		again := choices(t, body, acl.AskAgain)
		m.verdict.Store("review")
		if status, body := p.post(path, again); status != http.StatusConflict || !goldentest.Page(t, "review", body) {
			t.Errorf("the guard reviews it: %d\n%s", status, body)
		}
		m.verdict.Store("allow")
		if status, body := p.post(path, again); status != http.StatusOK || !strings.Contains(p.must(path), "the guard let it through") {
			t.Errorf("the guard allows it: %d\n%s", status, body)
		}
	}
}
