package mess

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// What was said in a foreign thread does not always tell where it stands: a response alone completes it, a PATCH may bring
// a state without a message, and what the exchange does to it may be written into its envelope alone. So the state that
// the exchange shows counts too.

// remoteView is a foreign thread at one moment.
type remoteView struct {
	requester string
	holder    string
	status    Code // "" where it does not say
	messages  []Message
	gone      bool // it is there no more, or not for us
}

// after is the state of a thread that was in c when b was said.
func (c Code) after(b Block) Code {
	for _, e := range b {
		switch e.Type {
		case "status":
			if code, ok := ParseCode(e.Body.GetStr("code")); ok {
				c = code
			}
		case "cancel":
			c = Cancelled
		case "answer", "reply":
			confirm, _ := e.Body.Get("confirm")
			switch yes, isBool := confirm.Boolean(); {
			case e.Type == "reply" && isBool && !yes:
				c = Held
			case c == NeedsInput, c == NeedsConfirmation:
				c = InProgress
			}
		}
	}
	return c
}

// meant is what the messages of an exchange say to whoever opened the thread there: that one executor of several does not
// want to is not its no (MESS-24).
func (v remoteView) meant(b Block) Block {
	return slices.DeleteFunc(b, func(e Entry) bool {
		code, _ := ParseCode(e.Body.GetStr("code"))
		return e.Type == "status" && code == Declined && v.status != "" && v.status != Declined
	})
}

// here returns the thread of ours that a foreign one is about; nil where there is none yet.
func (l *link) here(ctx context.Context, requester string, k knownThread) (*Thread, error) {
	if err := l.b.x.load(); err != nil {
		return nil, err
	}
	who := l.pseudonym(requester)
	ref, ok := "", false
	if k.Mine {
		ref, ok = l.b.threadOf(ctx, l.pseudonym(exchangeID), k.Conv)
	} else {
		ref, ok = l.b.onlyIn(who, k.Conv)
	}
	if !ok {
		return nil, nil
	}
	t, err := l.b.x.read(ctx, ref, time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	return t, err
}

func (l *link) pseudonym(peer string) string {
	return string(bridge.Address{Kind: Kind, Link: l.cfg.Name, Peer: peer}.Pseudonym())
}

// unsaid returns the status that brings a thread of ours, which we opened there, to where the exchange says that it
// stands, although no message does.
func (l *link) unsaid(ctx context.Context, v remoteView, k knownThread) (Block, error) {
	if k.Next != "" || v.status == "" || v.status == Received || v.status == k.State {
		return nil, nil
	}
	t, err := l.here(ctx, "", k)
	if err != nil || t == nil || t.Status.Terminal() || t.Status == v.status {
		return nil, err
	}
	body := wire.Obj(wire.Member{Key: "re", Value: wire.Text(t.Ref)}, wire.Member{Key: "code", Value: wire.Text(string(v.status))})
	if v.holder != "" {
		body = body.With("executor", wire.Text(v.holder))
	}
	return Block{{Type: "status", Body: body}}, nil
}

// saysNo returns why the other side refuses what is said in a thread; ok is false where it may take it later, or where
// it is not the thread that it refuses.
func saysNo(err error) (reason string, ok bool) {
	status, refusal := 0, &wire.Error{}
	if e, sent := errors.AsType[*client.SendError](err); sent {
		if e.Retry || e.Refusal == nil {
			return "", false
		}
		refusal = e.Refusal
	} else if e, refused := errors.AsType[*wire.Error](err); refused && !e.Retry {
		refusal = e
	}
	status = refusal.Status
	return refusal.Message, status >= 400 && status < 500 && status != http.StatusUnauthorized
}

// refused tells the owner that a message was not taken there, and looks where the thread stands: that says the rest.
func (l *link) refused(ctx context.Context, ref, reason string) error {
	l.b.log.Warn("what was said was refused", "link", l.cfg.Name, "thread", ref, "reason", reason)
	if l.b.cfg.Notices != nil {
		n := notify.Notice{Kind: Kind, Title: "the exchange behind the link " + l.cfg.Name + " refused what was said in " + ref, Text: reason, At: time.Now()}
		changes := []store.Change{l.b.cfg.Notices.Change(n)}
		if err := l.b.x.records.Apply(ctx, changes, time.Now()); err != nil {
			return errors.Join(&client.SendError{Retry: true}, err)
		}
		l.b.cfg.Notices.Published(changes)
	}
	l.poke()
	return nil
}

// declined has a thread that the other side would not have declined by it. What is no thread of ours fails as it is.
func (l *link) declined(ctx context.Context, conv, reason string, because error) error {
	if _, ok := l.b.threadOf(ctx, l.pseudonym(exchangeID), conv); !ok {
		return because
	}
	no := wire.Obj(wire.Member{Key: "re", Value: wire.Text("last")}, wire.Member{Key: "code", Value: wire.Text(string(Declined))}, wire.Member{Key: "reason", Value: wire.Text(reason)})
	if err := l.hand(ctx, exchangeID, conv, "declined", Entry{Type: "status", Body: no}); err != nil {
		return errors.Join(because, err)
	}
	return nil
}

// lost ends a thread that somebody there asked for, where a claim of ours came too late or the thread is there no more: it
// is done by others, and nobody here need work on it. held says that the claim was needless: we hold it there, for another
// of us who handed it on.
func (l *link) lost(ctx context.Context, d bridge.Delivery, conv, ref, reason string, said Block) (held bool, err error) {
	k, _, err := l.load(ctx, ref)
	if err != nil || k.Mine {
		return false, err
	}
	address, err := bridge.ParseAddress(d.Address)
	if err != nil {
		return false, err
	}
	v, err := l.remote.view(ctx, ref)
	_, gone := saysNo(err)
	if err != nil && !gone {
		return false, err
	}
	late := slices.ContainsFunc(said, func(e Entry) bool { return e.Type == "status" && e.Body.GetStr("code") == string(Claimed) })
	self := l.self(ctx)
	if !gone && !v.gone && !v.status.Terminal() && (v.holder == "" || v.holder == self || !late && self == "") {
		return late && v.holder != "", nil
	}
	t, err := l.here(ctx, address.Peer, k)
	if err != nil || t == nil {
		return false, err
	}
	return false, l.b.end(ctx, t, "link", reason, nil)
}

// hand hands in what the other side did not say in words.
func (l *link) hand(ctx context.Context, peer, conv, what string, e Entry) error {
	in, err := l.inbound(peer, conv+"/"+what, Block{e})
	if err != nil {
		return err
	}
	in.ConvID = wire.ConversationID(conv)
	_, err = l.b.cfg.Node.Accept(ctx, in)
	return err
}

// endedThere spells what the exchange of a peer did to a thread that we sent there as what the peer may say about ours:
// that it does not do it, or that it came to nothing.
func (b *Bridge) endedThere(ctx context.Context, who, ref string, block Block) (Block, error) {
	ends := func(e Entry) Code {
		if e.Type == "cancel" {
			return Cancelled
		}
		if c, _ := ParseCode(e.Body.GetStr("code")); e.Type == "status" && (c == Expired || c == Cancelled || c == Superseded) {
			return c
		}
		return ""
	}
	if !slices.ContainsFunc(block, func(e Entry) bool { return ends(e) != "" }) {
		return block, nil
	}
	t, err := b.x.read(ctx, ref, time.Now())
	if err != nil {
		return block, ignoreMissing(err)
	}
	var out Block
	at, last, why, word := -1, Code(""), "", ""
	for _, e := range block {
		c := ends(e)
		agreed := c == Superseded && t.agreed(who, "split", "merge")
		if c == "" || agreed || c == Cancelled && t.Status == Held && t.Refused { // our no was the end of it (MESS-25)
			out = append(out, e)
			continue
		}
		if at < 0 { // a cancel may come beside the state that it led to
			at, out = len(out), append(out, Entry{Type: "status"})
		}
		last, why, word = c, cmp.Or(e.Body.GetStr("reason"), why), cmp.Or(e.Body.GetStr("message"), word)
	}
	if at < 0 {
		return block, nil
	}
	code, reason := Declined, wire.Obj(wire.Member{Key: "type", Value: wire.Text(string(last))})
	if t.Holder == who {
		code = Failed
	}
	if why != "" {
		reason = reason.With("detail", wire.Text(why))
	}
	out[at].Body = wire.Obj(
		wire.Member{Key: "re", Value: wire.Text(ref)}, wire.Member{Key: "code", Value: wire.Text(string(code))}, wire.Member{Key: "reason", Value: reason},
		wire.Member{Key: "message", Value: wire.Text(cmp.Or(word, "it is "+string(last)+" there"))})
	return out, nil
}
