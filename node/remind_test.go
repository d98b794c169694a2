package node_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// sleeper is an agent that always announces a later answer.
type sleeper struct {
	mu    sync.Mutex
	calls []string
}

func (s *sleeper) Handle(_ context.Context, c hook.Call) (hook.Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, fmt.Sprintf("attempt %d reminder %v", c.Attempt, c.Reminder))
	return hook.Answer{Async: true}, nil
}

func (s *sleeper) woken() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

var firstAndReminder = []string{"attempt 1 reminder false", "attempt 2 reminder true"}

func withSleeper(s *sleeper) func(*node.Config) {
	return func(cfg *node.Config) {
		cfg.Policy.Mode = acl.Open
		cfg.Routes = []node.Route{{Pattern: "mesh.*", Name: "sleeper", Handler: s}}
	}
}

// TestAgentIsRemindedOnce: an agent that does not answer is woken a second time, also over a restart, and then its
// owner gets one notice. The message stays in the inbox.
func TestAgentIsRemindedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		s := &sleeper{}
		sarah := mesh.Node("sarah", withSleeper(s))
		sarah.Start()
		raw := chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Deliver, hello)))
		must(t, sarah.Post(raw), http.StatusAccepted)
		time.Sleep(14 * time.Minute)
		equal(t, "calls before", s.woken(), firstAndReminder[:1])
		again := mesh.Restart(sarah, withSleeper(s))
		again.Start()
		time.Sleep(5 * time.Minute)
		equal(t, "calls after", s.woken(), firstAndReminder)
		if got := noticesOf(t, again, "unanswered"); len(got) != 0 {
			t.Errorf("notices too early: %q", got)
		}
		time.Sleep(20 * time.Hour)
		equal(t, "calls in the end", s.woken(), firstAndReminder)
		if got := noticesOf(t, again, "unanswered"); len(got) != 1 {
			t.Errorf("notices = %q, want one", got)
		}
		if item := theItem(t, again); item.State != owner.ItemNew || item.Note == "" {
			t.Errorf("item = %+v", item)
		}
	})
}

// TestNoReminder: an agent is not reminded after an answer, an acknowledgement, a held answer, or the end of the
// conversation, nor of a message of a blocked sender (AM-25).
func TestNoReminder(t *testing.T) {
	for name, act := range map[string]func(t *testing.T, m *meshtest.Member, chris *meshtest.Stranger){
		"answered": func(t *testing.T, m *meshtest.Member, _ *meshtest.Stranger) {
			reply(t, m, "mesh.message", hello, "queued")
		},
		"acknowledged": func(t *testing.T, m *meshtest.Member, _ *meshtest.Stranger) {
			m.Call("POST", "/inbox/"+theItem(t, m).ID+"/ack", struct{}{}, nil)
		},
		"held": func(t *testing.T, m *meshtest.Member, _ *meshtest.Stranger) {
			reply(t, m, "mesh.negotiate", deal, "held")
			if item := theItem(t, m); item.State != owner.ItemHeld {
				t.Errorf("item = %+v", item)
			}
		},
		"held and refused": func(t *testing.T, m *meshtest.Member, _ *meshtest.Stranger) {
			reply(t, m, "mesh.negotiate", deal, "held")
			decide(t, m, theAsk(t, m), acl.Reject)
			if item := theItem(t, m); item.State != owner.ItemNew {
				t.Errorf("item = %+v", item)
			}
		},
		"blocked": func(t *testing.T, m *meshtest.Member, chris *meshtest.Stranger) {
			if err := acl.NewRules(m.Store.Records(), acl.Policy{}).Set(t.Context(), string(chris.ID), acl.Blocked, time.Now()); err != nil {
				t.Fatal(err)
			}
		},
		"closed": func(t *testing.T, m *meshtest.Member, chris *meshtest.Stranger) {
			must(t, m.Post(chris.Sign(in("conv_one", chris.Draft(m.ID(), wire.Deliver, closing)))), http.StatusOK)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mesh := meshtest.InMemory(t)
				chris := mesh.Stranger("chris")
				s := &sleeper{}
				sarah := mesh.Node("sarah", withSleeper(s))
				sarah.Start()
				must(t, sarah.Post(chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Deliver, hello)))), http.StatusAccepted)
				synctest.Wait()
				act(t, sarah, chris)
				time.Sleep(2 * time.Hour)
				equal(t, "calls", s.woken(), firstAndReminder[:1])
				if got := noticesOf(t, sarah, "unanswered"); len(got) != 0 {
					t.Errorf("notices = %q", got)
				}
			})
		})
	}
}

func reply(t *testing.T, m *meshtest.Member, intent, payload, want string) {
	t.Helper()
	var sent owner.Sent
	body := map[string]any{"conversation": "conv_one", "intent": intent, "payload": json.RawMessage(payload)}
	if status := m.Call("POST", "/reply", body, &sent); status != http.StatusOK || string(sent.State) != want {
		t.Fatalf("reply: %d %+v, want %s", status, sent, want)
	}
}
