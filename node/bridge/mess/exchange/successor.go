package exchange

import (
	"context"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// This file opens successors: the threads that replace delegated, split and merged threads.

// passTo opens a successor of a thread that is delegated to another executor of this exchange, and returns its ref
// (MESS-27). It returns "" if executor is not an approved executor of this exchange.
func (t *tx) passTo(ctx context.Context, th *thread.Thread, executor string) (string, error) {
	c := t.x.Executors.Find(trimNamespace(executor, t.x.id))
	if c == nil {
		return "", nil
	}
	if !c.HasAll(th.Requires) {
		return "", thread.Conflict("%s lacks a required capability", c.ID)
	}
	request, err := t.copyRequest(ctx, th)
	if err != nil {
		return "", err
	}
	next, err := t.openSuccessor(ctx, successor{body: addRefs(request, th.Ref), only: c.ID}, th)
	if err != nil {
		return "", err
	}
	th.Successors = []string{next.Ref}
	return next.Ref, nil
}

// trimNamespace returns an id without the name of the exchange and a colon in front.
func trimNamespace(id, exchange string) string {
	if rest, _ := strings.CutPrefix(id, exchange+":"); rest != "" {
		return rest
	}
	return id
}

// originalRequest returns the request as it was sent, or one with only the intent if the first message has no request.
func (t *tx) originalRequest(ctx context.Context, th *thread.Thread) (wire.Value, error) {
	rec, err := t.readRecord(ctx, NSMessages, messageKey(th.Ref, 1))
	if err != nil {
		return wire.Value{}, err
	}
	m, err := store.Decode[thread.Message](rec)
	for _, e := range m.Block() {
		if e.Type == "request" {
			return e.Body, err
		}
	}
	return wire.Obj(wire.TextField("intent", th.Intent)), err
}

// addRefs adds references to the context of a request and removes the client id, which names the older thread.
func addRefs(request wire.Value, refs ...string) wire.Value {
	context, _ := request.Get("context")
	entries := slices.Collect(context.Elems())
	for _, ref := range refs {
		entries = append(entries, wire.Obj(wire.TextField("ref", ref)))
	}
	return request.Without("id").With("context", wire.Arr(entries...))
}

// successor describes a thread that replaces others.
type successor struct {
	body      wire.Value
	only      string // the only executor to which it is offered; "" means all
	suggested bool   // the body comes from a suggestion that the requester accepted
}

// openSuccessor opens a thread that replaces others of one requester. If the requester is a peer and the body comes
// from a suggestion, the owner must approve the new request under the same conditions as one that the peer sends (see
// [thread.Request.NeedsApproval]).
func (t *tx) openSuccessor(ctx context.Context, s successor, from ...*thread.Thread) (*thread.Thread, error) {
	for _, th := range from {
		if err := checkOwnerHold(t.who, th); err != nil {
			return nil, err
		}
	}
	requester := from[0].Requester
	if err := t.x.newThreads.charge(t.who); err != nil {
		return nil, err
	}
	r, err := thread.ReadRequest(s.body, "request", t.now)
	if err != nil {
		return nil, err
	}
	ref := thread.NewThreadRef(t.now, t.x.index.nextNumber(t.now.Format("2006-01-02")), "")
	th := t.addThread(ref, requester, thread.ExchangeID, s.only, r)
	th.Inherit(from...)
	t.touch(th)
	t.appendMessage(th, requester, thread.Block{{Type: "request", Body: thread.WithTimes(s.body, th)}})
	if t.files.bytesCopied > maxCopied {
		return nil, errCopiesTooLarge
	}
	if _, isPeer := th.Peers[requester]; isPeer && s.suggested && r.NeedsApproval() && !t.who.Owner {
		th.Park(thread.ParkedApproval, t.now)
		t.postState(th)
		return th, nil
	}
	return th, t.settle(ctx, th)
}

// checkOwnerHold returns an error if the thread waits for the owner's approval and the caller is not the owner.
func checkOwnerHold(who Actor, th *thread.Thread) error {
	if th.Parked == thread.ParkedApproval && !who.Owner {
		return thread.Conflict("the thread waits for the owner's approval")
	}
	return nil
}
