package web_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
)

type answersNothing struct{}

func (answersNothing) Handle(context.Context, hook.Call) (hook.Answer, error) {
	return hook.Answer{}, nil
}

// TestTurnsAreShown (AM-93): status, page, metrics and audit log agree on the turns that were used and are left, before a
// bound, at it, after the owner's grant, and after the end.
func TestTurnsAreShown(t *testing.T) {
	mesh := meshtest.New(t)
	m := httpapi.NewMetrics("test")
	sarah := mesh.Node("sarah", func(cfg *node.Config) {
		unlimited(cfg)
		cfg.Metrics, cfg.Autonomy = m, &rules.Autonomy{Conversation: 2, Door: 100, Peer: -1, Strangers: 100, Token: 500, Total: 300}
		cfg.Routes = []node.Route{{Pattern: "*", Name: "says nothing", Handler: answersNothing{}}}
		cfg.Policy.Mode = acl.Open
	})
	chris := mesh.Stranger("chris")
	conv := wire.NewConversationID()
	p := servePage(t, sarah)
	write := func(status int) {
		t.Helper()
		d := chris.Draft(sarah.ID(), wire.Deliver, hello)
		d.Conversation = conv
		must(t, meshtest.Post(t, sarah.URL, chris.Sign(d)), status)
	}
	check := func(when, turns string, today string, metrics ...string) {
		t.Helper()
		var list owner.ConversationList
		var state owner.Status
		sarah.Call("GET", "/conversations", nil, &list)
		sarah.Call("GET", "/status", nil, &state)
		if got := list.Items[0].Turns; (got == nil) != (turns == "") || got != nil && got.String() != turns {
			t.Errorf("%s: the conversation has the turns %v, want %s", when, got, turns)
		}
		if got := state.Autonomy[5]; got.Name != "total" || *got.Most != 300 || got.Today.String() != today {
			t.Errorf("%s: status has %+v, want %s", when, got, today)
		}
		if body := p.must("conversations/" + string(chris.ID) + "/" + string(conv)); strings.Contains(body, "without you") != (turns != "") || !strings.Contains(body, turns) {
			t.Errorf("%s: the conversation lacks %s:\n%s", when, turns, body)
		}
		if body := p.must(""); !strings.Contains(body, today+" without you") {
			t.Errorf("%s: the page lacks %s:\n%s", when, today, body)
		}
		if body := p.must("settings"); !strings.Contains(body, "300 times; today "+today) || !strings.Contains(body, "any number of times") {
			t.Errorf("%s: the settings lack %s:\n%s", when, today, body)
		}
		w := httptest.NewRecorder()
		httpapi.NewOwner(httpapi.OwnerConfig{Metrics: m}).Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		for _, line := range metrics {
			if !strings.Contains(w.Body.String(), "agentmesh_"+line+"\n") {
				t.Errorf("%s: the metrics lack %s", when, line)
			}
		}
	}
	write(http.StatusOK)
	check("first turn", "1 of 2 times", "1 of 300 times", `turns_total{bound="conversation"} 1`, `turns_total{bound="peer"} 1`, `turns_total{bound="strangers"} 1`)
	write(http.StatusOK)
	write(http.StatusAccepted)
	write(http.StatusAccepted)
	check("at the bound", "2 of 2 times", "2 of 300 times", `turns_total{bound="total"} 2`, `turn_questions_total{bound="conversation"} 1`)
	decide(t, sarah, onlyAsk(t, sarah), acl.Approve)
	waitFor(t, "the two that waited", func() bool {
		var state owner.Status
		sarah.Call("GET", "/status", nil, &state)
		return state.Autonomy[5].Today.Used == 4
	})
	check("after the grant", "2 of 2 times", "4 of 300 times")
	write(http.StatusAccepted)
	decide(t, sarah, onlyAsk(t, sarah), acl.Reject)
	check("after the end", "2 of 2 times", "4 of 300 times", `turn_questions_total{bound="conversation"} 2`)
	entries, _, err := sarah.OwnerAPI().Audit().List(t.Context(), acl.AuditFilter{}, 0, 100, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	var log []string
	for _, e := range entries {
		if e.Rule == "autonomy.conversation" {
			log = append(log, strings.TrimSpace(string(e.Kind)+" "+string(e.Choice)))
		}
	}
	if want := "held, held, decided approve, decided approve, held, decided reject"; strings.Join(log, ", ") != want {
		t.Errorf("the audit log has %q, want %s", log, want)
	}
}
