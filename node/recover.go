package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/work"
)

// workItem does what is due about an inbox item: it runs its hook again, because the hook could not be reached or another
// process left it to this one; it reminds an agent that was woken; or it settles an item whose question has expired.
func (n *Node) workItem(ctx context.Context, rec store.Record, _ bool) (work.Later, error) {
	item, err := decodeItem(rec)
	now := time.Now()
	switch {
	case err != nil:
	case item.State == owner.ItemWaiting:
		err = n.retryHook(ctx, item, now)
	case !n.clock.Reliable():
		return work.Later{Pause: sweepEvery}, nil
	case item.State == owner.ItemNew:
		err = n.remindItem(ctx, item, now)
	default:
		err = n.settleExpiredItem(ctx, item, now)
	}
	if errors.Is(err, wire.ErrUnavailable) { // too many hooks run or wait
		return work.Later{Pause: time.Second}, nil
	}
	return work.Later{}, err
}

// retryHook runs the hook of an item again, or ends the wait if the hook must not run any more.
func (n *Node) retryHook(ctx context.Context, item Item, now time.Time) error {
	thread, err := n.book.Load(ctx, item.key(), now)
	if err != nil {
		return err
	}
	standing, err := n.rules.Standing(ctx, item.subject(), now)
	if err != nil {
		return err
	}
	switch route := n.routeOf(thread.Conversation(), item); {
	case !thread.IsOpen():
		item.State, item.Note = owner.ItemFailed, noteEnded
	case standing == acl.Blocked: // blocked since the message was accepted (AM-25)
		item.State, item.Note = owner.ItemFailed, "the sender is blocked"
	case !route.ruled().Takes(item.Kind == kindReply): // the configuration was changed
		item.State = owner.ItemNew
	default:
		freePlace, err := n.runs.Reserve(item.turn(route))
		if err != nil {
			return err
		}
		return n.runAgain(ctx, item, route, freePlace)
	}
	return n.storeItem(ctx, item)
}

// RetryItem implements [owner.Inbox]. It refuses an item that is neither waiting nor failed, or whose intent no hook
// handles.
func (o OwnerAPI) RetryItem(ctx context.Context, id string) (owner.Item, error) {
	item, err := o.findItem(ctx, id)
	if err != nil {
		return owner.Item{}, err
	}
	refuse := func(why string) (owner.Item, error) {
		return owner.Item{}, &wire.Error{Code: wire.InvalidMessage, Status: http.StatusConflict, Message: why}
	}
	switch {
	case item.State != owner.ItemWaiting && item.State != owner.ItemFailed:
		return refuse("only the hook of a waiting or failed message can run again; this one is " + string(item.State))
	case o.n.routeOf(conversations.Conversation{}, item).Handler == nil:
		return refuse("no hook handles " + string(item.Intent))
	}
	item.Failure = nil // a new series of failures
	if err := o.n.retryHook(ctx, item, time.Now()); err != nil {
		return owner.Item{}, err
	}
	return o.FindItem(ctx, item.ID)
}

// noteWaiting is the note on a message whose hook could not be reached.
const noteWaiting = "the hook could not be reached; the node tries again"

// failure returns why the hook failed, now and since when, or nil if it did not.
func (s *hookOutcome) failure() *owner.HookFailure {
	if s.err == nil {
		return nil
	}
	f := newHookFailure(s.err, s.unit.Now)
	if old := s.item.Failure; old != nil {
		f.Since, f.Times = old.Since, old.Times+1
	}
	return &f
}

// fail leaves the message to the owner; the sender learns that the agent did not answer.
func (s *hookOutcome) fail(ctx context.Context) (bridge.Outcome, error) {
	n := s.run.n
	s.item.State, s.item.Note = owner.ItemFailed, hookFailureNote(s.err)
	s.unit.Add(n.notices.Change(n.notice("hook-failed", s.item.Peer, s.item.PeerName, s.item.key(), s.unit.Now)))
	return s.answerFailed(ctx)
}

func newHookFailure(err error, now time.Time) owner.HookFailure {
	f := owner.HookFailure{Reason: hookFailureNote(err), Since: now, At: now, Times: 1, Fault: string(hook.FaultOf(err))}
	if e, ok := errors.AsType[*hook.Error](err); ok {
		f.Exit, f.Stderr = e.Exit, e.Stderr
	}
	return f
}

// answerFailed replies that the agent did not answer, or why the bridge must not send the answer. The sender gets this
// reply at once if it waits on the connection, or else when it repeats the message.
func (s *hookOutcome) answerFailed(ctx context.Context) (bridge.Outcome, error) {
	if s.item.Kind == kindReply { // nobody waits for an answer to an answer
		return bridge.Outcome{}, nil
	}
	if s.answer.Err != nil && !s.viaOutbox { // the bridge must not send the answer
		s.item.Pending = true // the owner's answer replaces the refusal
		return s.refuse(ctx)
	}
	answer, err := s.run.n.sign(wire.Draft{
		Conversation: s.item.Conversation, To: s.item.Peer, Time: s.unit.Now, Intent: s.item.Intent,
		Payload: pendingPayload(s.unit.Now, rules.ReasonFailed),
	})
	if err != nil {
		return bridge.Outcome{}, err
	}
	s.unit.Answer = s.item.newReplay(http.StatusAccepted, answer.Raw)
	s.unit.Append(answer.transcriptEntry("node")) // also if only a repeat fetches it
	if s.viaOutbox {
		s.item.Pending = s.item.Pending || s.run.unattended // for a sender that waited, recordPending sets it
		return bridge.Outcome{}, nil
	}
	s.item.Pending = true
	return bridge.Outcome{Status: http.StatusAccepted, Reply: &answer.Message, Raw: answer.Raw}, nil
}

// noteUnanswered is the note on an item whose agent ignored a reminder.
const noteUnanswered = "your agent was woken twice and did not answer"

// remindItem wakes an agent again that has not sent a promised answer within RemindAfter, or notifies the owner if it
// ignored an earlier reminder (AM-73).
func (n *Node) remindItem(ctx context.Context, item Item, now time.Time) error {
	thread, err := n.book.Load(ctx, item.key(), now)
	if err != nil {
		return err
	}
	standing, err := n.rules.Standing(ctx, item.subject(), now)
	if err != nil {
		return err
	}
	route := n.route(item.Intent)
	switch {
	// The reminder has lost its purpose, or its hook.
	case !thread.IsOpen() || route.Handler == nil || standing == acl.Blocked:
		item.Woken = time.Time{}
		return n.storeItem(ctx, item)
	case !item.Reminded.IsZero():
		item.Woken, item.Note = time.Time{}, noteUnanswered
		notice := n.notice("unanswered", item.Peer, item.PeerName, item.key(), now)
		return n.storeItem(ctx, item, n.notices.Change(notice))
	}
	freePlace, err := n.runs.Reserve(item.turn(route))
	if err != nil {
		return err
	}
	item.Reminded = now
	return n.runAgain(ctx, item, route, freePlace)
}

// interruptedRun is the body of a question of the kind owner.AskInterrupted.
type interruptedRun struct {
	Item    string          `json:"item"`
	From    wire.AgentID    `json:"from"`
	Name    string          `json:"name,omitempty"`
	Route   string          `json:"route"`
	Intent  wire.Intent     `json:"intent"`
	Note    string          `json:"note"`
	Payload json.RawMessage `json:"payload"`
}

// recovery finishes what another process left unfinished when it did the node's [duties].
type recovery struct{ n *Node }

// run recovers the items whose hooks were running. A repeatable route runs
// its hook again with the same message id. Otherwise run asks the owner, because the hook may have done its work
// (AM-75). An item that cannot be recovered waits until a process takes the duties again.
func (r recovery) run(ctx context.Context) {
	n := r.n
	current := n.runs.ID()
	var interrupted []string // ids of items whose hooks were running when the previous process ended
	for item, err := range n.allItems(ctx, stateTerm(owner.ItemRunning)) {
		if err != nil {
			if ctx.Err() == nil {
				n.log.Error("interrupted hooks cannot be found; the next start looks again", "err", err)
			}
			break
		}
		if item.Runner != current {
			interrupted = append(interrupted, item.ID)
		}
	}
	for _, id := range interrupted {
		if err := r.recoverRun(ctx, id); err != nil && ctx.Err() == nil {
			n.log.Error("interrupted hook not recovered; the next start tries again", "item", id, "err", err)
		}
	}
}

// recoverRun recovers one item whose hook was interrupted.
func (r recovery) recoverRun(ctx context.Context, id string) error {
	n := r.n
	if err := r.recordProvisional(ctx, id); err != nil {
		return err
	}
	item, err := n.Item(ctx, id)
	if err != nil || item.State != owner.ItemRunning {
		return err
	}
	thread, err := n.book.Load(ctx, item.key(), time.Now())
	if err != nil {
		return err
	}
	if route := n.routeOf(thread.Conversation(), item); route.Handler != nil && !route.Repeatable {
		return r.askAboutRun(ctx, item)
	}
	err = n.retryHook(ctx, item, time.Now())
	if errors.Is(err, wire.ErrUnavailable) { // too many runs wait
		item.State, item.RetryAt = owner.ItemWaiting, time.Time{}
		return n.storeItem(ctx, item)
	}
	return err
}

// recordProvisional adds the provisional answer (see [run]) to the transcript, unless that was done before. From then
// on the reply goes through the outbox, and a repeat of the message gets the provisional answer. If the conversation
// was deleted, the item fails.
func (r recovery) recordProvisional(ctx context.Context, id string) error {
	n := r.n
	item, err := n.Item(ctx, id)
	if err != nil || item.Pending || item.Kind == kindReply {
		return err
	}
	rec, err := n.store.Steps().FindReplay(ctx, string(item.Peer), string(item.MessageID), time.Now())
	if errors.Is(err, store.ErrNotFound) || err == nil && rec.Status == 0 { // status 0: the conversation was deleted
		item.State, item.Note = owner.ItemFailed, noteDeleted
		return n.storeItem(ctx, item)
	}
	if err != nil {
		return err
	}
	m, digest, err := parseOwn(rec.Answer)
	if err != nil {
		return err
	}
	return n.recordPending(ctx, item.key(), id, signedMessage{Message: m, Raw: rec.Answer, Digest: digest})
}

const (
	noteDeleted = "the conversation was deleted"
	noteEnded   = "the conversation ended before the agent answered"
)

func (n *Node) storeItem(ctx context.Context, item Item, more ...store.Change) error {
	return n.store.Records().Apply(ctx, append(more, item.change()), time.Now())
}

// askAboutRun asks the owner whether the interrupted hook may run again.
func (r recovery) askAboutRun(ctx context.Context, item Item) error {
	n := r.n
	now := time.Now()
	item.State = owner.ItemInterrupted
	item.Note = "the node restarted while the agent worked on it; the agent may have done its work"
	body := wire.MustMarshal(interruptedRun{
		Item: item.ID, From: item.Peer, Name: item.PeerName, Route: item.Route, Intent: item.Intent, Note: item.Note, Payload: item.Payload,
	})
	ask, changes := n.asks.Open(acl.Ask{
		Kind: owner.AskInterrupted, Subject: item.subject(), Conv: item.key(),
		Title: fmt.Sprintf("run %s again for %s?", item.Route, item.Intent), Body: body, Hash: item.Digest,
		Choices: []acl.Choice{acl.Approve, acl.Reject}, Created: now, Expires: now.Add(n.cfg.HoldFor),
	}, acl.Slot{}) // any number of such questions may wait
	item.Ask, item.Due = ask.ID, ask.Expires
	notice := n.notice("interrupted", item.Peer, item.PeerName, item.key(), now)
	notice.Ask = ask.ID
	return n.storeItem(ctx, item, append(changes, n.notices.Change(notice))...)
}

// runAgain starts the hook of an item again. The changes of the owner's decision, if any, are stored with the item.
// freePlace frees the place in the queue that the caller reserved.
func (n *Node) runAgain(ctx context.Context, item Item, route Route, freePlace func(), decision ...store.Change) error {
	payload, message, err := n.readItem(ctx, item)
	if err != nil {
		freePlace()
		return err
	}
	item.Note, item.Route, item.RetryAt = "", route.Name, time.Time{}
	claimed := n.claimRun(&item) // otherwise the item waits for another process
	if err := n.storeItem(ctx, item, decision...); err != nil || !claimed {
		freePlace()
		return err
	}
	n.start(&run{
		n: n, key: item.key(), itemID: item.ID, message: message, payload: payload, route: route, freePlace: freePlace,
		unattended: true, turn: item.turn(route),
	})
	return nil
}

// readItem returns the payload of an item, and the message from which the item was made, see originalMessage.
func (n *Node) readItem(ctx context.Context, item Item) (payload wire.Value, message wire.Message, err error) {
	if payload, err = wire.Parse(item.Payload); err != nil {
		return payload, message, fmt.Errorf("read stored payload: %w", err)
	}
	message, err = n.originalMessage(ctx, item)
	return payload, message, err
}

// resolve runs the hook again if the owner approves and a hook still handles the intent. Otherwise the message stays in
// the inbox for the owner to answer. An approval fails, and the question stays open, if the stored message differs from
// what the owner was shown.
func (q interruptedRun) resolve(ctx context.Context, n *Node, ask acl.Ask, d acl.Decision) error {
	item, err := n.Item(ctx, q.Item)
	if err != nil {
		return err
	}
	if item.State != owner.ItemInterrupted {
		return store.ErrConflict
	}
	if route := n.route(item.Intent); d.Choice == acl.Approve && route.Handler != nil {
		if standing, err := n.rules.Standing(ctx, ask.Subject, d.Now); err != nil {
			return err
		} else if standing == acl.Blocked { // blocked since the message was accepted (AM-25)
			return wire.ErrNotAllowed
		}
		payload, message, err := n.readItem(ctx, item)
		if err != nil {
			return err
		}
		if err := item.checkShown(payload, message, q.Payload, ask.Hash); err != nil {
			return n.refuseNotShown(ask, err)
		}
		freePlace, err := n.runs.Reserve(item.turn(route))
		if err != nil {
			return err
		}
		return n.runAgain(ctx, item, route, freePlace, d.Changes...)
	}
	item.State = owner.ItemNew
	return n.storeItem(ctx, item, d.Changes...)
}
