package node

import (
	"context"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// answerWait waits for the answer of a foreign peer. It comes as a message of its own, at any time after the delivery of
// ours, and not as the reply to that delivery.
type answerWait struct {
	n      *Node
	events <-chan Event
	stop   func()
	since  time.Time
}

// expectAnswer starts to watch for answers. Call it before the message can leave, and stop it in the end.
func (n *Node) expectAnswer() answerWait {
	events, stop := n.Watch()
	return answerWait{n: n, events: events, stop: stop, since: time.Now()}
}

// SendForAnswer is [Node.Send] for a caller that wants the answer of a foreign peer, too. It waits up to wait for both.
// Receipts and pending_approval do not end the wait; they are returned if nothing else comes.
func (n *Node) SendForAnswer(ctx context.Context, out Outgoing, wait time.Duration) (Sent, error) {
	if wait <= 0 || out.Address == "" {
		return n.Send(ctx, out, wait)
	}
	w := n.expectAnswer()
	defer w.stop()
	sent, err := n.Send(ctx, out, wait)
	if err != nil || out.closes() {
		return sent, err
	}
	return w.answer(ctx, store.ConvKey{Peer: string(out.To), ID: string(sent.Conversation)}, sent, wait), nil
}

// answer adds to sent what the peer says in the conversation until wait is over, counted from the beginning. In a node
// that does not run, which only makes the first delivery for a command, nothing comes in later: there the answer is one
// that came with the delivery.
func (w answerWait) answer(ctx context.Context, key store.ConvKey, sent Sent, wait time.Duration) Sent {
	if sent.State != SendDelivered || sent.Reply != nil {
		return sent
	}
	ctx, cancel := context.WithDeadline(ctx, w.since.Add(wait))
	defer cancel()
	for {
		said, final, err := w.said(context.WithoutCancel(ctx), key)
		if err != nil {
			w.n.log.WarnContext(ctx, "look for an answer", "conversation_id", key.ID, "err", err)
			return sent
		}
		if said.Kind() == wire.Object {
			sent.ReplyTree, sent.Hint = said, ""
		}
		if final || !w.n.running.Load() || !w.changed(ctx, key) {
			return sent
		}
	}
}

// changed waits until something may have happened in the conversation. It returns false if ctx or the node ended first.
func (w answerWait) changed(ctx context.Context, key store.ConvKey) bool {
	for {
		select {
		case ev, open := <-w.events:
			switch {
			case !open:
				return false
			case ev.Topic == TopicReset, ev.Topic == TopicNotices, ev.Peer == key.Peer && ev.Conversation == key.ID:
				return true // a close is known by its notice alone
			}
		case <-ctx.Done():
			return false
		}
	}
}

// said returns the first answer that the peer gave since the wait began, or else its newest status message. final
// reports whether nothing better can come: it is an answer, or the conversation has ended. What is held for the owner
// does not count.
func (w answerWait) said(ctx context.Context, key store.ConvKey) (message wire.Value, final bool, err error) {
	thread, err := w.n.book.Load(ctx, key, time.Now())
	if err != nil {
		return message, false, err
	}
	over := thread.New() || thread.Conversation().At(time.Now(), w.n.book.IdleFor()) != conversations.Open
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
		if action := payload.GetStr("action"); action != wire.ActionPending && action != wire.ActionReceived {
			return message, true, nil
		}
	}
	return message, over, nil
}
