package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// echoAddress is the address of the echo agent. The agent lives in this process, so an owner can try a conversation
// before anybody else is there.
var echoAddress = bridge.Address{Kind: "echo", Link: "self", Peer: "echo"}

func echoKind() bridge.Kind {
	return bridge.Kind{Name: echoAddress.Kind, Screens: true} // no need to look for personal data: nothing leaves the process
}

// echoAgent answers each text message in a conversation that the node opened, and quotes it.
type echoAgent struct{ node bridge.Receiver }

// Deliver implements [bridge.Transport]. The answer is stored before the delivery ends. A second attempt has the same
// answer, which the node recognizes as a repeat.
func (a echoAgent) Deliver(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
	message, _ := d.Message.Payload.Get("message")
	text := message.GetStr("body")
	if text == "" {
		return bridge.Delivered{Queued: true}, nil // it answers only messages with a text
	}
	payload := wire.Obj(
		wire.TextField("action", "deliver"),
		wire.Field("message", wire.Obj(
			wire.TextField("body", "You said: "+text), wire.Field("reply_requested", wire.Bool(false)),
		)),
	)
	sum := sha256.Sum256([]byte("echo\x00" + d.ID))
	now := time.Now()
	_, err := a.node.Accept(ctx, bridge.Inbound{
		Principal: echoAddress.String(), Peer: echoAddress.Pseudonym(), Address: echoAddress.String(), Name: "Echo", Verified: bridge.VerifiedNone,
		MessageID: wire.MessageID("msg_" + hex.EncodeToString(sum[:16])), ConvID: d.Message.Conversation, Intent: wire.Deliver,
		Payload: payload, Time: now, Received: now, Raw: payload.JSON(), Digest: sum, Unattended: true,
	})
	if refusal, ok := errors.AsType[*wire.Error](err); ok {
		return bridge.Delivered{}, &client.SendError{Retry: refusal.Retry, Refusal: refusal}
	}
	return bridge.Delivered{Queued: true}, err
}

// connectEcho connects the echo agent to a node.
func connectEcho(n *node.Node) error {
	mesh, err := n.Attach(echoKind(), nil)
	if err != nil {
		return err
	}
	n.Connect(echoKind(), echoAgent{mesh})
	return nil
}
