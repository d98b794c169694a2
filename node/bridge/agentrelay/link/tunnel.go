package link

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	tunnelType      = "agentmesh"      // of the frames with a signed AgentMesh message inside: the tunnel
	tunnelTimeout   = 25 * time.Second // how long a sender waits for an answer
	tunnelPerMinute = 60               // messages of one peer; bounded because the node signs each answer

	maxTunneled        = 64 // tunneled messages that the node handles at the same time
	maxTunneledPerPeer = 4  // of one peer; no node sends more at once (AM-79)
)

func waitKey(from, ref string) string { return from + "\x00" + ref }

// handToWaiter hands the payload of a frame to the goroutine that waits for it: for a reply through the tunnel, or for
// the relay's answer to a command. The answer has the ref of the frame that it answers. handToWaiter returns false if
// no goroutine waits.
func (l *Link) handToWaiter(tree wire.Value) bool {
	from, ref := tree.GetStr("from"), tree.GetStr("ref")
	if ref == "" || from != frame.RelayID && tree.GetStr("type") != tunnelType {
		return false
	}
	payload, _ := tree.Get("payload")
	return l.waiters.Give(waitKey(from, ref), payload)
}

// handleTunnel gives a signed message to the node, which receives it as if it had been posted (AR-59). The signature,
// not the relay, proves who wrote it. The node may wait for its hook, so other frames do not wait for the node. If too
// many tunneled messages are being handled, handleTunnel drops this one, and its sender tries again.
func (l *Link) handleTunnel(ctx context.Context, h *incoming) {
	message := h.payload
	// A frame with a ref other than the id of its own message is an answer. handToWaiter found nobody who waits for
	// this one. It gets no answer: otherwise two nodes would answer each other forever.
	_, isRefusal := message.Get("error")
	isAnswer := h.ref != "" && h.ref != message.GetStr("message_id")
	raw := message.JSON()
	if isRefusal || isAnswer || message.Kind() != wire.Object || len(raw) > frame.MaxPayload {
		return
	}
	// If too many peers have a bucket, that of a new peer replaces the fullest one.
	if _, ok := l.tunnelRates.TakeOrReplace(h.from, time.Now()); !ok {
		return
	}
	leave, ok := l.tunnelPlaces.Enter(h.from)
	if !ok {
		return
	}
	l.tunnelWork.Go(func() {
		defer leave()
		l.receiveTunneled(ctx, h, raw)
	})
}

func (l *Link) receiveTunneled(ctx context.Context, h *incoming, raw []byte) {
	out, err := l.cfg.Mesh.Receive(ctx, raw)
	answer := out.Raw
	if err != nil {
		refusal, ok := errors.AsType[*wire.Error](err)
		if !ok {
			refusal = wire.ErrUnavailable
		}
		answer = refusal.AppendJSON(nil)
		l.log.Info("a tunneled message was refused", "peer", h.from, "err", err)
	}
	if len(answer) == 0 {
		return
	}
	if data, ok := tunnelFrame(h.from, cmp.Or(h.ref, h.id), answer); ok {
		l.sender.answer(h.from, data)
	}
}

// tunnelFrame wraps a signed message or a refusal in a frame. ok is false if the message is too large, or is not
// JSON that a relay accepts.
func tunnelFrame(to, ref string, message []byte) (data []byte, ok bool) {
	v, err := wire.ParseForeign(message, frame.MaxDepth, frame.MaxValues)
	if err != nil || len(message) > frame.MaxPayload {
		return nil, false
	}
	return frame.Request(to, tunnelType, ref, v).JSON(), true
}

// Carry sends a signed message through a tunnel to recipient. It returns the answer, which is not verified yet.
// carried is false if none of the links has a peer to which the owner assigned that agent id.
func Carry(ctx context.Context, links []*Link, recipient wire.AgentID, message []byte) (answer []byte, carried bool, err error) {
	if len(links) == 0 {
		return nil, false, nil
	}
	page, err := links[0].convStore.records.List(ctx, nsPeers, "agent:"+string(recipient), "", 10, time.Now())
	if err != nil {
		return nil, false, err
	}
	for _, l := range links {
		for _, rec := range page.Records {
			var p Peer
			if json.Unmarshal(rec.Body, &p) == nil && rec.Key == l.peers.recordKey(p.Peer) {
				answer, err := l.sendTunnel(ctx, p.Peer, message)
				return answer, true, err
			}
		}
	}
	return nil, false, nil
}

// sendTunnel sends a signed message to a peer, and waits for the answer.
func (l *Link) sendTunnel(ctx context.Context, peer string, message []byte) ([]byte, error) {
	v, err := wire.ParseForeign(message, frame.MaxDepth, frame.MaxValues)
	if err != nil {
		return nil, undeliverableError{"the message is not valid JSON for a relay"}
	}
	ref := v.GetStr("message_id")
	data, ok := tunnelFrame(peer, ref, message)
	if !ok {
		return nil, undeliverableError{"the message is larger than 60 KiB, which is the limit of the tunnel"}
	}
	answers, forget := l.waiters.Expect(waitKey(peer, ref))
	defer forget()
	if err := l.explainWait(l.sender.send(data)); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, tunnelTimeout)
	defer cancel()
	select {
	case v := <-answers:
		return v.JSON(), nil
	case <-ctx.Done(): // a retry sends the same bytes and gets the stored answer (AM-21)
		return nil, retryLater(0, "no answer came through the tunnel")
	}
}
