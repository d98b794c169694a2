package bridgetest

import (
	"context"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// Mesh is a [bridge.Mesh] without a node, for tests of a bridge alone. It sends and finds nothing, and it has no
// events.
type Mesh struct {
	bridge.Receiver // nil refuses every message
	asks            *acl.Asks
	rules           *acl.Rules
	records         store.Records
}

// NewMesh returns a mesh that keeps questions and rules in s.
func NewMesh(receiver bridge.Receiver, s store.Store) Mesh {
	return Mesh{receiver, acl.NewAsks(s), acl.NewRules(s.Records(), acl.Policy{}), s.Records()}
}

var _ bridge.Mesh = Mesh{}

func (m Mesh) Accept(ctx context.Context, in bridge.Inbound) (bridge.Outcome, error) {
	if m.Receiver == nil {
		return bridge.Outcome{}, wire.ErrUnavailable
	}
	return m.Receiver.Accept(ctx, in)
}

func (m Mesh) ID() wire.AgentID { return "am_alone" }

// Identity implements [bridge.Mesh]. The card is empty.
func (m Mesh) Identity() (wire.Card, *signing.PrivateKey) {
	return wire.Card{}, signing.NewEd25519FromSeed(make([]byte, 32))
}

func (m Mesh) Items(context.Context, store.ConvKey) ([]bridge.ItemState, error) { return nil, nil }

func (m Mesh) Receive(context.Context, []byte) (bridge.Outcome, error) {
	return bridge.Outcome{}, wire.ErrUnavailable
}

func (m Mesh) Send(context.Context, bridge.Outgoing) (owner.Sent, error) {
	return owner.Sent{}, wire.ErrUnavailable
}

func (m Mesh) Find(context.Context, client.Query) ([]wire.Card, error) { return nil, nil }

func (m Mesh) Follow(ctx context.Context, _ func(bridge.Event)) { <-ctx.Done() }

func (m Mesh) Reachable(bridge.Address) {}

func (m Mesh) Decide(context.Context, store.ConvKey, bool) error { return wire.ErrUnavailable }

func (m Mesh) Standing(ctx context.Context, principal string, now time.Time) (acl.Standing, error) {
	return m.rules.Standing(ctx, principal, now)
}

func (m Mesh) Asks() *acl.Asks { return m.asks }

func (m Mesh) PutTask(ctx context.Context, _ bridge.Task, changes []store.Change) error {
	return m.records.Apply(ctx, changes, time.Now())
}
