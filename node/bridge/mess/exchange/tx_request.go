package exchange

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// SameFor is how long a repeated request with the same client id and content counts as the same request (MESS-16).
const SameFor = 24 * time.Hour

// clientIDRecord is stored under a client id of a requester. It names the newest thread with this id.
type clientIDRecord struct {
	Ref    string    `json:"ref"`
	Digest string    `json:"digest"`
	At     time.Time `json:"at"`
}

// reservation is the ref that a request of a block gets before the request is applied.
type reservation struct {
	ref        string
	isRepeated bool      // the thread exists already
	idRev      store.Rev // of the record of the client id, as it was read
}

// reserve gives every request of the block its ref before any entry is applied, so that a request may name an earlier
// or later request (MESS-29). A repeated request gets the ref of the first request.
func (t *tx) reserve(ctx context.Context, b thread.Block) (map[int]reservation, error) {
	reserved := make(map[int]reservation)
	day := t.now.Format(time.DateOnly)
	for i, e := range b {
		if e.Type != "request" {
			continue
		}
		id := e.Body.GetStr("id")
		if _, isUsed := t.ids[id]; isUsed && id != "" {
			return nil, thread.Bad(thread.EntryPath(i, e)+".id", "is used twice in the block")
		}
		k, rev, err := t.x.lookUpClientID(ctx, t.who.ID, id, t.now)
		if err != nil {
			return nil, err
		}
		isRepeated := k.Ref != "" && k.Digest == thread.Digest(e.Body) && t.now.Sub(k.At) < SameFor
		r := reservation{k.Ref, isRepeated, rev}
		if !isRepeated {
			r.ref = thread.NewThreadRef(t.now, t.x.index.nextNumber(day), id)
		}
		if id != "" {
			t.ids[id] = r.ref
		}
		reserved[i], t.lastRequest, t.requestRefs[r.ref] = r, r.ref, true
	}
	return reserved, nil
}

// lookUpClientID returns what a client id of a requester stands for, or zero values if the id is new.
func (x *Exchange) lookUpClientID(ctx context.Context, requester, id string, now time.Time) (k clientIDRecord, rev store.Rev, err error) {
	if id == "" {
		return k, rev, nil
	}
	rev, _, err = store.ReadRecord(ctx, x.records, NSIDs, wire.HashOf(requester, id), &k, now)
	return k, rev, err
}

// checkCycles refuses new requests that wait for each other (MESS-29). Older threads cannot wait for new ones.
func checkCycles(b thread.Block, reserved map[int]reservation, created []string, threads map[string]*thread.Thread) error {
	const open, done = 1, 2
	mark := make(map[string]int)
	var inCycle func(ref string) bool
	inCycle = func(ref string) bool {
		if mark[ref] != 0 || !slices.Contains(created, ref) {
			return mark[ref] == open
		}
		mark[ref] = open
		if slices.ContainsFunc(threads[ref].DependsOn, inCycle) {
			return true
		}
		mark[ref] = done
		return false
	}
	for i, e := range b {
		if inCycle(reserved[i].ref) {
			return thread.Bad(thread.EntryPath(i, e)+".constraints.depends_on", "the requests wait for each other")
		}
	}
	return nil
}

// applyRequest opens a thread (MESS-16).
func (t *tx) applyRequest(ctx context.Context, e thread.Entry, path string, reserved reservation) error {
	r, err := thread.ReadRequest(e.Body, path, t.now)
	if err != nil {
		return err
	}
	ref := reserved.ref
	t.acks = append(t.acks, requestAck{id: r.ID, ref: ref})
	if reserved.isRepeated {
		return nil
	}
	// a peer's request may have been delayed on its way: it is accepted, and its thread expires
	if !r.Deadline.IsZero() && !t.now.Before(r.Deadline) && t.opts.Peer == nil {
		key := "constraints.timing.expires"
		if thread.HasValue(e.Body, "needed_by") {
			key = "needed_by"
		}
		return thread.Bad(path+"."+key, "lies in the past")
	}
	depends, err := t.resolveDependencies(ctx, r, path)
	if err != nil {
		return err
	}
	th := t.addThread(ref, t.who.ID, t.who.ID, t.opts.Only, r)
	th.ClientID, th.DependsOn = r.ID, depends
	if t.opts.Peer != nil {
		th.External = t.opts.Peer.Conv
		th.Peers = map[string]thread.Peer{t.who.ID: *t.opts.Peer}
	}
	if r.ID != "" {
		body := wire.MustMarshal(clientIDRecord{Ref: ref, Digest: thread.Digest(e.Body), At: t.now})
		t.changes = append(t.changes, store.Change{Record: store.Record{NS: NSIDs, Key: wire.HashOf(t.who.ID, r.ID), Body: body}, IfRev: reserved.idRev})
	}
	t.post(th, e)
	t.flush(th) // the first message of a thread is its request
	if t.opts.Hold {
		th.Park(thread.ParkedApproval, t.now)
		t.postState(th)
		return nil
	}
	return t.settle(ctx, th)
}

// addThread adds a new thread for a request to the block. creator is the actor in the first event of its history. If
// only is not "", the thread is offered to that executor alone.
func (t *tx) addThread(ref, requester, creator, only string, r thread.Request) *thread.Thread {
	th := &thread.Thread{
		Ref: ref, Requester: requester, Status: thread.Received, Intent: r.Intent, Priority: r.Priority,
		Requires: r.Requires, Created: t.now, Updated: t.now, NotBefore: r.NotBefore, Deadline: r.Deadline,
		ConfirmBefore: r.ConfirmBefore, Only: only, History: []thread.Event{{Action: "created", At: t.now, By: creator}},
	}
	t.threads[ref], t.before[ref] = th, snapshot{}
	t.result.Created = append(t.result.Created, ref)
	return th
}

// resolveDependencies returns the refs of the threads for which a request waits. The owner's requests may depend on any
// thread, all others only on the actor's own. Otherwise an executor that once could have claimed a thread would learn
// how the thread ended (MESS-56).
func (t *tx) resolveDependencies(ctx context.Context, r thread.Request, path string) ([]string, error) {
	var out []string
	for i, id := range r.DependsOn {
		to, err := t.resolve(ctx, id, threadsFirst)
		th := t.threads[to.Ref]
		isOwn := t.requestRefs[to.Ref] || th != nil && th.Requester == t.who.ID || th == nil && t.x.index.requester(to.Ref) == t.who.ID
		if err != nil || !isOwn && !t.who.Owner {
			return nil, thread.Bad(fmt.Sprintf("%s.constraints.depends_on[%d]", path, i), strings.TrimSpace(thread.QuoteName(id)+" is not a request of yours"))
		}
		out = append(out, to.Ref)
	}
	return out, nil
}

// settle parks a thread that must wait, ends a thread with a failed dependency, and offers any other thread. It is
// called after the thread is created, and whenever the reason to wait may be gone (MESS-29 to MESS-31).
func (t *tx) settle(ctx context.Context, th *thread.Thread) error {
	park := func(reason, kind string, what wire.Member) {
		if th.Parked != reason {
			th.Park(reason, t.now)
			t.postState(th, wire.Field("waiting_for", wire.Obj(wire.TextField("type", kind), what)))
		}
	}
	met, failed, err := t.checkDependencies(ctx, th)
	switch {
	case err != nil:
		return err
	case failed != "":
		th.Become(thread.Failed, thread.ExchangeID, "dependency_failed: "+failed, t.now)
		reason := wire.Obj(wire.TextField("type", "dependency_failed"), wire.TextField("detail", failed))
		t.postState(th, wire.Field("reason", reason), wire.Field("recoverable", wire.Bool(true)))
		return nil
	case !met:
		park(thread.ParkedDependency, "dependency", wire.Field("ref", wire.Texts(th.DependsOn)))
		return nil
	case t.now.Before(th.NotBefore):
		park(thread.ParkedSchedule, "schedule", wire.Field("available_at", thread.TimeText(th.NotBefore)))
		return nil
	}
	if th.Parked == thread.ParkedDependency || th.Parked == thread.ParkedSchedule {
		th.Unpark(t.now)
		t.postState(th)
	}
	if th.Status == thread.Received && !th.Offered {
		t.offer(th)
	}
	return nil
}

// postState adds a message of the exchange with the current status of the thread.
func (t *tx) postState(th *thread.Thread, extra ...wire.Member) {
	t.touch(th)
	t.appendMessage(th, thread.ExchangeID, thread.Block{th.StatusEntry(extra...)})
}

// checkDependencies reports whether all dependencies of the thread are met, and returns one that can never be met. It
// follows superseded and delegated threads to their successors (MESS-30), each thread once: many may share a successor.
func (t *tx) checkDependencies(ctx context.Context, th *thread.Thread) (met bool, failed string, err error) {
	met = true
	seen := map[string]bool{}
	for _, dependency := range th.DependsOn {
		for pending := []string{dependency}; len(pending) > 0; {
			ref := pending[len(pending)-1]
			pending = pending[:len(pending)-1]
			if seen[ref] {
				continue
			}
			seen[ref] = true
			if t.requestRefs[ref] && t.threads[ref] == nil {
				met = false // a later request of this block
				continue
			}
			next, err := t.load(ctx, ref)
			if errors.Is(err, store.ErrNotFound) {
				return false, dependency, nil
			}
			if err != nil {
				return false, "", err
			}
			switch {
			case next.Status == thread.Completed:
			case !next.Status.Terminal():
				met = false
			case len(next.Successors) == 0:
				return false, dependency, nil
			}
			pending = append(pending, next.Successors...)
		}
	}
	return met, "", nil
}
