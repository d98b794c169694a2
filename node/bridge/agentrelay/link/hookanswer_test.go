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
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// agent is a hook.
type agent func(context.Context, hook.Call) (hook.Answer, error)

func (a agent) Handle(ctx context.Context, c hook.Call) (hook.Answer, error) { return a(ctx, c) }

// connectNode links a node of a mesh to a relay.
func connectNode(t *testing.T, home *meshtest.Member) *testLink {
	t.Helper()
	m, err := home.Attach(Declare(), nil)
	if err != nil {
		t.Fatal(err)
	}
	x := newTestLink(t, Config{Mesh: m, Store: home.Store}, nil)
	home.Connect(Declare(), x)
	return x
}

// TestAnswerToOurs: the answer to a question of the node ends the conversation after the hook has handled the answer,
// and not while the answer waits for the owner.
func TestAnswerToOurs(t *testing.T) {
	for state, set := range map[owner.ItemState]func(*node.Config){
		owner.ItemAnswered: func(c *node.Config) {
			c.Routes = []node.Route{{Pattern: "*", Name: "agent", Handler: agent(func(context.Context, hook.Call) (hook.Answer, error) { return hook.Answer{}, nil })}}
		},
		owner.ItemHeld: func(c *node.Config) {
			c.Policy.Hold = []acl.HoldRule{{Intent: string(wire.RequestInfo), Direction: acl.In, Hold: acl.Always}}
		},
	} {
		home := meshtest.New(t).Node("home", set)
		x := connectNode(t, home)
		to := arcAddress("agent-042")
		question, err := wire.Parse([]byte(`{"action":"ask","question":"where?"}`))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := home.Send(t.Context(), node.Outgoing{To: to.Pseudonym(), Address: to.String(), Intent: wire.RequestInfo, Payload: question, Via: "owner"}, patience); err != nil {
			t.Fatal(err)
		}
		x.from("agent-042", `{"id":"a1","type":"answer","ref":"%s","payload":"there"}`, x.nextFrame().GetStr("ref"))
		items, _, err := home.Inbox(t.Context(), "", "", 10)
		if err != nil || len(items) != 1 || items[0].State != state {
			t.Errorf("want the answer %s: %+v, %v", state, items, err)
		}
	}
}

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
	x := connectNode(t, home)
	x.from("agent-042", `{"id":"q1","type":"question","payload":"one"}`)
	x.from("agent-042", `{"id":"q2","type":"question","ref":"q1","payload":"two"}`)
	x.Disconnect()
	close(free)
	for deadline := time.Now().Add(patience); ; <-time.After(time.Millisecond) {
		items, _, err := home.Inbox(t.Context(), owner.ItemAnswered, "", 10)
		if err != nil {
			t.Fatal(err)
		}
		if len(items) == 2 {
			break
		} else if time.Now().After(deadline) {
			t.Fatal("the hook has not answered")
		}
	}
	home.Stop()
	home = mesh.Copy(home, set)
	x = connectNode(t, home) // before the outbox sends, as in the daemon
	home.Start()
	got := map[string]string{}
	for range 2 {
		f := x.nextFrame()
		got[f.GetStr("ref")] = f.GetStr("type") + " " + f.GetStr("payload")
	}
	if want := map[string]string{"q1": "answer so one", "q2": "answer so two"}; !maps.Equal(got, want) {
		t.Errorf("the peer got %v, want %v", got, want)
	}
}
