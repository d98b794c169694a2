package mess

import (
	"context"
	"sync"
	"testing"

	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

type meshNode struct {
	*lab
	node   *meshtest.Member
	bridge *Bridge
}

type directoryMesh struct {
	bridge.Mesh
	find func(client.Query) ([]wire.Card, error)
}

func (m directoryMesh) Find(_ context.Context, q client.Query) ([]wire.Card, error) { return m.find(q) }

// listAgents returns a mesh whose directory lists these agents for every query.
func listAgents(m bridge.Mesh, agents ...wire.AgentID) bridge.Mesh {
	var cards []wire.Card
	for _, id := range agents {
		cards = append(cards, wire.Card{ID: id})
	}
	return directoryMesh{m, func(client.Query) ([]wire.Card, error) { return cards, nil }}
}

// newMeshNode starts a node with a bridge; change adapts its configuration.
func newMeshNode(t *testing.T, mesh *meshtest.Mesh, name string, change func(*Config)) *meshNode {
	t.Helper()
	return newMeshNodeWith(t, mesh, name, change, func(*node.Config) {})
}

// newMeshNodeWith is newMeshNode with a different node configuration.
func newMeshNodeWith(t *testing.T, mesh *meshtest.Mesh, name string, change func(*Config), more func(*node.Config)) *meshNode {
	t.Helper()
	p := &meshNode{}
	first := mesh.Node(name, more)
	first.Stop()
	p.node = mesh.Copy(first, more)
	if _, err := p.node.Registrar().Register(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	p.lab = labOn(t, p.node.Store)
	seen, err := p.node.Attach(LinkKind(), nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Exchange: p.lab.Exchange, Serve: true, Local: true, Mesh: seen, Notices: p.node.Notices, Store: p.node.Store,
	}
	if change != nil {
		change(&cfg)
	}
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.bridge = b
	p.node.Connect(LinkKind(), b)
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

func (p *meshNode) waitStatus(ref string, code thread.Code) *thread.Thread {
	p.t.Helper()
	eventually(p.t.(*testing.T), ref+" "+string(code), func() bool { return p.thread(ref).Status == code })
	return p.thread(ref)
}

// waitMeshThread returns the only thread that came from the mesh.
func (p *meshNode) waitMeshThread() string {
	p.t.Helper()
	var ref string
	eventually(p.t.(*testing.T), "a thread from the mesh", func() bool {
		page, err := p.List(context.Background(), exchange.Owner("test"), "", "", 10)
		if err == nil && len(page.Threads) > 0 {
			ref = page.Threads[0].Ref
		}
		return ref != ""
	})
	return ref
}
