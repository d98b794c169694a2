package link

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// deliver sends a message of the node to a participant of the space (MEW-L3).
func (l *Link) deliver(ctx context.Context, peer string, d bridge.Delivery) (bridge.Delivered, error) {
	m := d.Message
	var err error
	switch action := m.Action(); {
	case action == wire.ActionClose:
		err = l.deliverClose(ctx, peer, m)
	case action == wire.ActionReceived || action == wire.ActionPending: // a space has no envelope for these states
	case m.Intent == wire.Deliver && action == "deliver":
		err = l.sendChat(ctx, peer, m, "am-"+d.ID, l.correlationOf(ctx, m))
	case m.Intent == IntentRequest:
		err = l.sendResponse(ctx, m.Conversation, m.Payload)
	case m.Intent == IntentProposal: // its sender gets no answer
	default:
		return bridge.Delivered{}, wire.ErrIntent.At("a MEW space takes mesh.message")
	}
	if err != nil {
		return bridge.Delivered{}, l.deliveryError(peer, err, m.Time)
	}
	return bridge.Delivered{Queued: true}, nil
}

// deliveryError returns the error for the outbox. The outbox tries again, unless the space refused the envelope or the
// node may not send it. If the peer or the space is absent, the message waits for its return. On the first day of a
// message, an attempt that fails at the rate limit of the space does not count.
func (l *Link) deliveryError(peer string, err error, written time.Time) error {
	if refusal, ok := errors.AsType[*refusedBySpace](err); ok {
		return wire.ErrNotAllowed.At(refusal.Error())
	}
	if errors.Is(err, errMayNot) {
		return wire.ErrNotAllowed.At(errMayNot.Error())
	}
	sendErr := &client.SendError{Retry: true, After: l.space.pauseLeft(), Status: wire.ErrUnavailable.Status, Refusal: wire.ErrUnavailable.At(err.Error())}
	switch {
	case errors.Is(err, errLimited):
		sendErr.After, sendErr.Unsent = limitPause+rand.N(limitPause/4), time.Since(written) < 24*time.Hour
	case errors.Is(err, errAbsent):
		sendErr.Awaits = l.address(peer).String()
	case errors.Is(err, errNotJoined), errors.Is(err, errLinkEnded), errors.Is(err, errPaused), errors.Is(err, context.DeadlineExceeded):
		sendErr.Awaits = l.address(wholeSpace).String()
	}
	return sendErr
}

var (
	errPaused = errors.New("the space paused this node")
	errAbsent = errors.New("the participant is not in the space now")
)

// correlationOf returns the id of the envelope that a message of the node answers, or nil.
func (l *Link) correlationOf(ctx context.Context, m wire.Message) []string {
	key, ok := load[string](ctx, l.records, "msg", m.Meta("in_reply_to"))
	if !ok {
		return nil
	}
	if chat, ok := load[storedChat](ctx, l.records, "chat", key); ok {
		return []string{chat.Envelope}
	}
	return nil
}

func (l *Link) sendChat(ctx context.Context, peer string, m wire.Message, id string, correlation []string) error {
	if err := l.space.checkPeer(peer); err != nil {
		return err
	}
	message, _ := m.Payload.Get("message")
	payload := wire.Obj(wire.TextField("text", messageText(message)))
	if f := message.GetStr("format"); f == "markdown" {
		payload = payload.With("format", wire.Text(f))
	}
	l.records.apply(ctx, l.records.markOpen(l.address(peer).Pseudonym(), m.Conversation),
		l.records.remember("sent", id, sentEnvelope{Conv: m.Conversation, Peer: peer}, keepSent))
	// With the time of the message, each attempt sends the same envelope, so that a node that gets it twice notices.
	return l.space.say(ctx, envelope.Draft{ID: id, Kind: envelope.KindChat, Time: m.Time, To: []string{peer}, Correlation: correlation, Context: string(m.Conversation), Payload: payload})
}

// messageText returns the subject and the body of a message of the mesh as one text.
func messageText(message wire.Value) string {
	if s := message.GetStr("subject"); s != "" {
		return s + "\n\n" + message.GetStr("body")
	}
	return message.GetStr("body")
}

// deliverClose tells the space about the end of a conversation, if MEW has an envelope for it: the owner rejected a
// proposal or a request, or a request that waited has a result. Any other close is lost.
func (l *Link) deliverClose(ctx context.Context, peer string, m wire.Message) error {
	l.records.apply(ctx, l.records.drop("open", openKey(l.address(peer).Pseudonym(), m.Conversation)))
	_, done := m.Payload.Get("result")
	_, failed := m.Payload.Get("error")
	switch {
	case done || failed: // the owner approved, and this is the result
		return l.sendResponse(ctx, m.Conversation, m.Payload)
	case m.Intent == IntentProposal:
		return l.reject(ctx, m.Conversation, "disagree")
	case m.Intent == IntentRequest:
		return l.sendResponse(ctx, m.Conversation, rpcError(rpcRefused, "the owner of this node refused the request"))
	}
	return nil
}
