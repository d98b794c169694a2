package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/guard"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/untrusted"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Route sends the messages of some intents to a handler.
type Route struct {
	Pattern    string       // see [acl.Match]
	Name       string       // for status and log
	Handler    hook.Handler // nil: the inbox
	Repeatable bool         // may run again after a crash during its run (AM-75)
	Foreign    bool         // forwards messages to a foreign network, so a sealed message waits for the owner
	Replies    bool         // also handles replies, which otherwise go to the inbox
	Receipts   string       // the action of answers that only confirm our message, or ""
	Duty       string       // runs apart from other duties (see [hook.Pool]); "" for the programs of the owner
}

// ruled returns what the rules know of the route.
func (r Route) ruled() rules.Route {
	return rules.Route{Name: r.Name, Handles: r.Handler != nil, Replies: r.Replies, Foreign: r.Foreign}
}

// route returns the first configured route that matches, else the route of a bridge, else the inbox. A bridge takes
// precedence over a configured route whose pattern is "*".
func (n *Node) route(intent wire.Intent) Route {
	bridged, ok := n.bridges.route(intent)
	for _, r := range n.cfg.Routes {
		if ok && r.Pattern == "*" {
			break
		}
		if acl.Match(r.Pattern, string(intent)) {
			return r
		}
	}
	if ok {
		return bridged
	}
	return Route{Pattern: "*", Name: "inbox"}
}

// clarifyRoute answers an ambiguous accept with our offer again, reduced to a single time (AM-88).
var clarifyRoute = Route{Name: "agreement", Repeatable: true, Replies: true, Handler: clarifier{}, Duty: "agreement"}

// routeOf returns the route of a message that is handled already: that of its intent, clarifyRoute for the ambiguous
// accept in conv, or judgeRoute if only the guard holds it up.
func (n *Node) routeOf(conv conversations.Conversation, item Item) Route {
	route := n.route(item.Intent)
	switch {
	case conv.IsUnclear(item.MessageID):
		return clarifyRoute
	case item.Unjudged && !route.ruled().Takes(item.Kind == kindReply):
		return judgeRoute
	}
	return route
}

// noteUnclear is the note on an ambiguous accept that the owner must answer.
const noteUnclear = "this accepts without saying which proposal or time: ask, or propose a single time"

type clarifier struct{}

// Handle repeats our offer with a single time. If that is not possible, it leaves the message to the owner.
func (clarifier) Handle(_ context.Context, c hook.Call) (hook.Answer, error) {
	payload, ok := c.Conversation.Clarification(c.Message.ID)
	if !ok {
		return hook.Answer{Hold: noteUnclear}, nil
	}
	return hook.Answer{Payload: &payload}, nil
}

// run is one call of a hook for one accepted message, whose sender may still wait on the connection. The hook and the
// deadline race to set settled. If the hook wins, its reply leaves on the connection, otherwise through the outbox.
type run struct {
	n         *Node
	key       store.ConvKey
	itemID    string
	message   wire.Message
	payload   wire.Value
	route     Route
	freePlace func() // frees the place of this run in the queue of runs

	to         *recipientInfo // what the owner sees about the recipient of the answer; nil unless the owner must approve the answer
	sealTo     string         // the age recipient of the answer; empty if the answer is not sealed
	sealChosen bool           // sealTo is final, even if it is empty
	mandate    *acl.HoldRule  // under whose mandate the answer leaves, or nil
	doubt      string         // why the guard wants the owner to decide about the answer, or ""

	turn hook.Turn

	unattended  bool                // the sender does not wait on a connection
	provisional signedMessage       // the answer that the sender gets if the hook takes too long
	settled     atomic.Bool         // set by the hook or by the deadline, whichever comes first
	result      chan bridge.Outcome // receives the reply if it leaves on the connection

	screen func(context.Context, wire.Value) ([]store.Change, *wire.Error) // see [bridge.Inbound]; may be nil
}

// start runs r in the background, or only frees its place if the node is stopping.
func (n *Node) start(r *run) {
	if !n.runs.Go(func(ctx context.Context) {
		defer r.freePlace()
		r.work(ctx)
	}) {
		r.freePlace()
	}
}

// run implements line 16 of the receive table (docs/protocol.md) for a message that a hook handles. It accepts the
// message with a provisional answer. If the hook's reply comes in time, the sender gets the reply instead (AM-26,
// AM-32).
func (a *acceptance) run(ctx context.Context) (bridge.Outcome, error) {
	item := a.newItem(owner.ItemRunning)
	if err := a.n.turns.take(a.unit, item, a.route, a.lifted); err != nil {
		return bridge.Outcome{}, err
	}
	turn := item.turn(a.route)
	freePlace, err := a.n.runs.Reserve(turn)
	if err != nil {
		return bridge.Outcome{}, err
	}
	a.unit.Otherwise(freePlace) // if the unit is not committed
	item.Route = a.route.Name
	claimed := a.n.claimRun(&item) // false: another process runs the hook
	provisional, err := a.n.sign(a.draft(pendingPayload(a.now, rules.ReasonSlow)))
	if err != nil {
		return bridge.Outcome{}, err
	}
	r := &run{
		n: a.n, key: a.key, itemID: item.ID, message: *cmp.Or(a.in.Native, new(wire.Message)), payload: a.in.Payload, route: a.route, freePlace: freePlace,
		turn: turn, result: make(chan bridge.Outcome, 1), unattended: a.in.Unattended, provisional: provisional,
		screen: a.in.Screen,
	}
	if claimed {
		a.hook = r
		a.unit.Then(func() { a.n.start(r) })
	} else {
		a.unit.Then(freePlace)
	}
	out := a.complete(http.StatusAccepted, provisional)
	if (!claimed || hook.IsAsync(a.route.Handler)) && !r.unattended { // the sender need not wait
		r.unattended, item.Pending = true, true
		a.unit.Append(provisional.transcriptEntry("node"))
	}
	a.unit.Add(item.change())
	return out, nil
}

// await returns the hook's answer if it comes before the deadline. Otherwise it records and returns the provisional
// answer.
func (r *run) await(ctx context.Context, provisional bridge.Outcome) bridge.Outcome {
	select {
	case out := <-r.result:
		return out
	case <-time.After(r.n.cfg.SyncDeadline):
	case <-ctx.Done():
	case <-r.n.runs.Stopped():
	}
	if !r.settled.CompareAndSwap(false, true) {
		return <-r.result // the hook was first and is storing its reply
	}
	if err := r.n.recordPending(context.WithoutCancel(ctx), r.key, r.itemID, r.provisional); err != nil {
		r.n.log.Warn("pending answer not recorded in the transcript", "item", r.itemID, "err", err)
	}
	return provisional
}

// work runs the hook and stores the outcome. A panic in a handler fails only its own run.
func (r *run) work(ctx context.Context) {
	switch why, err := r.judge(ctx); {
	case err != nil:
		r.fail(ctx, err)
		return
	case why != "":
		r.settle(context.WithoutCancel(ctx), hook.Answer{Hold: why}, nil)
		return
	}
	endTurn, err := r.n.runs.AwaitTurn(ctx, r.turn)
	if err != nil {
		r.fail(ctx, err)
		return
	}
	answer, err := func() (answer hook.Answer, err error) {
		defer func() {
			endTurn()
			if p := recover(); p != nil {
				err = fmt.Errorf("hook panicked: %v", p)
			}
		}()
		ctx, cancel := context.WithTimeout(ctx, r.n.cfg.HookTimeout) // the time in the queue does not count
		defer cancel()
		return r.call(ctx)
	}()
	if err != nil {
		r.fail(ctx, err)
		return
	}
	if answer.Payload != nil && r.route.Duty == "" { // a program of the owner wrote it
		out := Outgoing{To: wire.AgentID(r.key.Peer), Conv: wire.ConversationID(r.key.ID), Via: "hook", Payload: *answer.Payload}
		if item, err := r.n.Item(ctx, r.itemID); err == nil {
			out.Intent, out.Address = item.Intent, item.Address
		}
		r.doubt = r.n.judgeOut(ctx, out)
	}
	r.settle(context.WithoutCancel(ctx), answer, nil)
}

// call calls the handler with the current state of the item and of its conversation.
func (r *run) call(ctx context.Context) (hook.Answer, error) {
	item, err := r.n.Item(ctx, r.itemID)
	if err != nil {
		return hook.Answer{}, err
	}
	thread, err := r.n.book.Load(ctx, item.key(), time.Now())
	if err != nil {
		return hook.Answer{}, err
	}
	return r.route.Handler.Handle(ctx, r.newCall(ctx, item, thread.Conversation()))
}

// newCall returns what a hook gets for the item. It contains the peer's current standing, because the owner may
// have decided since the message came.
func (r *run) newCall(ctx context.Context, item Item, conv conversations.Conversation) hook.Call {
	n, m := r.n, r.message
	const history = 20 // transcript entries that a hook gets; the owner API has the older ones
	after := conv.Entries - min(conv.Entries, history)
	entries, err := n.book.Transcript(ctx, item.key(), after, history)
	if err != nil {
		n.log.Warn("transcript cannot be read; the hook gets no history", "conversation", item.Conversation, "err", err)
	}
	entries = slices.DeleteFunc(entries, func(e store.Entry) bool { // newer than conv, or not released
		return e.N > conv.Entries || !e.Out && !conv.IsReleased(wire.MessageID(e.MessageID))
	})
	trust := item.Trust
	if standing, err := n.rules.Standing(ctx, item.subject(), time.Now()); err == nil {
		trust = string(standing)
	}
	if m.ID == "" { // a foreign message
		m = wire.Message{
			ID: item.MessageID, Conversation: item.Conversation, From: item.Peer, To: n.ID(), Time: item.At, Intent: item.Intent,
		}
	}
	_, left := n.turns.boundsFor(item.Verified).Left(conv, true, time.Now())
	var progress func(hook.Result)
	if item.Address != "" {
		progress = func(r hook.Result) {
			if n.cfg.Guard.Judges(guard.Out) { // texts and artifacts wait for the verdict on the whole
				if r.Artifacts = nil; r.Task == nil {
					return
				}
				r.Task = &hook.Task{State: r.Task.State}
			}
			n.bridges.progress.Tell(bridge.Progress{Address: item.Address, MessageID: item.MessageID, Conversation: item.Conversation, Result: r})
		}
	}
	return hook.Call{
		Message: m, Payload: item.Payload, Conversation: conv, TurnsLeft: left, History: entries,
		Sender:      hook.Sender{AgentID: item.Peer, Name: untrusted.Text(item.PeerName), Verified: item.Verified, Trust: trust},
		ActionKnown: item.ActionKnown, Sealed: item.Sealed, Attempt: item.Attempt, Approved: item.Approved, Reply: item.Kind == kindReply,
		Reminder: !item.Reminded.IsZero(), Progress: progress,
	}
}

// fail stores that the hook failed, see [hookOutcome.fail]. If the node stops or has lost its lease, the item stays
// "running", and the process that holds the lease next recovers it.
func (r *run) fail(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	r.n.log.Warn("hook failed", "route", r.route.Name, "item", r.itemID, "err", err)
	r.settle(context.WithoutCancel(ctx), hook.Answer{}, err)
}

// settle stores the outcome of the hook exactly once, and decides whether the reply leaves on the connection or through
// the outbox (AM-26, AM-75). If the answer cannot be sent, because a queue is full or the conversation or the bridge
// refuses it, settle treats the hook as failed and leaves the message to the owner.
func (r *run) settle(ctx context.Context, answer hook.Answer, hookErr error) {
	if !errors.Is(hookErr, guard.ErrNoVerdict) {
		r.n.runs.Stats.Add(r.route.Name, hookErr, time.Now())
	}
	s := &hookOutcome{run: r, viaOutbox: r.unattended || !r.settled.CompareAndSwap(false, true), answer: answer, err: hookErr}
	out, err := s.commit(ctx)
	if _, refused := errors.AsType[*wire.Error](err); err != nil && hookErr == nil && (refused || errors.Is(err, store.ErrQuota)) {
		r.n.log.Warn("the hook's answer cannot be sent", "route", r.route.Name, "item", r.itemID, "err", err)
		s.err = err
		out, err = s.commit(ctx)
	}
	if err != nil {
		r.n.log.Error("reply of a hook not stored; the message runs again after recovery", "item", r.itemID, "err", err) // the item stays "running" until a process recovers it
		out = s.provisional(ctx)
	}
	if !s.viaOutbox {
		r.result <- out
	}
}

// recordPending records that the sender got the provisional answer, in the item and in the transcript.
func (n *Node) recordPending(ctx context.Context, key store.ConvKey, itemID string, provisional signedMessage) error {
	return n.book.Insist(ctx, key, func(u *conversations.Unit) error {
		item, err := n.Item(ctx, itemID)
		if errors.Is(err, store.ErrNotFound) || u.IsNew() { // deleted meanwhile
			return nil
		}
		if err != nil || item.Pending {
			return err
		}
		item.Pending = true
		u.Append(provisional.transcriptEntry("node"))
		u.Add(item.change())
		return nil
	})
}
