package link

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
)

// slowMesh is a mesh that takes long to receive a signed message.
type slowMesh struct {
	bridge.Mesh
	busy    chan<- struct{}
	release <-chan struct{}
}

func (m slowMesh) Receive(context.Context, []byte) (bridge.Outcome, error) {
	close(m.busy)
	<-m.release
	return bridge.Outcome{}, nil
}

// stuckMesh is a mesh that receives no signed message before release is closed.
type stuckMesh struct {
	bridge.Mesh
	busy    chan<- struct{}
	release <-chan struct{}
}

func (m stuckMesh) Receive(context.Context, []byte) (bridge.Outcome, error) {
	m.busy <- struct{}{}
	<-m.release
	return bridge.Outcome{}, nil
}

// TestSlowTunnel: a peer whose tunneled messages take long does not hold up the other peers of the link.
func TestSlowTunnel(t *testing.T) {
	st, n := openStore(t), &fakeNode{}
	busy, release := make(chan struct{}, tunnelPerMinute), make(chan struct{})
	x := newTestLink(t, Config{Mesh: stuckMesh{bridgetest.NewMesh(n, st), busy, release}, Store: st}, nil)
	defer close(release)
	for i := range tunnelPerMinute {
		x.relay.say(fmt.Appendf(nil, `{"id":"t%d","from":"agent-042","to":["our-node"],"type":"agentmesh","payload":{"message_id":"msg_%d"}}`, i, i))
	}
	for i := range 2 * workers { // all workers
		x.relay.say(fmt.Appendf(nil, `{"id":"m%d","from":"agent-%d","to":["our-node"],"type":"thought","payload":"hello"}`, i, i))
	}
	for deadline := time.Now().Add(10 * time.Second); len(n.all()) < 2*workers; <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the node got %d of %d messages of other peers", len(n.all()), 2*workers)
		}
	}
	if len(busy) > maxTunneledPerPeer {
		t.Errorf("the node handles %d tunneled messages of one peer at once, want at most %d", len(busy), maxTunneledPerPeer)
	}
}

// TestRepliesOvertake: a reply does not queue behind a slow message of the same peer. Otherwise two nodes that write to
// each other at once would wait for each other.
func TestRepliesOvertake(t *testing.T) {
	busy, release := make(chan struct{}), make(chan struct{})
	x, _ := newLinkedNode(t, nil, Config{Mesh: slowMesh{bridgetest.Mesh{}, busy, release}})
	defer close(release)
	x.relay.say([]byte(`{"id":"1","from":"agent-042","to":["our-node"],"type":"agentmesh","payload":{"message_id":"msg_theirs"}}`))
	<-busy
	got := make(chan []byte, 1)
	go func() {
		answer, err := x.link.sendTunnel(t.Context(), "agent-042", []byte(`{"message_id":"msg_ours"}`))
		if err != nil {
			t.Errorf("carry: %v", err)
		}
		got <- answer
	}()
	if f := x.nextFrame(); f.GetStr("ref") != "msg_ours" {
		t.Fatalf("the peer got %s", f.JSON())
	}
	x.relay.say([]byte(`{"id":"2","from":"agent-007","to":["our-node"],"type":"agentmesh","ref":"msg_ours","payload":{"forged":true}}`))
	x.relay.say([]byte(`{"id":"3","from":"agent-042","to":["our-node"],"type":"thought","ref":"msg_ours","payload":{"forged":true}}`))
	x.relay.say([]byte(`{"id":"4","from":"agent-042","to":["our-node"],"type":"agentmesh","ref":"msg_ours","payload":{"fine":true}}`))
	if answer := <-got; string(answer) != `{"fine":true}` {
		t.Errorf("carry returned %s", answer)
	}
}
