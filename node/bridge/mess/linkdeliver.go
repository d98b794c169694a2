package mess

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// This file delivers messages through a link to a foreign exchange: our requests, our messages in the threads of
// these requests, and our messages in threads that others opened at the exchange.

// Deliver posts a message of the node to the exchange. If the exchange permanently refuses a message about a thread,
// Deliver notifies the owner, or marks a new thread as declined, and returns nil. For a refused text in a new
// conversation, and if the outbox should retry, the error is a *client.SendError. For a message that can never be
// delivered, it is a permanent *wire.Error.
func (l *link) Deliver(ctx context.Context, d bridge.Delivery) (err error) {
	defer func() {
		if failed, isSendErr := errors.AsType[*client.SendError](err); isSendErr && failed.Status == 0 { // the exchange did not answer
			failed.Awaits = addressAt(l.cfg.Name, "").String() // the outbox tries again when the link is up
		} else if !isSendErr && !thread.IsRefusal(err) {
			err = client.RetryLater(err) // the store or the disk failed
		}
	}()
	if l.isDown() { // try nothing until the owner acts
		return &client.SendError{Retry: true, Cause: errors.New("the link is down: repair it, then run agentmesh links test " + l.cfg.Name)}
	}
	block, err := toBlock(d.Message)
	if err != nil || len(block) == 0 {
		return err
	}
	conv := cmp.Or(thread.ClosedConversation(d.Message.Payload), string(d.Message.Conversation))
	k, err := exchange.ReadShared(ctx, l.records, string(d.To), conv)
	if err == nil && k.Conv == "" { // our words to anybody behind the link go to its exchange
		k, err = exchange.ReadShared(ctx, l.records, l.pseudonym(thread.ExchangeID), conv)
	}
	if err != nil {
		return err
	}
	if k.There == "" {
		k.Conv, k.Mine, k.Intent = conv, true, plainIntent(d.Message)
		return l.open(ctx, d.ID, k, block)
	}
	ref := k.There
	key := idempotencyKey(d.ID, ref)
	if k.Mine {
		err = l.postToOurs(ctx, key, ref, k, toAnswer(block, ref, k).ForExchange(ref), d.Attempt > 1)
	} else {
		err = l.postToTheirs(ctx, key, ref, k, block.ForExchange(ref), d.Attempt > 1)
	}
	reason, refused := refusalReason(err)
	if refused && k.Mine && block.HasOnly("cancel") {
		if v, viewErr := l.remote.view(ctx, ref); viewErr == nil && v.status.Terminal() {
			refused, err = false, nil // the thread has ended there too
		}
	}
	if refused { // the conversation stays open, because the state of the thread may still change
		err = l.notifyRefusal(ctx, ref, reason)
	}
	l.wakePoll()
	return err
}

// idempotencyKey returns the Idempotency-Key of a delivery to a thread; ref is "" for a new thread.
func idempotencyKey(id, ref string) string { return "agentmesh-" + wire.HashOf(id, ref) }

// open opens a thread at the exchange. After a crash the link sends the same request again. An exchange that recognizes
// client ids or idempotency keys then creates only one thread.
func (l *link) open(ctx context.Context, id string, k shared, block thread.Block) error {
	i := slices.IndexFunc(block, func(e thread.Entry) bool { return e.Type == "request" })
	if i < 0 {
		return thread.Missing("no thread of the exchange belongs to this conversation")
	}
	err := l.create(ctx, idempotencyKey(id, ""), k, block[i].Body)
	if reason, refused := refusalReason(err); refused {
		return l.decline(ctx, k.Conv, reason, err)
	}
	if err != nil {
		return err
	}
	l.wakePoll()
	return nil
}

// create opens the thread and records that we opened it, before a poll can see it.
func (l *link) create(ctx context.Context, key string, k shared, request wire.Value) error {
	l.createMu.Lock()
	defer l.createMu.Unlock()
	ref, err := l.findSent(ctx, request)
	if _, refused := refusalReason(err); refused { // an exchange that lists nothing may still take requests
		err = nil
	}
	switch {
	case err != nil:
	case ref != "":
		err = l.remote.resume(ctx, ref)
	default:
		ref, err = l.createNew(ctx, key, request)
	}
	if err != nil {
		if _, refused := refusalReason(err); !refused {
			l.lostCreate = time.Now()
		}
		return err
	}
	k.There = ref
	err = l.save(ctx, k)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.opened = append(l.opened, ref)
	return err
}

// createNew opens a thread. The exchange knows us as one requester, and may take a request for an earlier one with the same
// client id.
func (l *link) createNew(ctx context.Context, key string, request wire.Value) (string, error) {
	ref, err := l.remote.create(ctx, key, request)
	if err != nil {
		return "", err
	}
	_, isRecorded, err := l.load(ctx, ref)
	if err == nil && isRecorded {
		return l.remote.create(ctx, key+"-again", request.Without("id"))
	}
	return ref, err
}

// findSent returns the thread that an earlier attempt opened for a request, or "": our thread of the last day with this
// request that belongs to no conversation. Neither public servers nor folders recognize a repeated call (MESS-16).
func (l *link) findSent(ctx context.Context, request wire.Value) (string, error) {
	list, err := l.remote.list(ctx)
	if err != nil {
		return "", err
	}
	self, now := l.remote.self(ctx), time.Now().UTC()
	days := []string{now.Format(time.DateOnly), now.Add(-exchange.SameFor).Format(time.DateOnly)}
	for _, r := range list {
		if self == "" || r.requester != "" && r.requester != self || len(r.ref) < len(time.DateOnly) || !slices.Contains(days, r.ref[:len(time.DateOnly)]) {
			continue
		}
		_, isRecorded, err := l.load(ctx, r.ref)
		if err != nil {
			return "", err
		}
		if isRecorded {
			continue
		}
		v, err := l.remote.view(ctx, r.ref)
		if err != nil {
			return "", err
		}
		if cmp.Or(r.requester, v.requester) == self && v.asks(request) {
			return r.ref, nil
		}
	}
	return "", nil
}

// asks reports whether a thread begins with a request. Public servers keep little more of it than the intent.
func (v remoteView) asks(request wire.Value) bool {
	if len(v.messages) == 0 {
		return false
	}
	return slices.ContainsFunc(v.messages[0].Block(), func(e thread.Entry) bool {
		id := e.Body.GetStr("id")
		return e.Type == "request" && e.Body.GetStr("intent") == request.GetStr("intent") && (id == "" || id == request.GetStr("id"))
	})
}

// postToOurs posts a block to a thread that we opened. On public servers, an answer does not change the state of a
// thread, so postToOurs also sets the state that our copy of the thread has now.
func (l *link) postToOurs(ctx context.Context, key, ref string, k shared, b thread.Block, again bool) error {
	overtaken, err := l.postOnce(ctx, key, ref, b, again)
	if err != nil || overtaken || !b.HasAnswer() {
		return err
	}
	next := thread.InProgress
	if k.Intent == "" { // not a conversation in plain text, so our exchange has a copy of the thread
		t, err := l.localThread(ctx, k)
		if err != nil || t == nil || t.Status != thread.InProgress && t.Status != thread.Held {
			return err // some questions are still open
		}
		next = t.Status
	}
	// keep the lock until next is recorded: otherwise a check could record a later state, and next would replace it
	l.createMu.Lock()
	defer l.createMu.Unlock()
	v, err := l.remote.view(ctx, ref)
	if err == nil && (v.status == thread.NeedsInput || v.status == thread.NeedsConfirmation) {
		err = l.remote.post(ctx, key+"-state", ref, thread.Block{thread.NewStatus(ref, next)})
		v.status = next
	}
	if _, refused := refusalReason(err); refused { // the answer itself was accepted
		l.log.Info("the state after an answer was refused", "link", l.cfg.Name, "thread", ref, "error", err)
		return nil
	}
	if err != nil || v.status != next {
		return err
	}
	return l.updateUnderLock(ctx, ref, func(k *shared) { k.State = next })
}

// postToTheirs posts a block to a thread that somebody else opened at the exchange. If the block is about work, a
// separate call claims the thread first, because a server that does not know the state in the block would refuse a call
// with both.
func (l *link) postToTheirs(ctx context.Context, key, ref string, k shared, b thread.Block, again bool) error {
	var claim, rest thread.Block
	needsClaim := false
	for _, e := range b {
		code, _ := thread.ParseCode(e.Body.GetStr("code"))
		needsClaim = needsClaim || e.Type == "response" || e.Type == "status" && code != thread.Declined
		if e.Type == "status" && code == thread.Claimed {
			claim = append(claim, e)
		} else {
			rest = append(rest, e)
		}
	}
	if needsClaim {
		if len(claim) == 0 {
			claim = thread.Block{thread.NewStatus(ref, thread.Claimed)}
		}
		if lost, err := l.claim(ctx, key+"-claim", ref, k, claim); lost || err != nil {
			return err
		}
	}
	if len(rest) == 0 {
		return nil
	}
	_, err := l.postOnce(ctx, key, ref, rest, again)
	return err
}

// postOnce posts a block unless an earlier attempt did: not every exchange recognizes a repeated call. overtaken reports
// whether somebody else has written since that attempt.
func (l *link) postOnce(ctx context.Context, key, ref string, b thread.Block, again bool) (overtaken bool, err error) {
	if again {
		v, err := l.remote.view(ctx, ref)
		if err != nil {
			return false, err
		}
		for i, m := range slices.Backward(v.messages) {
			if m.From == cmp.Or(l.remote.self(ctx), v.requester) && thread.Digest(m.Mess) == thread.Digest(b.Tree()) {
				overtaken = slices.ContainsFunc(v.messages[i:], func(later thread.Message) bool { return later.From != m.From })
				return overtaken, l.remote.resume(ctx, ref)
			}
		}
	}
	return false, l.remote.post(ctx, key, ref, b)
}

// claim makes sure that we hold the claim of a thread at the exchange. It reads the thread first, because public
// servers accept a claim even if another executor has claimed the thread. If the thread is not available, claim cancels
// our copy and lost is true.
func (l *link) claim(ctx context.Context, key, ref string, k shared, claim thread.Block) (lost bool, err error) {
	if k.Holder != "" {
		return false, nil
	}
	v, err := l.remote.view(ctx, ref)
	_, refused := refusalReason(err)
	switch self := l.remote.self(ctx); {
	case refused:
		return true, l.loseThread(ctx, ref, k, "the exchange does not show it any more")
	case err != nil:
		return false, err
	case v.status.Terminal():
		return true, l.loseThread(ctx, ref, k, "it is "+string(v.status)+" there")
	case v.holder != "" && v.holder != self && !k.ClaimSent:
		return true, l.loseThread(ctx, ref, k, wire.OneLine(v.holder, 64)+" has taken it there")
	}
	if v.holder == "" {
		// record the claim before it is posted, because the answer to the post may get lost
		if err := l.update(ctx, ref, func(k *shared) { k.ClaimSent = true }); err != nil {
			return false, err
		}
		err := l.remote.post(ctx, key, ref, claim)
		if reason, refused := refusalReason(err); refused {
			return true, l.loseThread(ctx, ref, k, reason)
		}
		if err != nil {
			return false, err
		}
		if v, err = l.remote.view(ctx, ref); err != nil {
			return false, err
		}
	}
	return false, l.update(ctx, ref, func(k *shared) { k.ClaimSent, k.Holder = true, v.holder })
}

// loseThread notifies the owner that we cannot work on a foreign thread, and cancels our copy.
func (l *link) loseThread(ctx context.Context, ref string, k shared, why string) error {
	if err := l.notifyRefusal(ctx, ref, why); err != nil {
		return err
	}
	t, err := l.localThread(ctx, k)
	if err != nil || t == nil {
		return err
	}
	return l.x.Cancel(ctx, t, "link", why, nil)
}

// refusalReason returns the reason if err says that the exchange refuses a message to a thread permanently. ok is false
// if the exchange may accept the message later, or if the refusal is not about the thread.
func refusalReason(err error) (reason string, ok bool) {
	refusal := &wire.Error{}
	if e, isSendErr := errors.AsType[*client.SendError](err); isSendErr {
		if e.Retry || e.Refusal == nil {
			return "", false
		}
		refusal = e.Refusal
	} else if e, refused := errors.AsType[*wire.Error](err); refused && !e.Retry {
		refusal = e
	}
	return refusal.Message, refusal.Status >= 400 && refusal.Status < 500 && refusal.Status != http.StatusUnauthorized
}

func (l *link) notifyRefusal(ctx context.Context, ref, reason string) error {
	l.log.Warn("the exchange behind a link refused a message", "link", l.cfg.Name, "thread", ref, "reason", reason)
	return client.RetryLater(l.cfg.notifyOwner(ctx, "the exchange behind the link "+l.cfg.Name+" refused a message about "+ref, reason, nil))
}

// decline marks one of our threads as declined by the exchange, which refused it with the error cause. If the
// conversation has no thread of ours, decline returns cause.
func (l *link) decline(ctx context.Context, conv, reason string, cause error) error {
	if ref, err := l.x.OfferedIn(ctx, l.pseudonym(thread.ExchangeID), conv); ref == "" {
		return cmp.Or(err, cause)
	}
	declined := thread.NewStatus("last", thread.Declined, wire.TextField("reason", reason))
	if err := l.acceptEntry(ctx, thread.ExchangeID, conv, "declined", declined); err != nil {
		return errors.Join(cause, err)
	}
	return nil
}

// toBlock returns the block for a message of the node. A message with a MESS list becomes that list without acks and
// without the ids of our executors in states. toBlock also omits delegations within our exchange, so that the thread
// stays open at the foreign exchange. Without a list, a text becomes a request for text, a close becomes the status
// "declined", and a receipt or pending_approval becomes an empty block. Any other message is an error.
func toBlock(m wire.Message) (thread.Block, error) {
	if list, ok := m.Payload.Get("mess"); ok {
		b, err := thread.FromTree(list)
		b = slices.DeleteFunc(b, func(e thread.Entry) bool { return e.Type == "ack" || e.Successor() != "" })
		for i, e := range b {
			if e.Type == "status" { // at the other exchange, the executor is the link
				b[i].Body = e.Body.Without("executor")
			}
		}
		return b, err
	}
	text, about := "", ""
	switch m.Action() {
	case "ask":
		text, about = m.Payload.GetStr("question"), m.Payload.GetStr("context")
	case "deliver":
		message, _ := m.Payload.Get("message")
		text, about = message.GetStr("body"), message.GetStr("subject")
	case "request_human":
		text = m.Payload.GetStr("reason")
	case wire.ActionClose:
		return thread.Block{thread.NewStatus("last", thread.Declined, wire.TextField("reason", m.Payload.GetStr("reason")))}, nil
	case wire.ActionPending, wire.ActionReceived:
		return nil, nil // at the exchange, the state "held" would be a claim, and no executor of ours has agreed yet
	}
	if text == "" {
		return nil, thread.Bad("", "the message cannot be sent to a MESS exchange: it has neither a MESS list nor a text")
	}
	body := wire.Obj(wire.TextField("intent", text), wire.Field("response_hint", wire.Texts([]string{"text"})))
	if about != "" {
		body = body.With("context", wire.Texts([]string{about}))
	}
	return thread.Block{{Type: "request", Body: body}}, nil
}

// If the owner sends a question or a message in plain text to a peer of a link, the link opens a request for text at
// the exchange. Our exchange has no thread for it. Answers come back as text in the same intent, and the end of the
// request closes the conversation.

// acceptText passes the text of a block to the node, if the block has any.
func (l *link) acceptText(ctx context.Context, from, ref, localID string, b thread.Block, k shared) error {
	text, all := b.Text()
	if text == "" {
		return nil // k is stored with the next text or with the close
	}
	payload := wire.Obj(wire.TextField("action", "answer"), wire.TextField("answer", text))
	if k.Intent == wire.Deliver {
		payload = wire.Obj(wire.TextField("action", "deliver"),
			wire.Field("message", wire.Obj(wire.TextField("body", text))))
	}
	if !all {
		payload = payload.With("mess", b.Tree())
	}
	return l.acceptPayload(ctx, from, ref, localID, payload, k)
}

// acceptPayload passes a message of a conversation in plain text to the node, and stores k in the same transaction.
func (l *link) acceptPayload(ctx context.Context, from, ref, localID string, payload wire.Value, k shared) error {
	in, err := l.newInbound(thread.ExchangeID, ref+"/"+localID, k.Intent, payload, payload.JSON())
	if err != nil {
		return err
	}
	in.ConvID, in.Name, in.Records = wire.ConversationID(k.Conv), from, []store.Change{l.change(k)}
	_, err = l.cfg.Mesh.Accept(ctx, in)
	return err
}

// closeTextConversation closes a conversation in plain text after its request has ended at the exchange. If the request
// was completed but its response has not come yet, closeTextConversation does nothing, and a later poll calls it again.
func (l *link) closeTextConversation(ctx context.Context, ref string, v remoteView, k shared) error {
	hasSucceeded := v.status == thread.Completed || v.status == thread.Partial
	isText, hasEnded := k.Intent != "", hasSucceeded || v.status.Terminal()
	if !isText || !hasEnded || hasSucceeded && !slices.ContainsFunc(v.messages, thread.Message.HasResponse) {
		return nil
	}
	payload := wire.Obj(wire.TextField("action", wire.ActionClose), wire.TextField("status", "completed"))
	if !hasSucceeded {
		payload = payload.With("status", wire.Text("failed")).With("reason", wire.Text(string(v.status)))
	}
	err := l.acceptPayload(ctx, thread.ExchangeID, ref, "close", payload, k)
	if thread.IsRefusal(err) { // the conversation is closed already
		return nil
	}
	return err
}

// plainIntent returns the intent of a message without a MESS list, or "" for a message with one.
func plainIntent(m wire.Message) wire.Intent {
	if _, hasList := m.Payload.Get("mess"); hasList {
		return ""
	}
	return m.Intent
}

// toAnswer turns the owner's plain text in a plain conversation into an answer entry.
func toAnswer(b thread.Block, ref string, k shared) thread.Block {
	if k.Intent == "" {
		return b
	}
	out := slices.Clone(b)
	for i, e := range out {
		if e.Type == "request" {
			out[i] = thread.NewEntry("answer", ref, wire.TextField("value", e.Body.GetStr("intent")))
		}
	}
	return out
}
