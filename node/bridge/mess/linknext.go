package mess

import (
	"context"
	"slices"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Who we are there, and which threads are ours: the exchange may open one in the place of another (MESS-27).

// self is the name under which we speak there, "" where it is not known.
func (l *link) self(ctx context.Context) string {
	if me := l.remote.self(ctx); me != "" {
		return me
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.me
}

// selfIn is self, or what a thread of ours in the list says: after a start, an exchange that knows us by a key alone has
// not told us.
func (l *link) selfIn(ctx context.Context, list []remoteThread) (string, error) {
	if me := l.self(ctx); me != "" {
		return me, nil
	}
	for _, r := range list {
		if r.requester == "" || l.known[r.ref] == r.updated {
			continue
		}
		k, _, err := l.load(ctx, r.ref)
		if err != nil {
			return "", err
		}
		if k.Mine {
			l.mu.Lock()
			l.me = r.requester
			l.mu.Unlock()
			return r.requester, nil
		}
	}
	return "", nil
}

// successor is the thread in which the exchange goes on with one that was delegated, "" for none. Where it is one of ours,
// nothing is said of it behind a link: who of us works on a thread is our affair, and it stays open there.
func (e Entry) successor() string {
	if code, _ := ParseCode(e.Body.GetStr("code")); e.Type != "status" || code != Delegated {
		return ""
	}
	return e.Body.GetStr("ref")
}

// handedOn reads a block of a thread of ours for its delegation. next is the thread in which the exchange goes on with it,
// "" for none. Where it names one that we know already, it is not followed: every thread has one conversation.
func (l *link) handedOn(ctx context.Context, ref string, b Block) (out Block, next string, err error) {
	i := slices.IndexFunc(b, func(e Entry) bool { return e.successor() != "" })
	if i < 0 {
		return b, "", nil
	}
	next = b[i].successor()
	known := next == ref || !safeRef.MatchString(next)
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

// handOn is a delegation by a peer that a thread was sent to (MESS-27). Where its exchange goes on with it in a thread of
// its own, a successor here stands for that, in the same conversation; else the thread only closes. Whom a foreign
// exchange names is nobody of ours.
func (t *tx) handOn(ctx context.Context, th *Thread, body wire.Value) (wire.Value, error) {
	there := body.GetStr("ref")
	body = body.Without("ref")
	if !safeRef.MatchString(there) {
		return body, nil
	}
	whole, err := t.whole(ctx, th)
	if err != nil {
		return body, err
	}
	next, err := t.spawn(ctx, successor{body: withRef(whole, th.Ref), only: t.who.ID}, th)
	if err != nil {
		return body, err
	}
	p := th.Peers[t.who.ID]
	p.Offered, p.Name = true, there
	if next.Peers == nil {
		next.Peers = map[string]Peer{}
	}
	next.Peers[t.who.ID] = p
	t.changes = append(t.changes, pointConv(t.who.ID, p.Conv, next.Ref))
	th.Successors = []string{next.Ref}
	return body.With("ref", wire.Text(next.Ref)), nil
}
