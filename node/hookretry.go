package node

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
)

// hookRetries runs the hooks of waiting items: those whose hook could not be reached, and those that another process
// left to this one. The items are in the store, so retries survive a restart.
type hookRetries struct{ n *Node }

// try starts the hooks of all due items, and returns when the next item is due.
func (h hookRetries) try(ctx context.Context, now time.Time) (next time.Time) {
	for item, err := range h.n.allItems(ctx, stateTerm(ItemWaiting)) {
		if err != nil {
			h.n.log.Warn("read the messages that wait for a hook", "err", err)
			return now.Add(time.Minute)
		}
		due := item.RetryAt
		if !due.After(now) {
			switch err := h.start(ctx, item, now); {
			case errors.Is(err, wire.ErrUnavailable): // too many hooks run or wait: the next call tries again
				due = now.Add(time.Second)
			case err != nil && !isConflict(err):
				h.n.log.Warn("try a hook again", "item", item.ID, "err", err)
				due = now.Add(time.Minute)
			default:
				continue
			}
		}
		if next.IsZero() || due.Before(next) {
			next = due
		}
	}
	return next
}

// start runs the hook of an item again, or ends the wait if the hook must not run any more.
func (h hookRetries) start(ctx context.Context, item Item, now time.Time) error {
	n := h.n
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
		item.State, item.Note = ItemFailed, noteEnded
	case standing == acl.Blocked: // blocked since the message was accepted (AM-25)
		item.State, item.Note = ItemFailed, "the sender is blocked"
	case !route.ruled().Takes(item.Kind == kindReply): // the configuration was changed
		item.State = ItemNew
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
	case item.State != ItemWaiting && item.State != ItemFailed:
		return refuse("only the hook of a waiting or failed message can run again; this one is " + string(item.State))
	case o.n.routeOf(conversations.Conversation{}, item).Handler == nil:
		return refuse("no hook handles " + string(item.Intent))
	}
	item.Failure = nil // a new series of failures
	if err := hookRetries(o).start(ctx, item, time.Now()); err != nil {
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
	s.item.State, s.item.Note = ItemFailed, hookFailureNote(s.err)
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
	if s.viaOutbox {
		s.item.Pending = s.item.Pending || s.run.unattended // for a sender that waited, recordPending sets it
		return bridge.Outcome{}, nil
	}
	s.unit.Append(answer.transcriptEntry("node"))
	s.item.Pending = true
	return bridge.Outcome{Status: http.StatusAccepted, Reply: &answer.Message, Raw: answer.Raw}, nil
}

// noteUnanswered is the note on an item whose agent ignored a reminder.
const noteUnanswered = "your agent was woken twice and did not answer"

// remind wakes each agent that has not sent a promised answer within RemindAfter. If the agent ignored an earlier
// reminder, remind notifies the owner instead (AM-73).
func (n *Node) remind(ctx context.Context, now time.Time) error {
	if n.cfg.RemindAfter < 0 {
		return nil
	}
	for item, err := range n.allItems(ctx, termWoken) {
		if err != nil {
			return err
		}
		if now.Sub(item.Woken) < n.cfg.RemindAfter {
			continue
		}
		switch err := n.remindItem(ctx, item, now); {
		case errors.Is(err, wire.ErrUnavailable): // too many hooks are running: the next call tries again
			return nil
		case err != nil && !isConflict(err):
			return err
		}
	}
	return nil
}

// remindItem wakes the agent of one item again, or notifies the owner if the agent was reminded before.
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
