package node

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

var _ bridge.Receiver = (*Node)(nil)

// acceptance is one message on its way through lines 9 to 16 of the receive table in docs/protocol.md; "line 15" below
// means line 15 of that table. The caller sets n, in and key, and commit sets now, unit and route. Each line sets
// fields that later lines use.
type acceptance struct {
	n  *Node
	in bridge.Inbound

	now            time.Time
	key            store.ConvKey
	standing       acl.Standing
	stranger       bool       // the owner does not know the sender and did not write to the sender first
	charged        bool       // the limits are charged; a second attempt at the unit does not charge again
	drawn          acl.Charge // what was charged to the node's own limits
	unit           *conversations.Unit
	verdict        acl.Verdict
	actionKnown    bool   // the specification defines the action
	held           bool   // the message waits for the owner
	hook           *run   // the run that handles the message; nil if no hook of this process handles it
	confirmsAccept bool   // the message confirms our accept, which waited for the peer's answer
	cancelledUID   string // UID of the agreed event that the message cancels, or ""
	seal           seal
	route          Route
}

// Accept takes a message from an authenticated sender through lines 9 to 16: clock and replay, access, limits,
// conversation, intent, approval, handler. A foreign message has no signature and no time that the node could check;
// the bridge that received the message vouches for it. Every error is a *[wire.Error]. After wire.ErrUnavailable the
// message may have been accepted nevertheless. After any other error, nothing has changed except the limits, the logs,
// and the notice about a sealed message that could not be opened.
func (n *Node) Accept(ctx context.Context, in bridge.Inbound) (bridge.Outcome, error) {
	out, err := n.accept(ctx, in)
	n.logMessage(ctx, in, out, err)
	return out, err
}

// accept is [Node.Accept] without the log line.
func (n *Node) accept(ctx context.Context, in bridge.Inbound) (bridge.Outcome, error) {
	a := &acceptance{
		n: n, in: in,
		key: store.ConvKey{Peer: string(in.Peer), ID: string(in.ConvID)},
	}
	unlock, err := n.acceptLock.Lock(ctx, string(in.Peer)+" "+string(in.MessageID), n.cfg.SyncDeadline)
	if err != nil {
		return n.answerWithoutTurn(ctx, in, err)
	}
	defer unlock()
	out, err := a.commit(ctx)
	// If another message took the last slot, a new attempt may displace another question.
	if a.isHoldQuota(err) && a.verdict == acl.HoldSender {
		out, err = a.commit(ctx)
	}
	if a.isHoldQuota(err) {
		err = wire.ErrHoldsFull.Because(err)
	}
	switch {
	case isConflict(err):
		return bridge.Outcome{}, wire.ErrUnavailable
	case err != nil:
		if errors.Is(err, wire.ErrHoldsFull) {
			a.refundCharge()
		}
		n.countRefusal(in.Principal, a.refusedBy(err), err)
		return bridge.Outcome{}, toWireError(err)
	}
	if a.hook != nil && !a.hook.unattended {
		out = a.hook.await(ctx, out)
	}
	a.countAdmission(out)
	return out, nil
}

// commit stores the accepted message in one [conversations.Unit] (AM-26). If another process accepted a copy meanwhile,
// a new attempt finds the message as a repeat.
func (a *acceptance) commit(ctx context.Context) (out bridge.Outcome, err error) {
	err = a.n.book.Do(ctx, a.key, func(u *conversations.Unit) (err error) {
		a.unit, a.now, a.held, a.hook, a.route = u, u.Now, false, nil, a.n.route(a.in.Intent)
		out, err = a.decide(ctx)
		return err
	})
	return out, err
}

// isHoldQuota reports whether the store refused the unit because too many messages wait for the owner.
func (a *acceptance) isHoldQuota(err error) bool {
	return a.held && !isRefusal(err) && errors.Is(err, store.ErrQuota)
}

// answerWithoutTurn answers a message that did not get its turn before the sync deadline: another copy of it was still
// being accepted, or too many other messages were. If the copy is stored by now, the message gets the same answer
// (AM-21). Otherwise the error is wire.ErrUnavailable, or wire.ErrIDReused if a different message has the same id.
// cause is why the wait ended.
func (n *Node) answerWithoutTurn(ctx context.Context, in bridge.Inbound, cause error) (bridge.Outcome, error) {
	rec, err := n.store.Steps().FindReplay(ctx, string(in.Peer), string(in.MessageID), time.Now())
	switch {
	case err == nil && rec.Digest == in.Digest:
		return storedAnswer(rec)
	case err == nil:
		return bridge.Outcome{}, wire.ErrIDReused
	}
	return bridge.Outcome{}, wire.ErrUnavailable.Because(cause)
}

// storedAnswer returns the stored answer to a repeat. If the owner deleted the conversation, the error is
// wire.ErrConversationClosed.
func storedAnswer(rec store.Replay) (bridge.Outcome, error) {
	if rec.Status == 0 {
		return bridge.Outcome{}, wire.ErrConversationClosed
	}
	return bridge.Outcome{Status: rec.Status, Raw: rec.Answer, Duplicate: true}, nil
}

// decide takes the message through lines 9 to 16. The changes go into a.unit.
func (a *acceptance) decide(ctx context.Context) (out bridge.Outcome, err error) {
	if out, done, err := a.checkReplay(ctx); done || err != nil { // lines 9, 10
		return out, err
	}
	if err := a.checkSender(ctx); err != nil { // lines 11, 12
		return bridge.Outcome{}, err
	}
	if err := a.unseal(ctx); err != nil {
		return bridge.Outcome{}, err
	}
	if a.in.Payload.GetStr("action") == wire.ActionClose { // line 13
		return a.acceptClose(ctx)
	}
	if err := a.unit.CheckOpen(a.arrivedAt()); err != nil {
		return bridge.Outcome{}, err
	}
	if err := a.checkIntent(); err != nil { // line 14
		return bridge.Outcome{}, err
	}
	if out, done, err := a.cancelHeld(ctx); done || err != nil {
		return out, err
	}
	a.cancelledUID = cancelledEventUID(a.in.Intent, a.in.Payload, a.unit.Conversation())
	if a.mustHold() { // line 15
		return a.hold(ctx)
	}
	if err := a.recordMessage(ctx, conversations.Received); err != nil {
		return bridge.Outcome{}, err
	}
	if conv := a.unit.Conversation(); conv.Unclear == a.in.MessageID && a.in.MessageID != "" { // an ambiguous accept (AM-88)
		a.confirmsAccept = false
		if _, ok := conv.Clarification(a.in.MessageID); !ok {
			return a.toOwner(ctx)
		}
		a.route = clarifyRoute
	}
	if a.newItem(ItemNew).isReceipt(a.unit.Conversation(), a.in.Payload) {
		return a.toInbox(ctx, ItemRead)
	}
	if a.route.handles(a.in.Reply) { // line 16
		return a.run(ctx)
	}
	return a.toInbox(ctx, ItemNew)
}

// checkReplay implements lines 9 and 10. An exact repeat gets its stored answer, whatever its age. Next comes the
// clock, so that an old message with a reused id is refused for its age (AM-24). A message that repeats an earlier one
// with a new signature gets the stored answer to the earlier one (AM-48). done reports whether out is the final answer.
func (a *acceptance) checkReplay(ctx context.Context) (out bridge.Outcome, done bool, err error) {
	steps := a.n.store.Steps()
	rec, err := steps.FindReplay(ctx, string(a.in.Peer), string(a.in.MessageID), a.now)
	found := err == nil
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return bridge.Outcome{}, false, err
	}
	if found && rec.Digest == a.in.Digest {
		out, err := storedAnswer(rec)
		return out, true, err
	}
	if a.in.Native != nil {
		if err := a.n.verifier.CheckTime(*a.in.Native, a.arrivedAt()); err != nil {
			return bridge.Outcome{}, false, err
		}
	}
	if found {
		return bridge.Outcome{}, false, wire.ErrIDReused
	}
	if first := resendOf(a.in.Payload); first != "" {
		rec, err = steps.FindReplay(ctx, string(a.in.Peer), first, a.now)
		if err == nil && rec.Conv == a.key { // AM-48
			out, err := storedAnswer(rec)
			return out, true, err
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return bridge.Outcome{}, false, err
		}
	}
	return bridge.Outcome{}, false, nil
}

// arrivedAt returns the time of arrival, by which lines 9 and 13 judge the message. A message that waited in a
// mailbox arrived when the mailbox received it (AM-20).
func (a *acceptance) arrivedAt() time.Time {
	if a.in.Unattended && a.in.Native != nil {
		return a.in.Received
	}
	return a.now
}

// resendOf returns the id of the earlier message that this one repeats with a new signature, or "".
func resendOf(payload wire.Value) string {
	meta, _ := payload.Get("metadata")
	return meta.GetStr("resend_of")
}

// checkSender implements lines 11 and 12: access and limits.
func (a *acceptance) checkSender(ctx context.Context) (err error) {
	if a.standing, err = a.n.rules.Standing(ctx, a.in.Principal, a.now, a.in.Address); err != nil {
		return err
	}
	conv := a.unit.Conversation()
	if !a.unit.IsNew() && conv.Address != a.in.Address {
		// The peer's pseudonym is an ordinary agent id. Another agent could register it, but must not get into
		// these conversations.
		return wire.ErrNotAllowed
	}
	if err := a.checkAccess(ctx); err != nil {
		return err
	}
	if err := a.charge(); err != nil {
		return err
	}
	if err := a.checkOpenLimit(ctx); err != nil {
		return err
	}
	return a.checkSize()
}

// checkAccess applies the access rule of line 11. A seal hides whether the message cancels an agreed event, so unseal
// calls checkAccess again with the opened payload.
func (a *acceptance) checkAccess(ctx context.Context) (err error) {
	conv := a.unit.Conversation()
	expected := conv.WroteFirst || a.isCancellation(ctx, conv)
	a.verdict, err = a.n.policyFor(a.in.Address).Admit(a.standing, expected)
	if a.verdict == acl.HoldSender && len(conv.Admitted) > 0 { // the owner admitted the sender to this conversation (AM-34)
		a.verdict, expected = acl.Admitted, true
	}
	a.stranger = !a.standing.Known() && !expected
	if a.in.Unproven != nil && err == nil { // nothing proves that the key belongs to the id (AM-2)
		a.verdict, a.stranger = acl.HoldSender, true
	}
	return err
}

var (
	errConversationFull = errors.New("the conversation is full")
	errKeptFull         = errors.New("open conversations already take all the space for messages")
)

// checkSize implements the part of line 12 that counts bytes. It never refuses a close, which frees space. If the
// conversation is full, the sender may retry once the conversation has expired. If open conversations take all the
// space, a stranger may retry after the next sweep.
func (a *acceptance) checkSize() error {
	switch {
	case a.in.Payload.GetStr("action") == wire.ActionClose:
		return nil
	case a.unit.IsFull():
		return wire.ErrRateLimited.After(a.n.book.IdleFor()).Because(errConversationFull)
	case a.stranger && a.n.overfull.Load():
		return wire.ErrRateLimited.After(sweepEvery).Because(errKeptFull)
	}
	return nil
}

// checkIntent implements line 14: the node accepts the intent, and the payload has the shape that the intent requires.
func (a *acceptance) checkIntent() (err error) {
	conv := a.unit.Conversation()
	isSupported := a.n.Card().Supports(a.in.Intent) || a.route.Handler != nil ||
		a.in.Address != "" || conv.WroteFirst && conv.Intent == a.in.Intent // what our owner began: AM-30, AM-70
	if !isSupported || !a.in.Intent.IsStandard() && !a.in.Intent.IsCustom() {
		return wire.ErrIntent
	}
	a.actionKnown, err = wire.CheckPayload(a.in.Intent, a.in.Payload)
	if field, ok := errors.AsType[*wire.FieldError](err); ok {
		return wire.ErrPayload.WithField(field)
	}
	if schemas := a.n.cfg.Schemas; err == nil && schemas != nil && !a.in.Intent.IsStandard() {
		if err := schemas.Check(a.in.Intent, a.in.Payload); err != nil {
			return wire.ErrPayload.Because(err)
		}
	}
	return err
}

// acceptClose ends the conversation, withdraws its questions to the owner, and answers with a close of the same status.
// The status "completed" needs this echo as our consent (AM-39).
func (a *acceptance) acceptClose(ctx context.Context) (bridge.Outcome, error) {
	if a.unit.IsNew() {
		return bridge.Outcome{}, wire.ErrConversationClosed
	}
	if err := a.recordMessage(ctx, conversations.ClosedByPeer); err != nil {
		return bridge.Outcome{}, err
	}
	if _, err := a.n.withdrawAsks(ctx, a.unit, nil); err != nil {
		return bridge.Outcome{}, err
	}
	if err := countAccept(ctx, a.unit, a.newItem(ItemNew), ""); err != nil {
		return bridge.Outcome{}, err
	}
	a.unit.Add(a.n.notices.Change(a.n.notice("closed", a.in.Peer, a.in.Name, a.key, a.now)))
	a.unit.Add(a.n.bridges.observe(a.in)...)
	return a.answer(ctx, http.StatusOK, closePayload(a.in.Payload.GetStr("status")))
}

// toInbox implements line 16 for a message that no hook handles (AM-71, AM-74, AM-91).
func (a *acceptance) toInbox(ctx context.Context, state ItemState) (bridge.Outcome, error) {
	item := a.newItem(state)
	a.unit.Add(item.change())
	if err := countAccept(ctx, a.unit, item, ""); err != nil {
		return bridge.Outcome{}, err
	}
	return a.answer(ctx, http.StatusOK, receiptPayload())
}

// toOwner puts an accept that does not say what it accepts into the owner's inbox. The answer tells the sender to wait,
// so that it does not take the event for agreed (AM-88).
func (a *acceptance) toOwner(ctx context.Context) (bridge.Outcome, error) {
	item := a.newItem(ItemNew)
	item.Pending, item.Note = true, noteUnclear
	a.unit.Add(item.change(), a.n.notices.Change(a.n.notice("message", a.in.Peer, a.in.Name, a.key, a.now)))
	return a.answer(ctx, http.StatusAccepted, pendingPayload(a.now, reasonIntent))
}

func receiptPayload() wire.Value { return actionOf(wire.ActionReceived) }

func closePayload(status string) wire.Value {
	return actionOf(wire.ActionClose).With("status", wire.Text(status))
}

func actionOf(action string) wire.Value { return wire.Obj(wire.TextField("action", action)) }

// recordMessage adds the message to its conversation and to the transcript. A message that closes the conversation or
// withdraws a held message never waits for the owner. If it would have to wait otherwise, the owner's agent does not see
// it.
func (a *acceptance) recordMessage(ctx context.Context, kind conversations.Kind) error {
	err := a.unit.Record(ctx, conversations.Event{
		Kind: kind, At: a.now, Intent: a.in.Intent, Payload: a.in.Payload, Principal: a.in.Principal, Address: a.in.Address,
		Idle: a.n.bridges.silence(a.in.Intent), Sealed: a.seal.sealed, Recipient: a.seal.answerTo, Deadline: a.in.Deadline, Purge: a.in.Purge,
		ID: a.in.MessageID, Answers: conversations.AnswersIn(a.in.Payload), Written: a.writtenAt(),
		Name: a.in.Name, Waits: a.held, Withheld: !a.held && a.mustHold(),
	})
	if err != nil {
		return err
	}
	a.unit.Append(store.Entry{MessageID: string(a.in.MessageID), At: a.now, Raw: a.in.Raw, Digest: a.in.Digest, Key: a.seal.key})
	return nil
}

// writtenAt returns the time at which the sender claims to have written the message, or the time of arrival.
func (a *acceptance) writtenAt() time.Time {
	if a.in.Time.IsZero() {
		return a.now
	}
	return a.in.Time
}

// answer signs a reply, adds it to the conversation and the transcript, and completes the unit.
func (a *acceptance) answer(ctx context.Context, status int, payload wire.Value) (bridge.Outcome, error) {
	reply, err := a.n.sign(a.draft(payload))
	if err != nil {
		return bridge.Outcome{}, err
	}
	if a.unit.Conversation().State == conversations.Open { // the echo of a close is not an event
		err := a.unit.Record(ctx, conversations.Event{
			Kind: conversations.Replied, At: a.now, Intent: a.in.Intent, Payload: payload,
			ID: reply.Message.ID, Answers: a.in.MessageID, Direct: true,
		})
		if err != nil {
			return bridge.Outcome{}, err
		}
	}
	a.unit.Append(reply.transcriptEntry())
	return a.complete(status, reply), nil
}

// draft returns our reply to the message, which is not signed yet.
func (a *acceptance) draft(payload wire.Value) wire.Draft {
	return wire.Draft{Conversation: a.in.ConvID, To: a.in.Peer, Time: a.now, Intent: a.in.Intent, Payload: payload}
}

// complete adds to the unit the changes that the bridge made for the message, and the replay record by which a repeat
// gets the same reply.
func (a *acceptance) complete(status int, reply signedMessage) bridge.Outcome {
	a.unit.Add(a.openedRecord()...)
	a.unit.Add(a.in.Records...)
	a.unit.Replay = &store.Replay{
		Sender: string(a.in.Peer), MessageID: string(a.in.MessageID), Digest: a.in.Digest,
		Conv: a.key, Status: status, Answer: reply.Raw,
		Expires: conversations.Sooner(a.now.Add(a.n.replayFor()), a.in.Purge),
	}
	return bridge.Outcome{Status: status, Reply: &reply.Message, Raw: reply.Raw}
}

// replayFor returns how long a replay record is kept (AM-23): longer than the time window, and longer than a mailbox
// keeps a message.
func (n *Node) replayFor() time.Duration {
	const relayTTL = 7 * 24 * time.Hour
	w := n.cfg.Window
	return 24*time.Hour + max(w.Past+w.Future, relayTTL)
}

func isConflict(err error) bool { return conversations.IsConflict(err) }

// isRefusal reports whether err refuses a message. Otherwise, err is an error of the store.
func isRefusal(err error) bool {
	_, refused := errors.AsType[*wire.Error](err)
	return refused
}
