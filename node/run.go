package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// run is one hook at work on one accepted message. Its sender may still be waiting on the connection; whoever
// comes first, hook or deadline, decides by settled whether the reply goes that way or through the outbox.
type run struct {
	n       *Node
	itemID  string
	message wire.Message
	payload wire.Value
	route   Route
	done    func() // gives the room back

	to     *recipient // who would get the reply, once the owner must be shown
	sealTo *string    // what the agent's answer is sealed to, once it gave one

	stranger bool // it shares what strangers have of the hooks

	late        bool        // nobody waits on a connection
	provisional signed      // what the sender gets if the hook takes too long
	settled     atomic.Bool // the one who sets it decides
	result      chan bridge.Outcome
}

// start works on r in the background until it ends or the node stops.
func (n *Node) start(r *run) {
	ctx, cancel := context.WithCancel(context.Background())
	n.runs.mu.Lock()
	defer n.runs.mu.Unlock()
	if n.runs.stopping() {
		cancel()
		r.done()
		return
	}
	n.runs.cancels[r] = cancel
	n.runs.group.Go(func() {
		defer func() {
			cancel()
			n.runs.mu.Lock()
			delete(n.runs.cancels, r)
			n.runs.mu.Unlock()
			r.done()
		}()
		r.work(ctx)
	})
}

// run is line 16 for a hook. The message is accepted with a provisional answer first; the hook's reply, if it comes in
// time, goes out on the connection (AM-26, AM-32).
func (a *acceptance) run(ctx context.Context) (bridge.Outcome, error) {
	done, err := a.n.runs.reserveFor(a.stranger)
	if err != nil {
		return bridge.Outcome{}, err
	}
	a.unit.Otherwise(done)
	item := a.newItem(ItemRunning)
	item.Route, item.Attempt = a.route.Name, 1
	provisional, err := a.n.sign(a.draft(pending(a.now, reasonSlow)))
	if err != nil {
		return bridge.Outcome{}, err
	}
	message := wire.Message{}
	if a.in.Native != nil {
		message = *a.in.Native
	}
	r := &run{
		n: a.n, itemID: item.ID, message: message, payload: a.in.Payload, route: a.route, done: done,
		stranger: a.stranger, result: make(chan bridge.Outcome, 1), late: a.in.Unattended, provisional: provisional,
	}
	a.hook = r
	a.unit.Add(item.change())
	a.unit.Then(func() { a.n.start(r) })
	return a.accepted(http.StatusAccepted, provisional), nil
}

// await returns what the hook answers within the deadline, else the provisional answer.
func (r *run) await(ctx context.Context, provisional bridge.Outcome) bridge.Outcome {
	timer := time.NewTimer(r.n.cfg.SyncDeadline)
	defer timer.Stop()
	select {
	case out := <-r.result:
		return out
	case <-timer.C:
	case <-ctx.Done():
	case <-r.n.runs.stopped:
	}
	if !r.settled.CompareAndSwap(false, true) {
		return <-r.result // the hook was first and is storing its reply
	}
	if err := r.n.toldPending(context.WithoutCancel(ctx), r.itemID, r.provisional); err != nil {
		r.n.log.Warn("record pending answer", "item", r.itemID, "err", err)
	}
	return provisional
}

// work runs the hook and stores what came of it. A panic in a handler costs its message, not the node.
func (r *run) work(ctx context.Context) {
	leave, err := r.n.runs.turn(ctx, r.stranger)
	if err != nil {
		r.failed(ctx, err)
		return
	}
	answer, err := func() (answer hook.Answer, err error) {
		defer func() {
			leave()
			if p := recover(); p != nil {
				err = fmt.Errorf("hook panicked: %v", p)
			}
		}()
		ctx, cancel := context.WithTimeout(ctx, r.n.cfg.HookTimeout) // from its turn on, however long it waited for it
		defer cancel()
		return r.call(ctx)
	}()
	if err != nil {
		r.failed(ctx, err)
		return
	}
	r.settle(context.WithoutCancel(ctx), answer, nil)
}

func (r *run) call(ctx context.Context) (hook.Answer, error) {
	item, err := r.n.Item(ctx, r.itemID)
	if err != nil {
		return hook.Answer{}, err
	}
	thread, err := r.n.book.Load(ctx, item.key(), time.Now())
	if err != nil {
		return hook.Answer{}, err
	}
	return r.route.Handler.Handle(ctx, r.n.call(ctx, item, r.message, thread.Conversation()))
}

// failed keeps the message for the owner. A node that is stopping leaves it "running": that is what recovery is for.
func (r *run) failed(ctx context.Context, err error) {
	if r.n.runs.stopping() {
		return
	}
	r.n.log.Warn("hook failed", "route", r.route.Name, "item", r.itemID, "err", err)
	r.settle(context.WithoutCancel(ctx), hook.Answer{}, err)
}

// settle decides who carries the reply and stores it, exactly once (AM-26, AM-75). An answer that cannot become a reply,
// for the queue it needs is full or the conversation cannot take it, is a failed hook: the message stays with the owner.
func (r *run) settle(ctx context.Context, answer hook.Answer, hookErr error) {
	s := &settlement{run: r, late: r.late || !r.settled.CompareAndSwap(false, true), answer: answer, err: hookErr}
	out, err := s.commit(ctx)
	if _, refused := errors.AsType[*wire.Error](err); err != nil && hookErr == nil && (refused || errors.Is(err, store.ErrQuota)) {
		r.n.log.Warn("hook's answer cannot be sent", "route", r.route.Name, "item", r.itemID, "err", err)
		s.err = err
		out, err = s.commit(ctx)
	}
	if err != nil {
		r.n.log.Error("store hook reply", "item", r.itemID, "err", err) // the item stays "running" until the next start
		out = s.provisional(ctx)
	}
	if !s.late {
		r.result <- out
	}
}

// toldPending records that the sender was given the provisional answer, which then belongs into the transcript.
func (n *Node) toldPending(ctx context.Context, itemID string, provisional signed) error {
	item, err := n.Item(ctx, itemID)
	if errors.Is(err, store.ErrNotFound) { // the owner deleted it meanwhile
		return nil
	}
	if err != nil {
		return err
	}
	return n.book.Insist(ctx, item.key(), func(u *conversations.Unit) error {
		item, err := n.Item(ctx, itemID)
		if errors.Is(err, store.ErrNotFound) || u.New() { // likewise
			return nil
		}
		if err != nil || item.Pending {
			return err
		}
		item.Pending = true
		u.Append(provisional.entry())
		u.Add(item.change())
		return nil
	})
}
