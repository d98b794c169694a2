package link

import (
	"context"
	"errors"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// deliver says in the space what the node says to a participant (MEW-L3).
func (l *Link) deliver(ctx context.Context, peer string, d bridge.Delivery) (bridge.Delivered, error) {
	m := d.Message
	var err error
	switch action := m.Action(); {
	case action == wire.ActionClose:
		err = l.deliverClose(ctx, peer, m)
	case action == wire.ActionReceived || action == wire.ActionPending: // a space has no word for where a message stands
	case m.Intent == wire.Deliver && action == "deliver":
		err = l.sendChat(ctx, peer, m, "am-"+d.ID, l.answers(ctx, m))
	case m.Intent == IntentRequest:
		err = l.sendResponse(ctx, m.Conversation, m.Payload)
	case m.Intent == IntentProposal || m.Intent == IntentForward: // nothing of it is for the proposer
	default:
		return bridge.Delivered{}, wire.ErrIntent.At("a MEW space takes mesh.message")
	}
	if err != nil {
		return bridge.Delivered{}, l.failed(err)
	}
	return bridge.Delivered{Queued: true}, nil
}

// failed says whether to try again.
func (l *Link) failed(err error) error {
	if refused, ok := errors.AsType[*refusedBySpace](err); ok {
		return wire.ErrNotAllowed.At(refused.Error())
	}
	if errors.Is(err, errMayNot) {
		return wire.ErrNotAllowed.At(errMayNot.Error())
	}
	return &client.SendError{Retry: true, After: l.space.pauseLeft(), Status: wire.ErrUnavailable.Status, Refusal: wire.ErrUnavailable.At(err.Error())}
}

var (
	errPaused = errors.New("the space paused this node")
	errAbsent = errors.New("the participant is not in the space now")
)

// answers returns the envelope that a message of ours answers.
func (l *Link) answers(ctx context.Context, m wire.Message) []string {
	key, ok := recall[string](ctx, l.records, "msg", m.Meta("in_reply_to"))
	if !ok {
		return nil
	}
	if h, ok := recall[heard](ctx, l.records, "chat", key); ok {
		return []string{h.Envelope}
	}
	return nil
}

// sendChat says a mesh.message as a chat.
func (l *Link) sendChat(ctx context.Context, peer string, m wire.Message, id string, correlation []string) error {
	if err := l.space.ready(peer); err != nil {
		return err
	}
	message, _ := m.Payload.Get("message")
	text := message.GetStr("body")
	if s := message.GetStr("subject"); s != "" {
		text = s + "\n\n" + text
	}
	payload := wire.Obj(wire.TextField("text", text))
	if f := message.GetStr("format"); f == "markdown" {
		payload = payload.With("format", wire.Text(f))
	}
	l.records.apply(ctx, l.records.opened(l.address(peer).Pseudonym(), m.Conversation),
		l.records.remember("sent", id, sent{Conv: m.Conversation, Peer: peer}, keepSent, false))
	return l.space.say(ctx, envelope.Draft{ID: id, Kind: envelope.KindChat, To: []string{peer}, Correlation: correlation, Context: string(m.Conversation), Payload: payload})
}

// replied says what the node answered at once.
func (l *Link) replied(ctx context.Context, peer string, conv wire.ConversationID, m *wire.Message, correlation []string) {
	if m.Intent != wire.Deliver || m.Action() != "deliver" {
		return
	}
	if err := l.sendChat(ctx, peer, *m, "am-"+string(m.ID), correlation); err != nil {
		l.log.Info("an answer did not reach the space", "conversation", conv, "err", err)
	}
}

// deliverClose says the end of a conversation where MEW has a word for it: a proposal or a request that the owner
// rejected, and what came of a request that waited. Any other close is lost.
func (l *Link) deliverClose(ctx context.Context, peer string, m wire.Message) error {
	l.records.apply(ctx, l.records.drop("open", openKey(l.address(peer).Pseudonym(), m.Conversation)))
	switch m.Intent {
	case IntentProposal:
		return l.reject(ctx, m.Conversation, "disagree")
	case IntentRequest:
		_, done := m.Payload.Get("result")
		if _, failed := m.Payload.Get("error"); done || failed { // the owner let it through, and this came of it
			return l.sendResponse(ctx, m.Conversation, m.Payload)
		}
		return l.sendResponse(ctx, m.Conversation, wire.Obj(
			wire.Field("error", rpcFault(rpcRefused, "the owner of this node refused the request"))))
	}
	return nil
}
