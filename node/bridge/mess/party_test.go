package mess

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// party is a node with an exchange.
type party struct {
	*lab
	node   *meshtest.Member
	bridge *Bridge
}

// meshHandler hands messages to a bridge, as cmd does it.
type meshHandler struct{ b func() *Bridge }

func (h meshHandler) Handle(ctx context.Context, c hook.Call) (hook.Answer, error) {
	payload, err := wire.Parse(c.Payload)
	if err != nil {
		return hook.Answer{}, err
	}
	answer, err := h.b().Receive(ctx, Incoming{From: c.Message.From, Address: c.Conversation.Address, Conv: c.Message.Conversation, ID: c.Message.ID, Payload: payload})
	if err != nil {
		return hook.Answer{Err: Refusal(err)}, nil
	}
	return hook.Answer{Payload: &answer}, nil
}

type meshSender struct{ n *node.Node }

func (s meshSender) SendLetter(ctx context.Context, l Letter) (wire.MessageID, error) {
	sent, err := s.n.Send(ctx, node.Outgoing{To: l.To, Address: l.Address, Conv: l.Conv, Intent: l.Intent, Payload: l.Payload, Via: "bridge", Records: l.Records}, 0)
	return sent.MessageID, err
}

// newParty starts a node with a bridge; change sets what a test needs.
func newParty(t *testing.T, mesh *meshtest.Mesh, name string, change func(*Config)) *party {
	t.Helper()
	return newPartyWith(t, mesh, name, change, func(*node.Config) {})
}

// newPartyWith is newParty with a node of another configuration.
func newPartyWith(t *testing.T, mesh *meshtest.Mesh, name string, change func(*Config), more func(*node.Config)) *party {
	t.Helper()
	p := &party{}
	transports := map[string]bridge.Transport{}
	configure := func(c *node.Config) {
		c.Routes = []node.Route{{Pattern: string(Intent), Name: "mess", Handler: meshHandler{func() *Bridge { return p.bridge }}, Repeatable: true, Receipts: "ack"}}
		c.Transports = transports
		more(c)
	}
	first := mesh.Node(name, configure)
	first.Stop()
	transports[Kind] = lazyTransport{&p.bridge}
	p.node = mesh.Copy(first, configure)
	if _, err := p.node.Register(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	p.lab = labOn(t, p.node.Store)
	cfg := Config{
		Exchange: p.lab.Exchange, Serve: true, Local: true, Node: p.node, Self: p.node.ID, Sender: meshSender{p.node.Node},
		Asks: p.node.Asks(), Desk: p.node, Notices: p.node.Notices, Store: p.node.Store,
	}
	if change != nil {
		change(&cfg)
	}
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.bridge = b
	p.node.Follow(b)
	p.node.Answers(Kind, b)
	p.node.KeepOpen(Intent, 90*24*time.Hour)
	p.node.Start()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := b.Run(ctx); err != nil {
			t.Errorf("bridge of %s: %v", name, err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return p
}

type lazyTransport struct{ b **Bridge }

func (l lazyTransport) Deliver(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
	return (*l.b).Deliver(ctx, d)
}

// eventually waits for something that another goroutine brings about.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for !done() {
		select {
		case <-again.C:
		case <-deadline.C:
			t.Fatalf("%s did not happen", what)
		}
	}
}

func (p *party) reaches(ref string, code thread.Code) *thread.Thread {
	p.t.Helper()
	eventually(p.t.(*testing.T), ref+" "+string(code), func() bool { return p.thread(ref).Status == code })
	return p.thread(ref)
}

// theirs returns the one thread that came from the mesh.
func (p *party) theirs() string {
	p.t.Helper()
	var ref string
	eventually(p.t.(*testing.T), "a thread from the mesh", func() bool {
		page, err := p.List(context.Background(), Owner("test"), "", position{}, 10)
		if err == nil && len(page.Threads) > 0 {
			ref = page.Threads[0].Ref
		}
		return ref != ""
	})
	return ref
}
