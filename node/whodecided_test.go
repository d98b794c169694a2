package node_test

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestWhoDecided: the view of an agreement and its notice say whether the owner or the owner's agent decided, under which
// rule, after how many turns, and how long after the proposal.
func TestWhoDecided(t *testing.T) {
	t.Parallel()
	accept, err := wire.Parse([]byte(`{"action":"accept"}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		hold []acl.HoldRule
		hook bool
		does func(t *testing.T, call func(path string, body any) int, ask func() acl.Ask)
		want *regexp.Regexp
	}{
		{"a hook", nil, true, nil, regexp.MustCompile(`agreed by your agent, 1 turn, \d+s: `)},
		{"a hook under a rule", []acl.HoldRule{{Intent: "mesh.schedule", Hold: acl.Always, Name: "short meetings", Unless: acl.Mandate{Length: time.Hour, PerPeerDay: 1}}},
			true, nil, regexp.MustCompile(`agreed by your agent under the rule short meetings, 1 turn, \d+s: `)},
		{"a hook whose answer the owner approves", []acl.HoldRule{{Intent: "mesh.schedule", Direction: acl.Out, Hold: acl.Always}}, true,
			func(t *testing.T, call func(path string, body any) int, ask func() acl.Ask) {
				a := ask()
				if status := call("/approvals/"+a.ID, owner.Decision{Choice: acl.Approve, Hash: a.Hash}); status != http.StatusOK {
					t.Errorf("approve: %d", status)
				}
			}, regexp.MustCompile(`agreed by you: `)},
		{"the owner", nil, false, func(t *testing.T, call func(path string, body any) int, _ func() acl.Ask) {
			if status := call("/reply", map[string]any{"conversation": "conv_1", "payload": json.RawMessage(`{"action":"accept"}`)}); status != http.StatusOK {
				t.Errorf("reply: %d", status)
			}
		}, regexp.MustCompile(`agreed by you: `)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			day, mesh := workday(), meshtest.New(t)
			chris := newPeer(t, mesh, "chris")
			chris.answers(chris.says(`{"action":"received"}`))
			sarah := mesh.Node("sarah", func(cfg *node.Config) {
				unlimited(cfg)
				for i := range tt.hold {
					tt.hold[i].Unless.Peers = nil
					if tt.hold[i].Unless.Length > 0 {
						tt.hold[i].Unless.Peers = []string{string(chris.ID)}
					}
				}
				cfg.Policy.Hold = tt.hold
				if tt.hook {
					cfg.Routes = []node.Route{{Pattern: "mesh.schedule", Name: "agent", Handler: handler(func(context.Context, hook.Call) (hook.Answer, error) {
						return hook.Answer{Payload: &accept}, nil
					})}}
				}
			})
			sarah.Post(chris.Sign(in("conv_1", chris.Draft(sarah.ID(), wire.Schedule, string(coffee(t, day.Add(13*time.Hour)).JSON())))))
			if tt.does != nil {
				tt.does(t, func(path string, body any) int { return sarah.Call("POST", path, body, nil) }, func() acl.Ask { return theAsk(t, sarah) })
			}
			var shown owner.Conversation
			waitFor(t, "an agreement", func() bool {
				sarah.Call("GET", "/conversations/conv_1?peer="+string(chris.ID), nil, &shown)
				return len(shown.Agreements) == 1
			})
			if got := "agreed " + shown.Agreements[0].Decided() + ": "; !tt.want.MatchString(got) {
				t.Errorf("shown: %q, want %s", got, tt.want)
			}
			if told := noticesOf(t, sarah, "agreed"); len(told) != 1 || !tt.want.MatchString(told[0]) {
				t.Errorf("notices: %q, want one with %s", told, tt.want)
			}
		})
	}
}
