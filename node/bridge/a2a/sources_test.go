package a2a_test

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/a2a"
	"github.com/agentmesh/agentmesh/node/httpapi"
)

// sourcesMesh remembers the sources of the messages that the node accepts.
type sourcesMesh struct {
	bridge.Mesh
	got chan []rate.Source
}

func (m sourcesMesh) Accept(ctx context.Context, in bridge.Inbound) (bridge.Outcome, error) {
	m.got <- in.Sources
	return m.Mesh.Accept(ctx, in)
}

// TestSourcesReachTheNode: the node gets the sources of a caller, so that its limits for strangers tell callers apart
// (AM-42).
func TestSourcesReachTheNode(t *testing.T) {
	public := httpapi.New(httpapi.Config{}) // the local profile limits no address
	h := serve(t, echo(t), approval, func(c *a2a.Config) { c.Anonymous, c.Addresses = true, public.Addresses() })
	h.stop()
	got := make(chan []rate.Source, 10)
	h.wrap = func(m bridge.Mesh) bridge.Mesh { return sourcesMesh{m, got} }
	h.start()
	h.rpc("", "SendMessage", message("m1", "", "hello", later))
	want := rate.AddrSources(netip.MustParseAddr("127.0.0.1"))
	if sources := <-got; len(want) == 0 || !slices.Equal(sources, want) {
		t.Errorf("the node got the sources %v, want %v", sources, want)
	}
}
