package node

import (
	"context"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// answerWait waits for the answer of a foreign peer, which is a separate message that may come at any time.
type answerWait struct {
	n      *Node
	events <-chan Event
	stop   func()
	since  time.Time
}

// expectAnswer starts to watch for answers. Call it before the message can leave, and call stop at the end.
func (n *Node) expectAnswer() answerWait {
	events, stop := n.Watch()
	return answerWait{n: n, events: events, stop: stop, since: time.Now()}
}

// SendForAnswer is [Node.Send] for a caller that also wants the answer of a foreign peer. wait bounds the delivery and
// the answer together. A receipt does not end the wait, but SendForAnswer returns it if nothing better comes. A
// pending_approval ends the wait, because people do not decide within seconds.
func (n *Node) SendForAnswer(ctx context.Context, out Outgoing, wait time.Duration) (Sent, error) {
	if wait <= 0 || out.Address == "" {
		return n.Send(ctx, out, wait)
	}
	w := n.expectAnswer()
	defer w.stop()
	sent, err := n.Send(ctx, out, wait)
	if err != nil || out.isClose() {
		return sent, err
	}
	return w.awaitAnswer(ctx, store.ConvKey{Peer: string(out.To), ID: string(sent.Conversation)}, sent, wait), nil
}

// awaitAnswer adds the peer's answer in the conversation to sent, if the answer comes no later than wait after w.since.
// A node that is not running, such as one that a command opens for a first delivery, receives nothing after the
// delivery, so awaitAnswer looks only once.
func (w answerWait) awaitAnswer(ctx context.Context, key store.ConvKey, sent Sent, wait time.Duration) Sent {
	if sent.State != SendDelivered || sent.Reply != nil {
		return sent
	}
	ctx, cancel := context.WithDeadline(ctx, w.since.Add(wait))
	defer cancel()
	for {
		found, final, err := w.findAnswer(context.WithoutCancel(ctx), key)
		if err != nil {
			w.n.log.WarnContext(ctx, "look for an answer", "conversation_id", key.ID, "err", err)
			return sent
		}
		if found.Kind() == wire.Object {
			sent.ReplyTree, sent.Hint = found, ""
		}
		if final || !w.n.running.Load() || !w.awaitChange(ctx, key) {
			return sent
		}
	}
}

// awaitChange waits for an event that may bring the answer. It returns false if ctx ends or no more events come.
func (w answerWait) awaitChange(ctx context.Context, key store.ConvKey) bool {
	for {
		select {
		case ev, open := <-w.events:
			switch {
			case !open:
				return false
			case ev.Topic == TopicReset, ev.Topic == TopicNotices, ev.Peer == key.Peer && ev.Conversation == key.ID:
				return true // a close produces only a notice
			}
		case <-ctx.Done():
			return false
		}
	}
}

// findAnswer returns the first answer that the peer gave since the wait began, or else its newest receipt or
// pending_approval. final is set if nothing better will come soon: after an answer, a pending_approval, or the end of
// the conversation. Messages that are held or were not let in do not count.
func (w answerWait) findAnswer(ctx context.Context, key store.ConvKey) (message wire.Value, final bool, err error) {
	thread, err := w.n.book.Load(ctx, key, time.Now())
	if err != nil {
		return message, false, err
	}
	final = !thread.IsOpen()
	items, err := w.n.itemsOf(ctx, key)
	if err != nil {
		return message, false, err
	}
	for _, item := range items {
		if item.At.Before(w.since) || slices.Contains([]ItemState{ItemHeld, ItemRejected, ItemWithdrawn, ItemExpired}, item.State) {
			continue
		}
		payload, err := wire.Parse(item.Payload)
		if err != nil {
			return message, false, err
		}
		message = wire.Obj(
			wire.Member{Key: "message_id", Value: wire.Text(string(item.MessageID))},
			wire.Member{Key: "conversation_id", Value: wire.Text(string(item.Conversation))},
			wire.Member{Key: "intent", Value: wire.Text(string(item.Intent))},
			wire.Member{Key: "payload", Value: payload},
		)
		switch payload.GetStr("action") {
		case wire.ActionReceived:
		case wire.ActionPending:
			final = true
		default:
			return message, true, nil
		}
	}
	return message, final, nil
}
