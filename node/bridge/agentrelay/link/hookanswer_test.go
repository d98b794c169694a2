package link

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// agent is a hook.
type agent func(context.Context, hook.Call) (hook.Answer, error)

func (a agent) Handle(ctx context.Context, c hook.Call) (hook.Answer, error) { return a(ctx, c) }

// TestHookAnswers: answers of hooks that come while the link is down survive a restart, and each has the ref of its own
// question, although both questions belong to one conversation (AR-28, AR-53).
func TestHookAnswers(t *testing.T) {
	free := make(chan struct{})
	set := func(c *node.Config) {
		c.Policy = acl.Policy{Mode: acl.Open}
		c.Routes = []node.Route{{Pattern: "*", Name: "agent", Handler: agent(func(_ context.Context, c hook.Call) (hook.Answer, error) {
			<-free
			asked, err := wire.Parse(c.Payload)
			answer := wire.Obj(wire.TextField("action", "answer"), wire.TextField("answer", "so "+asked.GetStr("question")))
			return hook.Answer{Payload: &answer}, err
		})}}
	}
	mesh := meshtest.New(t)
	home := mesh.Node("home", set)
	connect := func(home *meshtest.Member) *testLink {
		m, err := home.Attach(Declare(), nil)
		if err != nil {
			t.Fatal(err)
		}
		x := newTestLink(t, Config{Mesh: m, Store: home.Store}, nil)
		home.Connect(Declare(), x)
		return x
	}
	x := connect(home)
	x.from("agent-042", `{"id":"q1","type":"question","payload":"one"}`)
	x.from("agent-042", `{"id":"q2","type":"question","ref":"q1","payload":"two"}`)
	x.Disconnect()
	close(free)
	for deadline := time.Now().Add(patience); ; <-time.After(time.Millisecond) {
		items, _, err := home.Inbox(t.Context(), node.ItemAnswered, "", 10)
		if err != nil {
			t.Fatal(err)
		}
		if len(items) == 2 {
			break
		} else if time.Now().After(deadline) {
			t.Fatal("the hook has not answered")
		}
	}
	x = connect(mesh.Restart(home, set))
	got := map[string]string{}
	for range 2 {
		f := x.nextFrame()
		got[f.GetStr("ref")] = f.GetStr("type") + " " + f.GetStr("payload")
	}
	if want := map[string]string{"q1": "answer so one", "q2": "answer so two"}; !maps.Equal(got, want) {
		t.Errorf("the peer got %v, want %v", got, want)
	}
}
