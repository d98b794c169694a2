package node_test

import (
	"context"
	"net/http"
	"strconv"
	"testing"

	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestBrake (AM-94): a hook's answer is left out if both it and the message that it answers were sent before.
func TestBrake(t *testing.T) {
	for _, tt := range []struct {
		name    string
		intent  wire.Intent
		says    []string // by the peer
		answers []string // by the hook; the last one repeats
		gets    []string // by the peer: the action of each answer
	}{
		{"both repeat", wire.Deliver, []string{hello, hello, hello}, []string{hello}, []string{"deliver", "received", "received"}},
		{"the peer says something else each time", wire.Deliver, []string{hello, `{"action":"deliver","message":{"body":"2"}}`, `{"action":"deliver","message":{"body":"3"}}`}, []string{hello}, []string{"deliver", "deliver", "deliver"}},
		{"the hook says something else each time", wire.Deliver, []string{hello, hello}, []string{hello, `{"action":"deliver","message":{"body":"2"}}`}, []string{"deliver", "deliver"}},
		{"only the metadata differ", wire.Deliver, []string{hello, `{"action":"deliver","message":{"body":"hello"},"metadata":{"n":2}}`}, []string{hello}, []string{"deliver", "received"}},
		{"a refusal", wire.Schedule, []string{proposeCoffee, proposeCoffee}, []string{`{"action":"decline"}`}, []string{"decline", "decline"}},
		{"an acceptance", wire.Schedule, []string{proposeCoffee, proposeCoffee}, []string{`{"action":"accept"}`}, []string{"accept", "accept"}},
		{"an answer to an accept, which a receipt would confirm", wire.Schedule, []string{proposeCoffee, `{"action":"accept"}`, `{"action":"accept"}`}, []string{`{"action":"counter","event":{"proposed_times":["2036-02-21T11:00:00-08:00"]}}`}, []string{"counter", "counter", "counter"}},
		{"a counter", wire.Schedule, []string{proposeCoffee, proposeCoffee}, []string{`{"action":"counter","event":{"proposed_times":["2036-02-21T11:00:00-08:00"]}}`}, []string{"counter", "received"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := 0
			mesh := meshtest.New(t)
			chris := mesh.Stranger("chris")
			sarah := mesh.Node("sarah", func(cfg *node.Config) {
				open(cfg)
				cfg.Routes = []node.Route{{Pattern: "*", Name: "test", Replies: true, Handler: handler(func(context.Context, hook.Call) (hook.Answer, error) {
					text := tt.answers[min(n, len(tt.answers)-1)]
					n++
					return hook.Answer{Payload: new(parsePayload(t, text))}, nil
				})}}
			})
			for i, text := range tt.says {
				a := sarah.Post(chris.Sign(in("conv_1", chris.Draft(sarah.ID(), tt.intent, text))))
				must(t, a, http.StatusOK)
				if got := a.Message(t, sarah); got.Action() != tt.gets[i] {
					t.Errorf("answer %s is %s, want %s", strconv.Itoa(i+1), got.Payload.JSON(), tt.gets[i])
				}
			}
		})
	}
}
