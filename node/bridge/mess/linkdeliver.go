package mess

import (
	"cmp"
	"context"
	"crypto/sha256"
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

// Messages that leave through a link: requests of ours, our messages in them, and our messages in threads that others
// opened there.

// Deliver posts a message of the mesh to the exchange. The error is a *client.SendError if the outbox should retry.
func (l *link) Deliver(ctx context.Context, d bridge.Delivery) error {
	if l.isDown() { // try nothing until the owner acts
		return &client.SendError{Retry: true}
	}
	block, err := toBlock(d.Message)
	if err != nil || len(block) == 0 {
		return err
	}
	conv := cmp.Or(thread.ClosedConversation(d.Message.Payload), string(d.Message.Conversation))
	rec, err := l.records.Get(ctx, exchange.NSMeta, l.convRecord(conv), time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return l.open(ctx, d.ID, knownThread{Conv: conv, Mine: true, Intent: plainIntent(d.Message)}, block)
	}
	if err != nil {
		return err
	}
	ref, key := string(rec.Body), idempotencyKey(d.ID, string(rec.Body))
	k, _, err := l.load(ctx, ref)
	if err != nil {
		return err
	}
	if k.Mine {
		err = l.postToOurs(ctx, key, ref, k, toAnswer(block, ref, k).ForExchange(ref))
	} else {
		err = l.postToTheirs(ctx, key, ref, k, block.ForExchange(ref))
	}
	if reason, refused := refusalReason(err); refused { // the conversation goes on: the state of the thread may still change
		err = l.notifyRefusal(ctx, ref, reason)
	}
	l.wakePoll()
	return err
}

// idempotencyKey returns the Idempotency-Key of a delivery to a thread; ref is "" for a new thread.
func idempotencyKey(id, ref string) string { return "agentmesh-" + hashOf(id, ref) }

// open opens a thread there. After a crash the link sends the same request again. An exchange that recognizes client
// ids or idempotency keys then creates only one thread.
func (l *link) open(ctx context.Context, id string, k knownThread, block thread.Block) error {
	i := slices.IndexFunc(block, func(e thread.Entry) bool { return e.Type == "request" })
	if i < 0 {
		return errors.New("mess: nothing there is known by this conversation")
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

// create opens the thread and records that it is ours, before a poll can see it.
func (l *link) create(ctx context.Context, key string, k knownThread, request wire.Value) error {
	l.createMu.Lock()
	defer l.createMu.Unlock()
	ref, err := l.remote.create(ctx, key, request)
	if err != nil {
		return err
	}
	changes := l.change(ref, k)
	changes[0].Max = 0 // not bounded: there are as many as we ask for, whatever the other side lists
	return l.records.Apply(ctx, changes, time.Now())
}

// postToOurs posts a block to a thread that we opened. On public servers an answer does not change the state of a
// thread, so the link also sets the state that our thread now has.
func (l *link) postToOurs(ctx context.Context, key, ref string, k knownThread, b thread.Block) error {
	if err := l.remote.post(ctx, key, ref, b); err != nil || !b.HasAnswer() {
		return err
	}
	next := thread.InProgress
	if k.Intent == "" {
		t, err := l.localThread(ctx, "", k)
		if err != nil || t == nil || t.Status != thread.InProgress && t.Status != thread.Held {
			return err // some questions are still open
		}
		next = t.Status
	}
	l.createMu.Lock() // hold until the state is recorded: otherwise a check could see and lose what follows it
	defer l.createMu.Unlock()
	v, err := l.remote.view(ctx, ref)
	if err == nil && (v.status == thread.NeedsInput || v.status == thread.NeedsConfirmation) {
		state := thread.Block{{Type: "status", Body: wire.Obj(wire.TextField("re", ref), wire.TextField("code", string(next)))}}
		err = l.remote.post(ctx, key+"-state", ref, state)
		v.status = next
	}
	if _, refused := refusalReason(err); refused { // the answer was accepted, and that is what counts
		l.log.Info("the state after an answer was refused", "link", l.cfg.Name, "thread", ref, "error", err)
		return nil
	}
	if err != nil || v.status != next {
		return err
	}
	return l.updateUnderLock(ctx, ref, func(k *knownThread) { k.State = next })
}

// postToTheirs posts a block to a thread that somebody else opened there. If the block is about work, a separate call
// claims the thread first: a server that does not know the state in the block would refuse a call with both.
func (l *link) postToTheirs(ctx context.Context, key, ref string, k knownThread, b thread.Block) error {
	var claim, rest thread.Block
	works := false
	for _, e := range b {
		code, _ := thread.ParseCode(e.Body.GetStr("code"))
		works = works || e.Type == "response" || e.Type == "status" && code != thread.Declined
		if e.Type == "status" && code == thread.Claimed {
			claim = append(claim, e)
		} else {
			rest = append(rest, e)
		}
	}
	if works {
		if len(claim) == 0 {
			claim = thread.Block{{Type: "status", Body: wire.Obj(wire.TextField("re", ref), wire.TextField("code", string(thread.Claimed)))}}
		}
		if lost, err := l.claim(ctx, key+"-claim", ref, k, claim); lost || err != nil {
			return err
		}
	}
	if len(rest) == 0 {
		return nil
	}
	return l.remote.post(ctx, key, ref, rest)
}

// claim makes sure that we hold a thread there. It looks first, because public servers accept a claim of a thread that
// another one has claimed. lost reports that the thread is not available; our copy is then closed.
func (l *link) claim(ctx context.Context, key, ref string, k knownThread, claim thread.Block) (lost bool, err error) {
	if k.Holder != "" {
		return false, nil
	}
	v, err := l.remote.view(ctx, ref)
	_, refused := refusalReason(err)
	switch self := l.remote.self(ctx); {
	case refused, err == nil && v.gone:
		return true, l.loseThread(ctx, ref, k, "the exchange does not show it any more")
	case err != nil:
		return false, err
	case v.status.Terminal():
		return true, l.loseThread(ctx, ref, k, "it is "+string(v.status)+" there")
	case v.holder != "" && v.holder != self && !k.Held:
		return true, l.loseThread(ctx, ref, k, wire.OneLine(v.holder, 64)+" has taken it there")
	}
	if v.holder == "" {
		// whatever happens to the answer
		if err := l.update(ctx, ref, func(k *knownThread) { k.Held = true }); err != nil {
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
	return false, l.update(ctx, ref, func(k *knownThread) { k.Held, k.Holder = true, v.holder })
}

// loseThread cancels our copy of a thread that we claimed too late, and tells the owner.
func (l *link) loseThread(ctx context.Context, ref string, k knownThread, why string) error {
	if err := l.notifyRefusal(ctx, ref, why); err != nil {
		return err
	}
	t, err := l.localThread(ctx, k.Peer, k)
	if err != nil || t == nil {
		return err
	}
	return l.x.Cancel(ctx, t, "link", why, nil)
}

// refusalReason returns the reason if the other side refuses a message to a thread for good. ok is false if it may
// accept the message later, or if the refusal is not about the thread.
func refusalReason(err error) (reason string, ok bool) {
	refusal := &wire.Error{}
	if e, sent := errors.AsType[*client.SendError](err); sent {
		if e.Retry || e.Refusal == nil {
			return "", false
		}
		refusal = e.Refusal
	} else if e, refused := errors.AsType[*wire.Error](err); refused && !e.Retry {
		refusal = e
	}
	return refusal.Message, refusal.Status >= 400 && refusal.Status < 500 && refusal.Status != http.StatusUnauthorized
}

// notifyRefusal tells the owner that the exchange refused a message.
func (l *link) notifyRefusal(ctx context.Context, ref, reason string) error {
	l.log.Warn("a message was refused", "link", l.cfg.Name, "thread", ref, "reason", reason)
	err := l.cfg.notifyOwner(ctx, "the exchange behind the link "+l.cfg.Name+" refused a message about "+ref, reason, nil)
	if err != nil {
		return errors.Join(&client.SendError{Retry: true}, err)
	}
	return nil
}

// decline declines a thread of ours, in the name of the other side, because that side refused it with the error cause.
// It returns cause if the conversation has no thread of ours.
func (l *link) decline(ctx context.Context, conv, reason string, cause error) error {
	if _, ok := l.x.OfferedIn(ctx, l.pseudonym(thread.ExchangeID), conv); !ok {
		return cause
	}
	no := wire.Obj(wire.TextField("re", "last"), wire.TextField("code", string(thread.Declined)), wire.TextField("reason", reason))
	if err := l.acceptEntry(ctx, thread.ExchangeID, conv, "declined", thread.Entry{Type: "status", Body: no}); err != nil {
		return errors.Join(cause, err)
	}
	return nil
}

// toBlock returns the block for a message of the mesh. A message with another intent becomes a request for text, and a
// message that means nothing in MESS becomes an empty block. The block hides which executor works on a thread here. It
// omits a delegation here, so that the thread stays open there.
func toBlock(m wire.Message) (thread.Block, error) {
	if list, ok := m.Payload.Get("mess"); ok {
		b, err := thread.FromTree(list)
		return slices.DeleteFunc(b, func(e thread.Entry) bool { return e.Type == "ack" || e.Successor() != "" }), err
	}
	status := func(code thread.Code, more ...wire.Member) (thread.Block, error) {
		return thread.Block{{Type: "status", Body: wire.Obj(append([]wire.Member{wire.TextField("re", "last"), wire.TextField("code", string(code))}, more...)...)}}, nil
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
		return status(thread.Declined, wire.TextField("reason", m.Payload.GetStr("reason")))
	case wire.ActionPending, wire.ActionReceived:
		return nil, nil // held there would mean a claim, and nobody here has agreed yet
	}
	if text == "" {
		return nil, errors.New("mess: a message of this kind has no form in MESS")
	}
	body := wire.Obj(wire.TextField("intent", text), wire.Field("response_hint", wire.Texts([]string{"text"})))
	if about != "" {
		body = body.With("context", wire.Texts([]string{about}))
	}
	return thread.Block{{Type: "request", Body: body}}, nil
}

// A question or a message in plain text from the owner to a peer of a link becomes a request for text there, without a
// thread here. Answers come back as text in the same intent, and the end of the request closes the conversation.

// acceptText hands the text of a block to the node, if it has any.
func (l *link) acceptText(ctx context.Context, from, ref, number string, b thread.Block, k knownThread) error {
	text, all := b.Text()
	if text == "" {
		return nil // k is stored with the next text, or with the end
	}
	payload := wire.Obj(wire.TextField("action", "answer"), wire.TextField("answer", text))
	if k.Intent == wire.Deliver {
		payload = wire.Obj(wire.TextField("action", "deliver"),
			wire.Field("message", wire.Obj(wire.TextField("body", text))))
	}
	if !all {
		payload = payload.With("mess", b.Tree())
	}
	return l.acceptPayload(ctx, from, ref, number, payload, k)
}

func (l *link) acceptPayload(ctx context.Context, from, ref, number string, payload wire.Value, k knownThread) error {
	said := thread.Block{{Type: "status", Body: wire.Obj(wire.TextField("code", string(thread.InProgress)))}}
	in, err := l.inbound(thread.ExchangeID, ref+"/"+number, said)
	if err != nil {
		return err
	}
	in.Intent, in.Payload = k.Intent, bridge.Address{Kind: Kind, Link: l.cfg.Name, Peer: thread.ExchangeID}.Mark(payload, false)
	in.Raw = in.Payload.JSON()
	if len(in.Raw) > wire.MaxMessage-8<<10 {
		return thread.TooLarge("the answer is too large for a message")
	}
	in.Digest, in.ConvID, in.Name, in.Records = sha256.Sum256(in.Raw), wire.ConversationID(k.Conv), from, l.change(ref, k)
	_, err = l.cfg.Mesh.Accept(ctx, in)
	return err
}

// closePlain closes a plain conversation whose request has ended there. A completed request is closed after its
// response, which may come later than the state.
func (l *link) closePlain(ctx context.Context, ref string, v remoteView, k knownThread) error {
	done := v.status == thread.Completed || v.status == thread.Partial
	if k.Intent == "" || !done && !v.status.Terminal() || done && !slices.ContainsFunc(v.messages, thread.Message.HasResponse) {
		return nil
	}
	payload := wire.Obj(wire.TextField("action", wire.ActionClose), wire.TextField("status", "completed"))
	if !done {
		payload = payload.With("status", wire.Text("failed")).With("reason", wire.Text(string(v.status)))
	}
	err := l.acceptPayload(ctx, thread.ExchangeID, ref, "close", payload, k)
	if e, refused := errors.AsType[*wire.Error](err); refused && !e.Retry { // it is closed already
		return nil
	}
	return err
}

// plainIntent returns the intent of a message in plain text, or "" for a MESS list.
func plainIntent(m wire.Message) wire.Intent {
	if _, list := m.Payload.Get("mess"); list {
		return ""
	}
	return m.Intent
}

// toAnswer turns the owner's plain text in a plain conversation into an answer entry.
func toAnswer(b thread.Block, ref string, k knownThread) thread.Block {
	if k.Intent == "" {
		return b
	}
	out := slices.Clone(b)
	for i, e := range out {
		if e.Type == "request" {
			out[i] = thread.Entry{Type: "answer", Body: wire.Obj(
				wire.TextField("re", ref), wire.TextField("value", e.Body.GetStr("intent")))}
		}
	}
	return out
}
