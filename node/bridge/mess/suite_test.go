package mess

import (
	"context"
	"io/fs"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread/threadtest"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// suiteBridge is the bridge for the common test suite: its link leads to a foreign side that the test plays.
type suiteBridge struct {
	*Bridge
	fake *fakeRemote
}

func (b *suiteBridge) Inject(ctx context.Context, peer string, raw []byte) {
	block, err := thread.Parse(raw)
	if err != nil {
		return
	}
	l := b.links.All()[0]
	in, err := l.newBlockInbound(peer, thread.Digest(block.Tree()), block)
	if err != nil {
		return
	}
	in.Records = []store.Change{l.change(shared{Key: exchange.SharedKey(string(in.Peer), string(in.ConvID)), Conv: string(in.ConvID), There: string(in.MessageID)})}
	_, _ = l.cfg.Mesh.Accept(ctx, in)
}

func (b *suiteBridge) Next(ctx context.Context, _ string) ([]byte, error) {
	select {
	case raw := <-b.fake.got:
		return raw, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (b *suiteBridge) Mirror(raw []byte) []byte { return raw }

func (b *suiteBridge) Disconnect() { b.fake.down.Lock() }

func (b *suiteBridge) Reconnect() { b.fake.down.Unlock() }

type fakeRemote struct {
	got  chan []byte
	down sync.Mutex // held while the link is broken
}

func (r *fakeRemote) self(context.Context) string { return "us" }

func (r *fakeRemote) setSelf(context.Context, string) error { return nil }

func (r *fakeRemote) create(_ context.Context, _ string, body wire.Value) (string, error) {
	if !r.down.TryLock() {
		return "", &client.SendError{Retry: true}
	}
	defer r.down.Unlock()
	r.got <- thread.Block{{Type: "request", Body: body}}.YAML()
	return "2026-01-31-001", nil
}

func (r *fakeRemote) post(context.Context, string, string, thread.Block) error { return nil }

func (r *fakeRemote) resume(context.Context, string) error { return nil }

func (r *fakeRemote) pause() time.Duration { return time.Hour }

func (r *fakeRemote) list(context.Context) ([]remoteThread, error) { return nil, nil }

func (r *fakeRemote) view(context.Context, string) (remoteView, error) {
	return remoteView{}, nil
}

func (r *fakeRemote) attachment(context.Context, string, string) ([]byte, error) {
	return nil, fs.ErrNotExist
}

func (r *fakeRemote) probe(context.Context) error { return nil }

// TestBridgeSuite runs the tests that every bridge must pass.
func TestBridgeSuite(t *testing.T) {
	address := func(peer string) bridge.Address { return bridge.Address{Kind: Kind, Link: "garden", Peer: peer} }
	var hostiles [][]byte
	for _, text := range threadtest.Hostile() {
		hostiles = append(hostiles, []byte(text))
	}
	hostiles = append(hostiles, []byte("- request: {intent: 3}"), []byte("- status: {re: x}"), []byte("MESS: []"))
	bridgetest.Suite{
		Address:   address,
		Principal: func(peer string) string { return address(peer).String() },
		LinkKind:  LinkKind(),
		Peers:     [2]string{"roomba", "household:teague-phone"},
		New: func(t *testing.T, mesh bridge.Mesh, node *meshtest.Member) bridgetest.Bridge {
			s := meshtest.Store(t)
			own, err := New(Config{Exchange: exchange.New(exchange.Config{Store: s}), Store: s, Mesh: bridgetest.NewMesh(nil, s)})
			if err != nil {
				t.Fatal(err)
			}
			threads := LinkKind() // received by a separate exchange
			threads.Name = "exchange"
			node.Connect(threads, own)
			b, err := New(Config{Exchange: exchange.New(exchange.Config{Store: node.Store}), Store: node.Store, Mesh: mesh,
				HTTP: client.NewHTTP(client.HTTPConfig{Local: true}), Links: []bridge.Link{{Name: "garden", Kind: Kind, URL: "http://127.0.0.1:9"}}})
			if err != nil {
				t.Fatal(err)
			}
			fake := &fakeRemote{got: make(chan []byte, 100)}
			b.links.All()[0].remote = fake
			return &suiteBridge{b, fake}
		},
		Message: func(n int) []byte { return []byte("- request: {id: m" + strconv.Itoa(n) + ", intent: hello}") },
		Kinds: []bridgetest.Kind{{
			Name: "request", Intent: Intent,
			Payload: `{"action":"request","mess":[{"request":{"id":"a","intent":"look\nhere","requires":["x",{"y":{"level":"expert"}}],"own":{"k":[1,2.50]}}}]}`,
		}},
		Hostile: hostiles,
	}.Run(t)
}
