package mess

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// The exchange behind a link is right about its own threads. A link looks at a thread, hands in what was said since the last
// time, and then the state that the exchange shows, if no message told it. Our thread goes to that state, whatever our own
// state table says (see tx_follow.go); what it cannot follow stays in the thread as a message, and a notice tells the owner.

// remoteView is a thread of a foreign exchange at one moment.
type remoteView struct {
	requester string
	holder    string
	status    thread.Code // "" if the exchange does not say
	messages  []thread.Message
	gone      bool // the exchange does not have it any more, or does not show it to us
}

// follow takes in what is new in a thread. A message that will never be readable is left alone until the thread changes.
func (l *link) follow(ctx context.Context, r remoteThread, k knownThread, self string) error {
	v, err := l.remote.view(ctx, r.ref)
	if e, ok := errors.AsType[*client.SendError](err); ok {
		switch {
		case e.Status == 0:
			return errors.Join(errAway, err)
		case hides(e):
			v, err = remoteView{gone: true}, nil
		case !e.Retry:
			l.log.Warn("a thread of a link cannot be read", "link", l.cfg.Name, "thread", r.ref, "error", err)
			return nil
		}
	}
	switch {
	case err != nil:
		return err
	case k.Next != "": // the exchange goes on with it in another thread
		k.Updated = r.updated
		return l.save(ctx, r.ref, k)
	case k.Mine && v.gone:
		return nil
	case k.Mine:
		return l.followOurs(ctx, r, k, v, self)
	}
	return l.followTheirs(ctx, r, k, v, self)
}

// hides reports whether a refusal to show a thread means that it is not there, or not for us. The same key has just listed
// threads.
func hides(e *client.SendError) bool {
	return e.Status == http.StatusNotFound || e.Status == http.StatusForbidden || e.Status == http.StatusGone
}

// followOurs hands in what others said in a thread that we opened, one message at a time, each with the count that remembers
// it, and then the state that the exchange shows. k.State is the state that our thread was told last.
func (l *link) followOurs(ctx context.Context, r remoteThread, k knownThread, v remoteView, self string) error {
	for i := k.Seen; i < len(v.messages) && k.Next == ""; i++ {
		m := v.messages[i]
		k.Seen = i + 1
		if m.From == self || m.From == cmp.Or(r.requester, v.requester) || m.From == "" {
			continue
		}
		b := thread.QualifyFiles(v.heard(i), r.ref)
		if i == len(v.messages)-1 && k.State.After(b) != v.status && b.Has("response") { // the close goes with the result
			first, err := l.shownState(ctx, v, k)
			if err != nil {
				return err
			}
			b = append(first, b...)
		}
		if len(b) == 0 {
			continue
		}
		var err error
		if b, k.Next, err = l.handedOn(ctx, r.ref, b); err != nil {
			return err
		}
		k.State = k.State.After(b)
		if err := l.handIn(ctx, m.From, r.ref, strconv.Itoa(i), b, &k); err != nil {
			return err
		}
	}
	if k.Next != "" {
		delete(l.known, k.Next)
		l.poke()
		k.Updated = r.updated
		return l.save(ctx, r.ref, k)
	}
	b, err := l.shownState(ctx, v, k)
	if err != nil {
		return err
	}
	k.State = cmp.Or(v.status, k.State)
	if b != nil {
		if err := l.handIn(ctx, thread.ExchangeID, r.ref, "state/"+string(v.status)+"/"+r.updated, b, &k); err != nil {
			return err
		}
	}
	k.Updated = r.updated
	if err := l.closePlain(ctx, r.ref, v, k); err != nil {
		return err
	}
	return l.save(ctx, r.ref, k)
}

// heard returns the entries of a message that say something about a thread of ours. An end that the exchange does not show is
// none: one executor of several declines (MESS-24), or a server without rules went on. A bare state is left out if a later
// message tells the same one with more words, as the PHP server writes a PATCH.
func (v remoteView) heard(i int) thread.Block {
	b, err := thread.FromTree(v.messages[i].Mess)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(b, func(e thread.Entry) bool {
		switch e.Type {
		case "status":
			code, ok := thread.ParseCode(e.Body.GetStr("code"))
			ends := code.Terminal() || code == thread.Partial
			return ok && (ends && v.status != "" && v.status != code || e.IsBareStatus() && v.tellsLater(i, code))
		case "v", "ack", "request", "config", "query":
			return true
		}
		return false
	})
}

// tellsLater reports whether a message after number i tells a state with more than its code.
func (v remoteView) tellsLater(i int, code thread.Code) bool {
	return slices.ContainsFunc(v.messages[i+1:], func(m thread.Message) bool {
		b, err := thread.FromTree(m.Mess)
		return err == nil && slices.ContainsFunc(b, func(e thread.Entry) bool {
			c, _ := thread.ParseCode(e.Body.GetStr("code"))
			return e.Type == "status" && c == code && !e.IsBareStatus()
		})
	})
}

// shownState returns the status that tells our thread the state that the exchange shows; nil if our thread was told it
// before, or has it.
func (l *link) shownState(ctx context.Context, v remoteView, k knownThread) (thread.Block, error) {
	if v.status == "" || v.status == cmp.Or(k.State, thread.Received) {
		return nil, nil
	}
	t, err := l.here(ctx, "", k)
	if err != nil || t == nil || t.Status == v.status {
		return nil, err
	}
	body := wire.Obj(wire.TextField("re", t.Ref), wire.TextField("code", string(v.status)))
	if v.holder != "" {
		body = body.With("executor", wire.Text(v.holder))
	}
	if v.status == thread.NeedsInput {
		body = body.With("message", wire.Text("the executor asks something that its exchange does not show"))
	}
	return thread.Block{{Type: "status", Body: body}}, nil
}

// followTheirs hands in what the opener of a thread says, and answers of anybody, which the owner of that exchange may give
// in the opener's place. The state of the thread shows what others do to it: the task is ours only while the exchange says so.
func (l *link) followTheirs(ctx context.Context, r remoteThread, k knownThread, v remoteView, self string) error {
	if k.Seen == 0 {
		requester := cmp.Or(r.requester, v.requester)
		if v.gone || self != "" && requester == self {
			return nil
		}
		k.Peer = v.opener(requester)
		if v.over(self, k, nil) != "" { // it does not come in
			k.Updated = r.updated
			return l.save(ctx, r.ref, k)
		}
	}
	for i := k.Seen; i < len(v.messages); i++ {
		m := v.messages[i]
		k.Seen = i + 1
		b, err := thread.FromTree(m.Mess)
		if err != nil || thread.IsAck(b) || m.From == "" || m.From == self || m.From != k.Peer && !b.HasOnlyAnswers() {
			continue
		}
		if err := l.handIn(ctx, m.From, r.ref, strconv.Itoa(i), thread.QualifyFiles(b, r.ref).PointAtLast(r.ref), &k); err != nil {
			return err
		}
	}
	k.State, k.Updated = cmp.Or(v.status, k.State), r.updated
	t, err := l.here(ctx, k.Peer, k)
	if err != nil {
		return err
	}
	why := v.over(self, k, t)
	switch {
	case t != nil && t.Status.Open() && why != "":
		return l.x.Cancel(ctx, t, "link", why, l.change(r.ref, k))
	case t == nil && why != "":
		if err := l.unask(ctx, k, why); err != nil {
			return err
		}
	case t != nil:
		delete(l.asked, k.Conv)
	}
	return l.save(ctx, r.ref, k)
}

// opener returns who asked for the thread, as the message says that did.
func (v remoteView) opener(otherwise string) string {
	for _, m := range v.messages {
		if b, err := thread.FromTree(m.Mess); err == nil && m.From != "" && b.Has("request") {
			return m.From
		}
	}
	return otherwise
}

// over returns why a thread that somebody else opened there needs no work here, "" if it does. t is our copy of it, nil if it
// was not let in. Its holder is us under the configured name, or under the name that it had after our claim; while a claim of
// ours is on its way, anybody may be us.
func (v remoteView) over(self string, k knownThread, t *thread.Thread) string {
	switch {
	case v.gone:
		return "the exchange does not show it any more"
	case v.status.Terminal():
		return strings.TrimSuffix("it is "+string(v.status)+" there: "+v.lastWords(), ": ")
	case v.holder == "", v.holder == self, v.holder == k.Holder, k.Holder == "" && t != nil && t.Holder != "":
		return ""
	}
	return wire.OneLine(v.holder, 64) + " has taken it there"
}

// lastWords is the reason that the newest message gives for an end.
func (v remoteView) lastWords() string {
	if len(v.messages) == 0 {
		return ""
	}
	b, err := thread.FromTree(v.messages[len(v.messages)-1].Mess)
	if err != nil {
		return ""
	}
	for _, e := range slices.Backward(b) {
		if code, _ := thread.ParseCode(e.Body.GetStr("code")); e.Type == "cancel" || e.Type == "status" && code.Terminal() {
			return wire.OneLine(cmp.Or(thread.NewFields(e.Body, "").Reason(false), e.Body.GetStr("message")), thread.MaxNote)
		}
	}
	return ""
}

// here returns our thread about a foreign one, nil if there is none yet.
func (l *link) here(ctx context.Context, requester string, k knownThread) (*thread.Thread, error) {
	if err := l.x.Load(); err != nil {
		return nil, err
	}
	ref, ok := "", false
	if k.Mine {
		ref, ok = l.x.OfferedIn(ctx, l.pseudonym(thread.ExchangeID), k.Conv)
	} else {
		ref, ok = l.x.RequestIn(l.pseudonym(requester), k.Conv)
	}
	if !ok {
		return nil, nil
	}
	t, err := l.x.Read(ctx, ref, time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	return t, err
}

func (l *link) pseudonym(peer string) string {
	return string(bridge.Address{Kind: Kind, Link: l.cfg.Name, Peer: peer}.Pseudonym())
}

// handIn gives what was said in a thread to the node, with what is known of the thread by then. A message that is
// refused for good does not come again: a notice tells the owner of our thread that it was said.
func (l *link) handIn(ctx context.Context, from, ref, number string, b thread.Block, k *knownThread) error {
	if k.Mine {
		if err := l.fetchAhead(ctx, ref, b); err != nil {
			return err
		}
		defer func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.ahead = nil
		}()
	}
	err := l.take(ctx, from, ref, number, b, *k)
	e, refused := errors.AsType[*wire.Error](err)
	if !refused || e.Retry {
		return err
	}
	l.log.Info("a message of a link was refused", "link", l.cfg.Name, "thread", ref, "error", e.Message)
	t, err := l.here(ctx, k.Peer, *k)
	if err != nil || t == nil && k.Intent == "" {
		return err
	}
	about := ref + " there"
	if t != nil {
		about = t.Ref
	}
	return l.cfg.note(ctx, "a message of the link "+l.cfg.Name+" about "+about+" was refused", e.Message, l.change(ref, *k))
}

// handedOn reads a block of a thread of ours for its delegation. next is the thread in which the exchange goes on with it, ""
// if there is none. A thread that we know already is not followed: every thread has one conversation.
func (l *link) handedOn(ctx context.Context, ref string, b thread.Block) (out thread.Block, next string, err error) {
	i := slices.IndexFunc(b, func(e thread.Entry) bool { return e.Successor() != "" })
	if i < 0 {
		return b, "", nil
	}
	next = b[i].Successor()
	known := next == ref || !thread.SafeRef.MatchString(next)
	if !known {
		_, known, err = l.load(ctx, next)
	}
	if err != nil || !known {
		return b, next, err
	}
	out = slices.Clone(b)
	out[i].Body = b[i].Body.Without("ref")
	return out, "", nil
}
