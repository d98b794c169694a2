package node

import (
	"context"
	"errors"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Carrier takes a signed message to an agent of the mesh by another way than its endpoint, and returns what it
// answered. carried is false where it knows no way to this agent. An error that says whether to try again is a
// *client.SendError. The answer is verified like that of an endpoint, so a carrier need not be trusted.
type Carrier func(ctx context.Context, to wire.AgentID, message []byte) (answer []byte, carried bool, err error)

// Carry names a carrier, which is asked before a message goes to the endpoint of its recipient. It is for set-up.
func (n *Node) Carry(c Carrier) { n.carriers = append(n.carriers, c) }

// carry tries the carriers; carried is false where none knows a way.
func (n *Node) carry(ctx context.Context, d bridge.Delivery, peer client.Peer) (out bridge.Delivered, carried bool, err error) {
	for _, c := range n.carriers {
		answer, ok, err := c(ctx, d.To, d.Raw)
		if !ok && err == nil {
			continue
		}
		if err != nil {
			return out, true, err
		}
		out, err = n.carried(ctx, d, peer, answer)
		return out, true, err
	}
	return out, false, nil
}

// carried reads what a carrier brought back: the signed reply, or why the other side refused.
func (n *Node) carried(ctx context.Context, d bridge.Delivery, peer client.Peer, answer []byte) (bridge.Delivered, error) {
	v, err := wire.ParseObject(answer)
	if err != nil {
		return bridge.Delivered{}, err
	}
	if refused, ok := wire.ParseError(0, v); ok {
		refused.Message = wire.OneLine(refused.Message, 200)
		return bridge.Delivered{}, &client.SendError{Retry: refused.Retry, Refusal: refused}
	}
	reply, err := wire.ParseMessage(v)
	if err != nil {
		return bridge.Delivered{}, errors.Join(client.ErrReplyUnverified, err)
	}
	checked, err := n.verifier.Reply(ctx, d.Message, reply, peer, time.Now())
	if err != nil {
		return bridge.Delivered{}, err
	}
	return bridge.Delivered{Reply: &reply, Raw: answer, Digest: checked.Digest}, nil
}
