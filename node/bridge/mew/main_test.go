package mew

import (
	"context"
	"net"
	"net/url"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/bridge/mew/gateway"
	"github.com/agentmesh/agentmesh/node/bridge/mew/link"
	"github.com/agentmesh/agentmesh/node/bridge/mew/mewtest"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start hosts the space lab. The admin, the node and cat may do everything, alice and bob less.
func start(t testing.TB) *mewtest.Rig[*gateway.Gateway] {
	t.Helper()
	some := mewtest.Caps(t, "chat", "chat/*", "mcp/proposal", "mcp/withdraw", "reasoning/*", "stream/*", "participant/*")
	space := gateway.SpaceConfig{ID: "lab"}
	for _, name := range []string{"admin", "node", "cat", "alice", "bob"} {
		p := gateway.Participant{Name: name, Tokens: []string{name + "-token"}, Capabilities: some}
		if name == "admin" || name == "node" || name == "cat" {
			p.Capabilities = mewtest.Caps(t, "*")
		}
		space.Participants = append(space.Participants, p)
	}
	return mewtest.NewRig(t, t.TempDir(), nil, func(records store.Records) (*gateway.Gateway, error) {
		return gateway.New(t.Context(), gateway.Config{Spaces: []gateway.SpaceConfig{space}, Records: records, PublicURL: "ws://gateway.example"})
	})
}

// blockedNode is a node that accepts nothing.
type blockedNode struct{}

func (blockedNode) Accept(ctx context.Context, _ bridge.Inbound) (bridge.Outcome, error) {
	<-ctx.Done()
	return bridge.Outcome{}, ctx.Err()
}

// startLink joins the space of r over the link home.
func startLink(t testing.TB, r *mewtest.Rig[*gateway.Gateway]) *link.Bridge {
	t.Helper()
	b, err := link.New(link.Config{
		Links: []bridge.Link{{Name: "home", Kind: link.Kind, URL: r.URL(""), Space: "lab"}}, Steps: r.Store.Steps(), Mesh: bridgetest.Mesh{Receiver: blockedNode{}}, Records: r.Store.Records(),
		Tokens: map[string]client.Credential{"home": "node-token"}, Retry: 5 * time.Millisecond, MaxRetry: 50 * time.Millisecond,
		Dial: func(ctx context.Context, u *url.URL) (net.Conn, error) { return r.Dial(ctx, u) },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	await(t, func() bool { return b.Links()[0].State == bridge.LinkUp })
	return b
}

// await waits until a condition holds.
func await(t testing.TB, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(time.Minute)
	for !holds() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatal("the condition did not hold within a minute")
		}
	}
}
