package mess

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// The exchange behind a link is the authority for its own threads. When a link checks a thread, it receives the new
// messages, and then adopts the state that the exchange shows, if no message has reported it. Our thread follows that
// state, even where our own state machine would refuse it (see exchange/tx_follow.go). If our thread cannot follow a
// message, the link stores the message in the thread and notifies the owner.

// remoteView is the content of a foreign thread at one moment.
type remoteView struct {
	requester string
	holder    string
	status    thread.Code // "" if the exchange does not show it
	messages  []thread.Message
}

// follow receives the new messages and the state of the thread r. k is what we remember of it. If a thread cannot be
// read, follow skips it until it changes.
func (l *link) follow(ctx context.Context, r remoteThread, k shared, self, received string) error {
	v, err := l.remote.view(ctx, r.ref)
	if e, ok := errors.AsType[*client.SendError](err); ok {
		switch {
		case e.Status == 0:
			return errors.Join(errUnreachable, err)
		case !e.Retry:
			l.log.Warn("a thread of a link cannot be read and is skipped", "link", l.cfg.Name, "thread", r.ref, "error", err)
			return nil
		}
	}
	switch {
	case err != nil:
		return err
	case k.Mine:
		return l.followOurs(ctx, r, k, v, self, received)
	}
	return l.followTheirs(ctx, r, k, v, self, received)
}

// followOurs receives the messages of others in a thread that we opened, one at a time. With each message it stores how
// many messages were received. Then it passes on the state that the exchange shows. k.State is the last state that our
// thread received.
func (l *link) followOurs(ctx context.Context, r remoteThread, k shared, v remoteView, self, received string) error {
	for i := k.Seen; i < len(v.messages); i++ {
		m := v.messages[i]
		k.Seen = i + 1
		if m.From == self || m.From == cmp.Or(r.requester, v.requester) || m.From == "" {
			continue // our own message, or one without a sender
		}
		b := thread.QualifyFiles(v.relevantEntries(i), r.ref)
		// if no message reports the state that the exchange shows, receive that state in one block with the result
		if i == len(v.messages)-1 && k.State.AfterBlock(b) != v.status && b.Has("response") {
			first, err := l.stateUpdate(ctx, v, k)
			if err != nil {
				return err
			}
			b = append(first, b...)
		}
		if len(b) == 0 {
			continue
		}
		b, successor, err := l.readDelegation(ctx, r.ref, b)
		if err != nil {
			return err
		}
		k.State = k.State.AfterBlock(b)
		if successor != "" { // the exchange continues the thread as another one; the next poll looks at that one
			before := append(k.Before, r.ref)
			k.There, k.Before, k.Seen, k.State, k.Updated = successor, before[max(0, len(before)-maxBefore):], 0, "", ""
			delete(l.looks, successor)
			l.wakePoll()
		}
		if err := l.receive(ctx, m.From, r.ref, strconv.Itoa(i), b, &k); err != nil {
			return err
		}
		if successor != "" {
			return l.save(ctx, k)
		}
	}
	b, err := l.stateUpdate(ctx, v, k)
	if err != nil {
		return err
	}
	k.State = cmp.Or(v.status, k.State)
	if b != nil {
		if err := l.receive(ctx, thread.ExchangeID, r.ref, "state/"+string(v.status)+"/"+r.updated, b, &k); err != nil {
			return err
		}
	}
	k.Updated = received
	if err := l.closeTextConversation(ctx, r.ref, v, k); err != nil {
		return err
	}
	return l.save(ctx, k)
}

// relevantEntries returns the entries of message number i that change our thread. If a status would end the thread but
// the exchange shows another state, relevantEntries omits that status: perhaps one executor of several declined
// (MESS-24), or a server without a state machine continued the thread. It also omits a bare status if a later message
// repeats it with details, because a public PHP server writes two such messages for a PATCH.
func (v remoteView) relevantEntries(i int) thread.Block {
	return slices.DeleteFunc(v.messages[i].Block(), func(e thread.Entry) bool {
		switch e.Type {
		case "status":
			code, ok := thread.ParseCode(e.Body.GetStr("code"))
			ends := code.Terminal() || code == thread.Partial
			return ok && (ends && v.status != "" && v.status != code || e.IsBareStatus() && v.repeatsLater(i, code))
		case "v", "ack", "request", "config", "query":
			return true
		}
		return false
	})
}

// repeatsLater reports whether a message after number i repeats the state code with details.
func (v remoteView) repeatsLater(i int, code thread.Code) bool {
	return slices.ContainsFunc(v.messages[i+1:], func(m thread.Message) bool {
		return slices.ContainsFunc(m.Block(), func(e thread.Entry) bool {
			c, _ := thread.ParseCode(e.Body.GetStr("code"))
			return e.Type == "status" && c == code && !e.IsBareStatus()
		})
	})
}

// stateUpdate returns a status with the state that the exchange shows, for our thread. It returns nil if our thread has
// that state or received it before.
func (l *link) stateUpdate(ctx context.Context, v remoteView, k shared) (thread.Block, error) {
	if v.status == "" || v.status == cmp.Or(k.State, thread.Received) {
		return nil, nil
	}
	t, err := l.localThread(ctx, k)
	if err != nil || t == nil || t.Status == v.status {
		return nil, err
	}
	status := thread.NewStatus(t.Ref, v.status)
	status.Body = status.Body.WithOptional("executor", v.holder)
	if v.status == thread.NeedsInput {
		status.Body = status.Body.With("message", wire.Text("the executor asks something that its exchange does not show"))
	}
	return thread.Block{status}, nil
}

// followTheirs receives the messages of the requester of a foreign thread. It also receives answers of others, because
// the owner of the exchange may answer for the requester. It skips all other messages, because the state of the thread
// shows their effect. If the exchange no longer lets us do the task, followTheirs cancels our copy.
func (l *link) followTheirs(ctx context.Context, r remoteThread, k shared, v remoteView, self, received string) error {
	if k.Seen == 0 { // the first check of the thread
		requester := cmp.Or(r.requester, v.requester)
		if self != "" && requester == self {
			return errOwnRequest
		}
		k.Peer = v.opener(requester)
		k.Key = exchange.SharedKey(l.pseudonym(k.Peer), k.Conv)
		if v.closedReason(self, k, nil) != "" { // the thread is closed already, so our exchange does not offer it
			k.Updated = received
			return l.save(ctx, k)
		}
	}
	for i := k.Seen; i < len(v.messages); i++ {
		m := v.messages[i]
		k.Seen = i + 1
		b := m.Block()
		if b.HasOnly("ack") || m.From == "" || m.From == self || m.From != k.Peer && !b.HasOnly("reply", "answer") {
			continue
		}
		if err := l.receive(ctx, m.From, r.ref, strconv.Itoa(i), thread.QualifyFiles(b, r.ref).PointAtLast(r.ref), &k); err != nil {
			return err
		}
	}
	k.State, k.Updated = cmp.Or(v.status, k.State), received
	t, err := l.localThread(ctx, k)
	if err != nil {
		return err
	}
	if why := v.closedReason(self, k, t); t != nil && t.Status.Open() && why != "" {
		return l.x.Cancel(ctx, t, "link", why, []store.Change{l.change(k)})
	}
	return l.save(ctx, k)
}

// opener returns the sender of the request, or fallback if no message contains the request.
func (v remoteView) opener(fallback string) string {
	for _, m := range v.messages {
		if m.From != "" && m.Block().Has("request") {
			return m.From
		}
	}
	return fallback
}

// closedReason returns the reason why a thread that somebody else opened at the exchange needs no work of ours, or ""
// if it still needs some. local is our copy of the thread, or nil if the owner never approved the thread. The exchange
// may show us as the holder under the configured name, or under the name that it showed after our claim. While our
// claim is on its way, any holder may be us.
func (v remoteView) closedReason(self string, k shared, local *thread.Thread) string {
	switch {
	case v.status.Terminal():
		return strings.TrimSuffix("it is "+string(v.status)+" there: "+v.endReason(), ": ")
	case v.holder == "", v.holder == self, v.holder == k.Holder, k.Holder == "" && local != nil && local.Holder != "":
		return ""
	}
	return wire.OneLine(v.holder, 64) + " has taken it there"
}

// endReason returns the reason that the newest message gives for the end of the thread, or "" if it gives none.
func (v remoteView) endReason() string {
	if len(v.messages) == 0 {
		return ""
	}
	for _, e := range slices.Backward(v.messages[len(v.messages)-1].Block()) {
		if code, _ := thread.ParseCode(e.Body.GetStr("code")); e.Type == "cancel" || e.Type == "status" && code.Terminal() {
			return wire.OneLine(cmp.Or(thread.NewFields(e.Body, "").Reason(thread.Optional), e.Body.GetStr("message")), thread.MaxNote)
		}
	}
	return ""
}

// localThread returns our copy of a foreign thread, or nil if we have none.
func (l *link) localThread(ctx context.Context, k shared) (*thread.Thread, error) {
	if err := l.x.Load(); err != nil {
		return nil, err
	}
	ref := k.Ref
	if !k.Mine {
		ref, _ = l.x.RequestIn(l.pseudonym(k.Peer), k.Conv)
	}
	if ref == "" {
		return nil, nil
	}
	t, err := l.x.Read(ctx, ref, time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	return t, err
}

// pseudonym returns the id of a peer of the link in our exchange.
func (l *link) pseudonym(peer string) string {
	return string(addressAt(l.cfg.Name, peer).Pseudonym())
}

// receive passes a message of a thread to the node, and stores k in the same transaction. If the node refuses the
// message permanently, receive does not repeat it, and notifies the owner if the message belongs to a thread or
// conversation of ours.
func (l *link) receive(ctx context.Context, from, ref, localID string, b thread.Block, k *shared) error {
	if k.Mine {
		if err := l.prefetchFiles(ctx, ref, b); err != nil {
			return err
		}
		defer func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.prefetched = nil
		}()
	}
	err := l.accept(ctx, from, ref, localID, b, *k)
	if !thread.IsRefusal(err) {
		return err
	}
	reason := thread.PublicText(err)
	l.log.Info("a message of a link was refused", "link", l.cfg.Name, "thread", ref, "error", reason)
	t, err := l.localThread(ctx, *k)
	if err != nil || t == nil && k.Intent == "" { // k.Intent is set for a conversation in plain text
		return err
	}
	about := ref + " there"
	if t != nil {
		about = t.Ref
	}
	return l.cfg.notifyOwner(ctx, "a message of the link "+l.cfg.Name+" about "+about+" was refused", reason, []store.Change{l.change(*k)})
}

// readDelegation looks for a delegation in a block of one of our threads. successor is the thread with which the
// exchange replaces our thread, or "". A thread belongs to only one conversation, so readDelegation removes the ref of
// a successor that we know already and returns "". It does the same with a ref that is not valid.
func (l *link) readDelegation(ctx context.Context, ref string, b thread.Block) (out thread.Block, successor string, err error) {
	i := slices.IndexFunc(b, func(e thread.Entry) bool { return e.Successor() != "" })
	if i < 0 {
		return b, "", nil
	}
	successor = b[i].Successor()
	known := successor == ref || !thread.IsSafeRef(successor)
	if !known {
		_, known, err = l.load(ctx, successor)
	}
	if err != nil || !known {
		return b, successor, err
	}
	out = slices.Clone(b)
	out[i].Body = b[i].Body.Without("ref")
	return out, "", nil
}
