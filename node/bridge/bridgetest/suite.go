// Package bridgetest is the test suite that every bridge passes. It checks that a mapping preserves every field that
// it does not declare as lost, that hostile input is harmless, that a bridge recovers from a broken link, and that a
// foreign message meets the same access rules, limits and approvals as a native one.
//
// The package is for tests only and knows no particular bridge: the test of a bridge fills a [Suite] and calls
// [Suite.Run]. The suite stands between the bridge and the node, so it checks what the bridge really hands over.
package bridgetest

import (
	"context"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// patience is how long the suite waits for an expected event.
const patience = 20 * time.Second

// Suite describes a bridge to the tests. Every field except Hostile is required.
type Suite struct {
	// Address returns the address of the foreign peer named peer. Principal returns the subject of access rules and
	// limits for that peer: its address, or the whole link.
	Address   func(peer string) bridge.Address
	Principal func(peer string) string
	// LinkKind declares the links of the bridge.
	LinkKind bridge.Kind
	// Peers are the names of two foreign peers.
	Peers [2]string

	// New connects a bridge on a node to a foreign network that the test simulates. The bridge stops with the test.
	New func(t *testing.T, mesh bridge.Mesh, node *meshtest.Member) Bridge

	// Message returns foreign message number n. The message is of the simplest kind, needs no answer, and is in a
	// conversation of its own. The same n gives the same bytes.
	Message func(n int) []byte
	// Kinds are the native messages that the bridge maps.
	Kinds []Kind
	// Hostile are foreign messages that the bridge must not hand to the node, or that the node must refuse.
	Hostile [][]byte
}

// Bridge is the bridge under test together with the foreign network that it is linked to.
type Bridge interface {
	bridge.Transport

	// Inject makes a foreign peer send raw to the node. It returns when the bridge has finished with raw, whatever the
	// result.
	Inject(ctx context.Context, peer string, raw []byte)
	// Next returns the next message that the foreign peer gets. It waits until ctx ends.
	Next(ctx context.Context, peer string) ([]byte, error)
	// Mirror turns a message that a foreign peer got into the message with which the peer would say the same to the
	// node.
	Mirror(raw []byte) []byte
	// Disconnect breaks the link and Reconnect restores it.
	Disconnect()
	Reconnect()
}

// Kind is a native message that the bridge maps, to the foreign side and back.
type Kind struct {
	Name    string
	Intent  wire.Intent
	Payload string        // JSON
	Losses  []bridge.Loss // what does not come back; declaring a loss that does come back is an error
}

// Run runs the suite.
func (s Suite) Run(t *testing.T) {
	for _, kind := range s.Kinds {
		t.Run("round trip "+kind.Name, func(t *testing.T) { s.roundTrip(t, kind) })
	}
	t.Run("hostile input", s.hostile)
	t.Run("reconnect", s.reconnect)
	t.Run("repeat", s.repeat)
	t.Run("peers", s.peers)
	t.Run("stranger is held", s.strangerIsHeld)
	t.Run("stranger says too much", s.heldBacklogBound)
	t.Run("owner rejects", s.ownerRejects)
	t.Run("approved for good", s.approvedForGood)
	t.Run("blocked", s.blockedPrincipal)
	t.Run("blocked while held", s.blockedWhileHeld)
	t.Run("limits", s.limits)
	t.Run("not listed", s.allowlistOnly)
	t.Run("link with an allowlist", s.linkAllowlist)
	t.Run("link without policy.access", s.linkDefault)
	t.Run("open link", s.linkOpen)
	t.Run("release behind a link", s.linkRelease)
	t.Run("sensitive intent", s.sensitive)
	t.Run("conversation", s.conversation)
	t.Run("flood", s.flood)
}

// fixture is a node and a bridge with the suite's recorder between them.
type fixture struct {
	Suite
	*recorder
	t      *testing.T
	node   *meshtest.Member
	bridge Bridge
}

// start links a new bridge to a new node.
func (s Suite) start(t *testing.T, policy acl.Policy, rates acl.Rates) *fixture {
	t.Helper()
	f := &fixture{Suite: s, t: t, recorder: newRecorder(t)}
	f.node = meshtest.New(t).Node("home", func(c *node.Config) { c.Policy, c.Rates = policy, rates })
	f.store = f.node.Store
	var err error
	if f.Mesh, err = f.node.Attach(s.LinkKind, nil); err != nil {
		t.Fatal(err)
	}
	f.node.Connect(s.LinkKind, f.recorder)
	f.bridge = s.New(t, f.recorder, f.node)
	f.setTransport(f.bridge)
	return f
}

// open returns a fixture without access rules and limits.
func (s Suite) open(t *testing.T) *fixture {
	t.Helper()
	return s.start(t, acl.Policy{Mode: acl.Open}, acl.Rates{})
}

// inject makes peer send message n and returns the call by which the bridge handed the message to the node.
func (f *fixture) inject(peer string, n int) call {
	f.t.Helper()
	before := f.callCount()
	f.bridge.Inject(f.t.Context(), peer, f.Message(n))
	return f.onlyCallAfter(before)
}

// ask returns the only pending question to the owner.
func (f *fixture) ask() acl.Ask {
	f.t.Helper()
	asks, _, err := f.Asks().List(f.t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
	if err != nil || len(asks) != 1 {
		f.t.Fatalf("%d questions wait for the owner, %v, want 1", len(asks), err)
	}
	return asks[0]
}

func (f *fixture) decide(ask acl.Ask, c acl.Choice) error {
	_, err := f.Asks().Decide(f.t.Context(), ask.ID, ask.Hash, c, "test", time.Now())
	return err
}
