package mess

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

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
	_, err = l.b.cfg.Node.Accept(ctx, in)
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
