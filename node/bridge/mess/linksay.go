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

// Messages that leave through a link: requests of ours, what we say in them, and what we say in threads that others opened there.

func (l *link) Deliver(ctx context.Context, d bridge.Delivery) error {
	if l.isDown() { // nothing is tried until the owner acts
		return &client.SendError{Retry: true}
	}
	block, err := outgoing(d.Message)
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
	ref, once := string(rec.Body), onceOf(d.ID, string(rec.Body))
	k, _, err := l.load(ctx, ref)
	if err != nil {
		return err
	}
	if k.Mine {
		err = l.sayInOurs(ctx, once, ref, k, toAnswer(block, ref, k).ForExchange(ref))
	} else {
		err = l.sayInTheirs(ctx, once, ref, k, block.ForExchange(ref))
	}
	if reason, no := saysNo(err); no { // the conversation goes on: where the thread stands there is still to be heard
		err = l.refused(ctx, ref, reason)
	}
	l.poke()
	return err
}

// onceOf is the Idempotency-Key of a delivery to a thread, "" for one that is made.
func onceOf(id, ref string) string { return "agentmesh-" + hashOf(id, ref) }

// open makes a thread there. After a crash the same request is sent again; an exchange that knows ids, or names of calls,
// keeps it one.
func (l *link) open(ctx context.Context, id string, k knownThread, block thread.Block) error {
	i := slices.IndexFunc(block, func(e thread.Entry) bool { return e.Type == "request" })
	if i < 0 {
		return errors.New("mess: nothing there is known by this conversation")
	}
	err := l.make(ctx, onceOf(id, ""), k, block[i].Body)
	if reason, no := saysNo(err); no {
		return l.declined(ctx, k.Conv, reason, err)
	}
	if err != nil {
		return err
	}
	l.poke()
	return nil
}

// make makes the thread and remembers that it is ours, before anybody looks at what is there.
func (l *link) make(ctx context.Context, once string, k knownThread, request wire.Value) error {
	l.making.Lock()
	defer l.making.Unlock()
	ref, err := l.remote.create(ctx, once, request)
	if err != nil {
		return err
	}
	changes := l.change(ref, k)
	changes[0].Max = 0 // there are as many as we ask for, whatever the other side lists
	return l.records.Apply(ctx, changes, time.Now())
}

// sayInOurs says something in a thread that we opened. On public servers an answer moves no thread: there the link also sets
// the state that our thread has after it.
func (l *link) sayInOurs(ctx context.Context, once, ref string, k knownThread, b thread.Block) error {
	if err := l.remote.say(ctx, once, ref, b); err != nil || !b.HasAnswer() {
		return err
	}
	next := thread.InProgress
	if k.Intent == "" {
		t, err := l.here(ctx, "", k)
		if err != nil || t == nil || t.Status != thread.InProgress && t.Status != thread.Held {
			return err // some questions are open
		}
		next = t.Status
	}
	l.making.Lock() // until the state is known as ours: a look at it would find what came after it, and be forgotten
	defer l.making.Unlock()
	v, err := l.remote.view(ctx, ref)
	if err == nil && (v.status == thread.NeedsInput || v.status == thread.NeedsConfirmation) {
		state := thread.Block{{Type: "status", Body: wire.Obj(wire.TextField("re", ref), wire.TextField("code", string(next)))}}
		err = l.remote.say(ctx, once+"-state", ref, state)
		v.status = next
	}
	if _, no := saysNo(err); no { // the answer is there, and that is what counts
		l.log.Info("the state after an answer was refused", "link", l.cfg.Name, "thread", ref, "error", err)
		return nil
	}
	if err != nil || v.status != next {
		return err
	}
	return l.updateLocked(ctx, ref, func(k *knownThread) { k.State = next })
}

// sayInTheirs says something in a thread that somebody else opened there. We work on it, so our claim stands there first, in a
// call of its own: a server may not know the state that follows, and refuses the whole call.
func (l *link) sayInTheirs(ctx context.Context, once, ref string, k knownThread, b thread.Block) error {
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
		if lost, err := l.claim(ctx, once+"-claim", ref, k, claim); lost || err != nil {
			return err
		}
	}
	if len(rest) == 0 {
		return nil
	}
	return l.remote.say(ctx, once, ref, rest)
}

// claim makes sure that we hold a thread there. It looks first, because public servers let anybody claim what another has
// claimed. lost reports that the thread is not to be had: then it has ended here.
func (l *link) claim(ctx context.Context, once, ref string, k knownThread, claim thread.Block) (lost bool, err error) {
	if k.Holder != "" {
		return false, nil
	}
	v, err := l.remote.view(ctx, ref)
	_, no := saysNo(err)
	switch self := l.remote.self(ctx); {
	case no, err == nil && v.gone:
		return true, l.lose(ctx, ref, k, "the exchange does not show it any more")
	case err != nil:
		return false, err
	case v.status.Terminal():
		return true, l.lose(ctx, ref, k, "it is "+string(v.status)+" there")
	case v.holder != "" && v.holder != self && !k.Held:
		return true, l.lose(ctx, ref, k, wire.OneLine(v.holder, 64)+" has taken it there")
	}
	if v.holder == "" {
		if err := l.update(ctx, ref, func(k *knownThread) { k.Held = true }); err != nil { // whatever becomes of the answer
			return false, err
		}
		err := l.remote.say(ctx, once, ref, claim)
		if reason, no := saysNo(err); no {
			return true, l.lose(ctx, ref, k, reason)
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

// lose ends our copy of a thread that our claim came too late for, and tells the owner.
func (l *link) lose(ctx context.Context, ref string, k knownThread, why string) error {
	if err := l.refused(ctx, ref, why); err != nil {
		return err
	}
	t, err := l.here(ctx, k.Peer, k)
	if err != nil || t == nil {
		return err
	}
	return l.x.Cancel(ctx, t, "link", why, nil)
}

// saysNo returns why the other side refuses what is said in a thread; ok is false if it may take it later, or if it is not
// the thread that it refuses.
func saysNo(err error) (reason string, ok bool) {
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

// refused tells the owner that a message was not taken there.
func (l *link) refused(ctx context.Context, ref, reason string) error {
	l.log.Warn("what was said was refused", "link", l.cfg.Name, "thread", ref, "reason", reason)
	err := l.cfg.note(ctx, "the exchange behind the link "+l.cfg.Name+" refused what was said in "+ref, reason, nil)
	if err != nil {
		return errors.Join(&client.SendError{Retry: true}, err)
	}
	return nil
}

// declined has a thread that the other side would not have declined by it. A delivery that is not about a thread of ours fails with because.
func (l *link) declined(ctx context.Context, conv, reason string, because error) error {
	if _, ok := l.x.OfferedIn(ctx, l.pseudonym(thread.ExchangeID), conv); !ok {
		return because
	}
	no := wire.Obj(wire.TextField("re", "last"), wire.TextField("code", string(thread.Declined)), wire.TextField("reason", reason))
	if err := l.hand(ctx, thread.ExchangeID, conv, "declined", thread.Entry{Type: "status", Body: no}); err != nil {
		return errors.Join(because, err)
	}
	return nil
}

// outgoing turns a message of the mesh into a block. A message with another intent becomes a request for text; one that
// has nothing to say there becomes an empty block. The block does not name the executor of ours that works on a thread: the
// thread stays open there.
func outgoing(m wire.Message) (thread.Block, error) {
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
		return nil, nil // to say held there is to claim, and nobody here has said yes
	}
	if text == "" {
		return nil, errors.New("mess: a message of this kind cannot be said there")
	}
	body := wire.Obj(wire.TextField("intent", text), wire.Field("response_hint", wire.Texts([]string{"text"})))
	if about != "" {
		body = body.With("context", wire.Texts([]string{about}))
	}
	return thread.Block{{Type: "request", Body: body}}, nil
}

// What the owner says to a peer of a link in plain words, a question or a message, is a request for text there and no
// thread here: what is said about it comes in as it was asked, in words, and its end closes the conversation.

// takePlain hands in what a message says in words, if anything.
func (l *link) takePlain(ctx context.Context, from, ref, number string, b thread.Block, k knownThread) error {
	text, all := b.Text()
	if text == "" {
		return nil // what is known of the thread is remembered with the next word, or its end
	}
	payload := wire.Obj(wire.TextField("action", "answer"), wire.TextField("answer", text))
	if k.Intent == wire.Deliver {
		payload = wire.Obj(wire.TextField("action", "deliver"),
			wire.Field("message", wire.Obj(wire.TextField("body", text))))
	}
	if !all {
		payload = payload.With("mess", b.Tree())
	}
	return l.acceptPlain(ctx, from, ref, number, payload, k)
}

func (l *link) acceptPlain(ctx context.Context, from, ref, number string, payload wire.Value, k knownThread) error {
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

// closePlain closes the conversation of what has ended there. What is completed is closed with its response, which may
// come after the state.
func (l *link) closePlain(ctx context.Context, ref string, v remoteView, k knownThread) error {
	done := v.status == thread.Completed || v.status == thread.Partial
	if k.Intent == "" || !done && !v.status.Terminal() || done && !slices.ContainsFunc(v.messages, thread.Message.HasResponse) {
		return nil
	}
	payload := wire.Obj(wire.TextField("action", wire.ActionClose), wire.TextField("status", "completed"))
	if !done {
		payload = payload.With("status", wire.Text("failed")).With("reason", wire.Text(string(v.status)))
	}
	err := l.acceptPlain(ctx, thread.ExchangeID, ref, "close", payload, k)
	if e, refused := errors.AsType[*wire.Error](err); refused && !e.Retry { // it is closed
		return nil
	}
	return err
}

// plainIntent is the intent of a message in plain words, "" for a list of MESS.
func plainIntent(m wire.Message) wire.Intent {
	if _, list := m.Payload.Get("mess"); list {
		return ""
	}
	return m.Intent
}

// toAnswer spells what the owner says in plain words, about what was asked so, as an answer.
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
