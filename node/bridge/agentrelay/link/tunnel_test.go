package link

import (
	"context"
	"testing"

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
