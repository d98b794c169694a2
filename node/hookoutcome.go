package node

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/guard"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// hookOutcome builds the [conversations.Unit] that stores the outcome of a hook. An earlier unit accepted the message.
type hookOutcome struct {
	run       *run
	viaOutbox bool // nobody waits on the connection, so the reply leaves through the outbox
	answer    hook.Answer
	err       error // why the hook failed; nil if it answered

	item Item
	unit *conversations.Unit
}

// commit stores the outcome of the hook and returns the answer to a sender that waits on the connection. It changes
// nothing if the item was answered or deleted meanwhile.
func (s *hookOutcome) commit(ctx context.Context) (out bridge.Outcome, err error) {
	for range 2 {
		err = s.run.n.book.Insist(ctx, s.run.key, func(u *conversations.Unit) (err error) {
			s.unit = u
			out, err = s.fill(ctx)
			return err
		})
		if s.run.mandate == nil || !errors.Is(err, store.ErrQuota) {
			break // otherwise another conversation took the last place of the mandate
		}
	}
	return out, err
}

// fill adds the outcome to the unit, unless the item no longer waits for it.
func (s *hookOutcome) fill(ctx context.Context) (out bridge.Outcome, err error) {
	s.item, err = s.run.n.Item(ctx, s.run.itemID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return out, err
	}
	if err != nil || s.item.State != owner.ItemRunning {
		return s.provisional(ctx), nil // deleted, or answered by the owner, meanwhile
	}
	if out, err = s.decide(ctx); err == nil {
		s.unit.Add(s.item.change())
	}
	return out, err
}

// decide sets the new state of the item and returns the answer to the sender.
func (s *hookOutcome) decide(ctx context.Context) (bridge.Outcome, error) {
	s.item.Failure = s.failure()
	again, err := s.isAgain(ctx)
	if err != nil {
		return bridge.Outcome{}, err
	}
	if again {
		s.answer.Payload = nil
	}
	do, counts := rules.Settle(s.outcome())
	if counts {
		if err := s.run.n.countAccept(ctx, s.unit, s.item, ""); err != nil {
			return bridge.Outcome{}, err
		}
	}
	switch do {
	case rules.Deleted:
		s.item.State, s.item.Note = owner.ItemFailed, noteDeleted
		return s.provisional(ctx), nil
	case rules.Inbox:
		s.leaveToOwner()
		return s.provisional(ctx), nil
	case rules.Late:
		s.item.State, s.item.Note = owner.ItemFailed, noteEnded
		return s.answerPending(ctx)
	case rules.Retry:
		s.item.State, s.item.Note = owner.ItemWaiting, noteWaiting
		s.item.RetryAt = s.unit.Now.Add(hook.RetryPause(s.item.Failure.Times))
		return s.answerPending(ctx)
	case rules.Fail:
		return s.fail(ctx)
	case rules.Await:
		s.item.State, s.item.Woken = owner.ItemNew, s.unit.Now
		if s.run.n.cfg.RemindAfter > 0 {
			s.item.Due = s.unit.Now.Add(s.run.n.cfg.RemindAfter)
		}
		return s.answerPending(ctx)
	case rules.Hold:
		return s.hold(ctx)
	case rules.Refuse:
		s.item.State = owner.ItemRejected
		return s.refuse(ctx)
	}
	payload := receiptPayload()
	if s.answer.Payload != nil {
		payload = *s.answer.Payload
		if held, err := s.checkOutgoing(ctx, payload); held || err != nil {
			return s.provisional(ctx), err
		}
	}
	s.item.State = owner.ItemAnswered
	if s.run.route.Name == judgeRoute.Name {
		s.item.State = owner.ItemNew // for the owner and the owner's agent
	}
	out, err := s.reply(ctx, payload)
	if err != nil {
		return out, err
	}
	// countAccept follows the reply, because an accept that counts may close the conversation. An accept of ours that
	// leaves through the outbox counts only when the peer has answered it.
	var replyID wire.MessageID
	if out.Reply != nil {
		replyID = out.Reply.ID
	}
	return out, s.run.n.countAccept(ctx, s.unit, s.item, replyID)
}

// maxCompared is the number of messages with which a hook's answer is compared.
const maxCompared = 60

// isAgain reports whether the hook answers a message that the peer has sent before with one that we have sent before
// (AM-94). A foreign network needs its answer, such as the end of a task.
func (s *hookOutcome) isAgain(ctx context.Context) (bool, error) {
	conv := s.unit.Conversation()
	if s.answer.Payload == nil || s.item.Address != "" || conv.Entries < 3 {
		return false, nil
	}
	heard, err := wire.Parse(s.item.Payload)
	if err != nil || !rules.MayLeaveOut(s.answer.Payload.GetStr("action"), heard.GetStr("action")) {
		return false, err
	}
	entries, err := s.run.n.book.Transcript(ctx, s.run.key, conv.Entries-min(conv.Entries, maxCompared), maxCompared)
	if err != nil {
		return false, err
	}
	digest := func(payload wire.Value) [32]byte { return signing.Digest(payload.Without("metadata")) }
	ours, theirs := digest(*s.answer.Payload), digest(heard)
	sent, times := false, 0
	for _, e := range entries {
		content, ok := conversations.ReadContent(e)
		switch {
		case !ok || content.Intent != s.item.Intent:
		case e.Out:
			sent = sent || digest(content.Payload) == ours
		case digest(content.Payload) == theirs:
			times++
		}
	}
	return sent && times > 1, nil
}

// outcome returns what the rules need to know of the outcome.
func (s *hookOutcome) outcome() rules.Outcome {
	payload, _ := wire.Parse(s.item.Payload)
	settled := s.item.Agrees && payload.GetStr("action") == "accept" &&
		(s.item.ConfirmsAccept || s.unit.Conversation().Deal(s.item.Intent).Agreement != nil)
	isReply, says := s.item.Kind == kindReply, s.answer.Payload
	if isReply && settled && says != nil && says.GetStr("action") == "accept" && says.Without("action", "metadata").Len() == 0 {
		says = nil // it would only confirm what is agreed, and meet the peer's close
	}
	return rules.Outcome{
		Deleted: s.unit.IsNew(), Ended: !s.unit.IsOpen(), Reply: isReply, Settled: settled, Confirms: s.item.ConfirmsAccept,
		Failed: s.err != nil,
		Retry:  hook.FaultOf(s.err) == hook.Unreachable && s.unit.Now.Sub(s.item.Failure.Since) < hook.RetryFor,
		Later:  s.answer.Async, Asks: s.answer.Hold != "", Refuses: s.answer.Err != nil, Silent: says == nil,
	}
}

// checkOutgoing applies the owner's rules to the hook's answer (AM-50). If held is true, the answer waits for the
// owner, and the sender gets the provisional answer.
func (s *hookOutcome) checkOutgoing(ctx context.Context, payload wire.Value) (held bool, err error) {
	n := s.run.n
	out := s.item.newReply(payload)
	out.Via, out.Answers = "hook", s.item.ID
	about, _ := s.unit.Conversation().Matter(payload.GetStr("action"), s.item.Intent, "")
	out.answered = about.Intent
	if !s.run.sealChosen { // once for all attempts at the unit, because it may ask a directory
		recipient, err := n.sealRecipient(ctx, out, s.unit.Conversation())
		if err == nil && recipient != "" {
			err = checkSealable(payload)
		}
		if err != nil {
			return false, err
		}
		s.run.sealTo, s.run.sealChosen = recipient, true
	}
	out.sealTo = s.run.sealTo
	p, err := n.permit(ctx, out, s.unit.Now)
	if err != nil {
		return false, err
	}
	if !p.NeedsOwner && s.run.doubt != "" {
		p = rules.Permission{NeedsOwner: true, Rule: ruleGuard, Reason: s.run.doubt}
	}
	if !p.NeedsOwner {
		if s.run.mandate = p.Mandate; p.Mandate != nil {
			n.useMandate(s.unit, out, p.Mandate)
		}
		s.unit.Then(func() { n.countSent(out, p) })
		return false, nil
	}
	if s.run.to == nil {
		s.run.to = new(n.lookUpRecipient(ctx, out))
	}
	ask, changes, err := n.newOutgoingAsk(out, *s.run.to, p, s.unit.Now)
	if err != nil {
		return false, err
	}
	s.item.hold(ask)
	if err := s.unit.Record(conversations.Event{Kind: conversations.HoldOpened, At: s.unit.Now, Until: ask.Expires}); err != nil {
		return false, err
	}
	s.unit.Add(changes...)
	_, err = s.answerPending(ctx)
	return true, err
}

// reply adds the reply to the unit. The reply leaves through the outbox, or on the connection of the sender.
func (s *hookOutcome) reply(ctx context.Context, payload wire.Value) (bridge.Outcome, error) {
	n := s.run.n
	if s.viaOutbox {
		answer := s.item.newReply(payload)
		answer.sealTo, answer.Via, answer.mandate = s.run.sealTo, "hook", s.run.mandate
		queued, err := n.enqueue(ctx, s.unit, answer)
		s.unit.Answer = s.item.newReplay(http.StatusOK, queued.Raw)
		return bridge.Outcome{}, err
	}
	if s.run.screen != nil && s.answer.Payload != nil {
		changes, refusal := s.run.screen(ctx, payload) // the bridge may refuse to let the answer leave
		if refusal != nil {
			s.answer = hook.Answer{Err: refusal}
			return bridge.Outcome{}, refusal
		}
		s.unit.Add(changes...)
	}
	reply, err := n.signFor(wire.Draft{
		Conversation: s.item.Conversation, To: s.item.Peer, Time: s.unit.Now, Intent: s.item.Intent, Payload: payload,
	}, s.run.sealTo)
	if err != nil {
		return bridge.Outcome{}, err
	}
	event := conversations.Event{
		Kind: conversations.Replied, At: s.unit.Now, Intent: s.item.Intent, Payload: payload, Sealed: s.run.sealTo != "",
		ID: reply.Message.ID, Answers: s.item.MessageID, Direct: true, Decision: Outgoing{Via: "hook", mandate: s.run.mandate}.decision(),
	}
	if payload.GetStr("action") == wire.ActionClose {
		event.Kind = conversations.ClosedByUs
	}
	if err := n.record(ctx, s.unit, event); err != nil {
		return bridge.Outcome{}, err
	}
	s.unit.Append(reply.transcriptEntry("hook"))
	s.unit.Answer = s.item.newReplay(http.StatusOK, reply.Raw)
	return bridge.Outcome{Status: http.StatusOK, Reply: &reply.Message, Raw: reply.Raw}, nil
}

// hold asks the owner about the message, as the hook requested.
func (s *hookOutcome) hold(ctx context.Context) (bridge.Outcome, error) {
	a := acceptance{n: s.run.n, key: s.item.key(), now: s.unit.Now}
	ask := a.newAsk(s.item, rules.Words{Hold: "intent", Owner: s.answer.Hold})
	ask, changes := s.run.n.asks.Open(ask, acl.ConversationSlot(a.key, ask.ID))
	s.item.hold(ask)
	if err := s.unit.Record(conversations.Event{Kind: conversations.HoldOpened, At: s.unit.Now, Until: ask.Expires, ID: s.item.MessageID}); err != nil {
		return bridge.Outcome{}, err
	}
	s.unit.Add(append(changes, a.n.notices.Change(a.n.notice("approval", s.item.Peer, s.item.PeerName, a.key, a.now)))...)
	return s.answerPending(ctx)
}

// refuse passes the refusal of the hook or of the bridge to the sender: as an error on the connection, or else as a
// close with the status "failed".
func (s *hookOutcome) refuse(ctx context.Context) (bridge.Outcome, error) {
	if s.viaOutbox {
		return s.reply(ctx, rejectionPayload(s.answer.Err.Code))
	}
	raw := s.answer.Err.AppendJSON(nil)
	s.unit.Answer = s.item.newReplay(s.answer.Err.Status, raw)
	return bridge.Outcome{Status: s.answer.Err.Status, Raw: raw}, nil
}

// answerPending gives the provisional answer to a sender that waits or repeats the message, and adds it to the
// transcript once.
func (s *hookOutcome) answerPending(ctx context.Context) (bridge.Outcome, error) {
	if s.viaOutbox && (s.item.Pending || s.item.Kind == kindReply) { // nobody waits for an answer to an answer
		return bridge.Outcome{}, nil
	}
	out := s.provisional(ctx)
	switch unknown := out.Raw == nil || out.Status == http.StatusServiceUnavailable; {
	case unknown && s.viaOutbox: // the answer is too old for a repeat to get it
		return bridge.Outcome{}, nil
	case unknown:
		return out, wire.ErrUnavailable
	}
	reply := store.Entry{Out: true, At: s.unit.Now, Raw: out.Raw}
	if m, digest, err := parseOwn(out.Raw); err == nil {
		reply.MessageID, reply.At, reply.Digest = string(m.ID), m.Time, digest
		out.Reply = &m
	}
	s.unit.Append(reply)
	s.item.Pending = true
	return out, nil
}

// provisional returns the stored answer to the message, or an answer with status 503 if none can be read. The stored
// answer is the provisional one from the acceptance of the message, unless a later answer has replaced it.
func (s *hookOutcome) provisional(ctx context.Context) bridge.Outcome {
	rec, err := s.run.n.store.Steps().FindReplay(ctx, string(s.item.Peer), string(s.item.MessageID), time.Now())
	if err != nil {
		return bridge.Outcome{Status: http.StatusServiceUnavailable, Raw: wire.ErrUnavailable.AppendJSON(nil)}
	}
	return bridge.Outcome{Status: rec.Status, Raw: rec.Answer}
}

// leaveToOwner puts a reply that the hook did not answer back into the inbox. If the hook gave a reason, the owner gets
// a notice.
func (s *hookOutcome) leaveToOwner() {
	s.item.State = owner.ItemNew
	if n := s.run.n; s.answer.Hold != "" {
		s.item.Note = s.answer.Hold
		s.unit.Add(n.notices.Change(n.notice("message", s.item.Peer, s.item.PeerName, s.item.key(), s.unit.Now)))
	}
}

// hookFailureNote returns the note for the owner. The hook's own output stays in the log.
func hookFailureNote(err error) string {
	switch {
	case errors.Is(err, guard.ErrNoVerdict):
		return noteNoVerdict
	case errors.Is(err, context.DeadlineExceeded):
		return hook.Timeout.Note()
	case errors.Is(err, rules.ErrOutbound), errors.Is(err, rules.ErrBlocked):
		return "your rules do not let your agent write to this peer"
	case errors.Is(err, ErrCannotSeal):
		return wire.OneLine("the answer must be sealed: "+err.Error(), 300)
	}
	if refusal, ok := errors.AsType[*wire.Error](err); ok && refusal.Status == http.StatusConflict {
		return wire.OneLine("the answer cannot be sent: "+refusal.Message, 300)
	}
	return hook.FaultOf(err).Note()
}
