package exchange

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

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
	request, err := t.originalRequest(ctx, th)
	if err != nil {
		return "", err
	}
	context, _ := request.Get("context")
	withRef := append(slices.Collect(context.Elems()), wire.Obj(wire.TextField("ref", th.Ref)))
	request = request.Without("id").With("context", wire.Arr(withRef...)) // the client id names the older thread
	next, _, err := t.openSuccessor(request, c.ID, th)
	if err != nil {
		return "", err
	}
	next.Deadline, next.NotBefore, next.DependsOn = th.Deadline, th.NotBefore, th.DependsOn // durations do not start again
	if err := t.copyFiles(ctx, request, th.Ref, next.Ref); err != nil {
		return "", err
	}
	th.Successors = []string{next.Ref}
	return next.Ref, t.settle(ctx, next)
}

// maxCopied bounds the bytes of attachments that one delegation copies.
const maxCopied = 64 << 20

// copyFiles copies the attachments that a request names to the successor: its executor may not see the older thread.
func (t *tx) copyFiles(ctx context.Context, request wire.Value, from, to string) (err error) {
	size := 0
	eachFile(request, func(name string) {
		rec, readErr := t.readRecord(ctx, NSFiles, from+"/"+name)
		if errors.Is(readErr, store.ErrNotFound) {
			return // named, but never stored
		}
		size += len(rec.Body)
		if err = cmp.Or(err, readErr); err == nil && size > maxCopied {
			err = thread.Conflict("the files of the request are too large to be copied")
		}
		if err == nil {
			t.files.stored = append(t.files.stored, store.Change{Record: store.Record{NS: NSFiles, Key: to + "/" + name, Body: rec.Body}, IfRev: store.Any})
		}
	})
	return err
}

// readRecord returns a record as this transaction leaves it.
func (t *tx) readRecord(ctx context.Context, ns, key string) (store.Record, error) {
	for _, c := range slices.Concat(t.changes, t.files.stored) {
		if c.Record.NS == ns && c.Record.Key == key && !c.Delete {
			return c.Record, nil
		}
	}
	return t.x.records.Get(ctx, ns, key, t.now)
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

// openProposed opens a thread that replaces others, with what a suggestion proposes that the requester accepted; nothing
// else of the older threads is inherited. If only is an executor that can do it, the thread is offered to that executor
// alone. If the requester is a peer, the owner must approve the new request under the same conditions as one that the
// peer sends (see [thread.Request.NeedsApproval]).
func (t *tx) openProposed(ctx context.Context, request wire.Value, only string, from ...*thread.Thread) (*thread.Thread, error) {
	if slices.ContainsFunc(from, func(th *thread.Thread) bool { return th.ConfirmBefore }) {
		request = request.With("confirm_before", wire.Bool(true)) // a proposal does not remove the need to confirm
	}
	th, r, err := t.openSuccessor(request, only, from...)
	if err != nil {
		return nil, err
	}
	if c := t.x.Executors.Find(only); c == nil || !c.HasAll(th.Requires) {
		th.Only = ""
	}
	requester := from[0].Requester
	if _, isPeer := th.Peers[requester]; isPeer && r.NeedsApproval() && !t.who.Owner {
		th.Park(thread.ParkedApproval, t.now)
		t.postState(th)
		return th, nil
	}
	return th, t.settle(ctx, th)
}

// openSuccessor opens a thread that replaces others of one requester, in the conversation of the first of them. The
// caller settles it.
func (t *tx) openSuccessor(request wire.Value, only string, from ...*thread.Thread) (*thread.Thread, thread.Request, error) {
	for _, th := range from {
		if err := checkOwnerHold(t.who, th); err != nil {
			return nil, thread.Request{}, err
		}
	}
	if err := t.x.newThreads.charge(t.who); err != nil {
		return nil, thread.Request{}, err
	}
	r, err := thread.ReadRequest(request, "request", t.now)
	if err != nil {
		return nil, r, err
	}
	requester := from[0].Requester
	ref := thread.NewThreadRef(t.now, t.x.index.nextNumber(t.now.Format(time.DateOnly)), "")
	th := t.addThread(ref, requester, thread.ExchangeID, only, r)
	th.External = from[0].External
	if p, ok := from[0].Peers[requester]; ok {
		p.Name = ""
		th.Peers = map[string]thread.Peer{requester: p}
	}
	t.touch(th)
	t.appendMessage(th, requester, thread.Block{{Type: "request", Body: request}})
	return th, r, nil
}

// checkOwnerHold returns an error if the thread waits for the owner's approval and the caller is not the owner.
func checkOwnerHold(who Actor, th *thread.Thread) error {
	if th.Parked == thread.ParkedApproval && !who.Owner {
		return thread.Conflict("the thread waits for the owner's approval")
	}
	return nil
}
