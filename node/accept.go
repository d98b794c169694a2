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

// acceptance is one message on its way through lines 9 to 16 of the receive table. The fields below in are what
// the lines learn, each for the ones after it.
type acceptance struct {
	n  *Node
	in bridge.Inbound

	now      time.Time
	key      store.ConvKey
	standing acl.Standing
	stranger bool       // the owner does not know the sender, and did not write first
	charged  bool       // limits are charged once, however often the step is decided again
	drawn    acl.Charge // what was charged to the node's own limits
	unit     *conversations.Unit
	verdict  acl.Verdict
	known    bool   // the action is one of the specification
	held     bool   // it waits for the owner
	hook     *run   // has the message; nil if none has
	takes    bool   // with it the peer takes our accept, which waited for its answer
	event    string // UID of the agreed event that it takes back
	seal     seal
	route    Route
}

// Accept takes a message whose sender is established through lines 9 to 16: clock and replay, access, limits,
// conversation, intent, approval, handler. A foreign message has no clock and no signature of its own; its bridge
// vouches for it. The error is a *[wire.Error], and then nothing was changed but the limits.
func (n *Node) Accept(ctx context.Context, in bridge.Inbound) (bridge.Outcome, error) {
	out, err := n.accept(ctx, in)
	n.decided(ctx, in, out, err)
	return out, err
}

func (n *Node) accept(ctx context.Context, in bridge.Inbound) (bridge.Outcome, error) {
	a := &acceptance{
		n: n, in: in,
		key:   store.ConvKey{Peer: string(in.Peer), ID: string(in.ConvID)},
		route: n.route(in.Intent),
	}
	waiting, cancel := context.WithTimeout(ctx, n.cfg.SyncDeadline)
	leave, err := n.flights.enter(waiting, string(in.Peer)+" "+string(in.MessageID))
	cancel()
	if err != nil {
		return n.stillRunning(ctx, in, err)
	}
	defer leave()
	out, err := a.commit(ctx)
	if a.foundNoPlace(err) && a.verdict == acl.HoldSender { // another message had the last place first: find out whose place this one may take
		out, err = a.commit(ctx)
	}
	if a.foundNoPlace(err) {
		err = wire.ErrHoldsFull.Because(err)
	}
	switch {
	case isConflict(err):
		return bridge.Outcome{}, wire.ErrUnavailable
	case err != nil:
		if errors.Is(err, wire.ErrHoldsFull) {
			a.giveBack()
		}
		n.countRefused(in.Principal, a.refusedBy(err), err)
		return bridge.Outcome{}, unavailable(err)
	}
	if a.hook != nil && !a.hook.late {
		out = a.hook.await(ctx, out)
	}
	a.countAdmitted(out)
	return out, nil
}

// commit takes the message in, in one unit (AM-26). A copy that another process accepted meanwhile is found as a repeat
// when the unit is decided again.
func (a *acceptance) commit(ctx context.Context) (out bridge.Outcome, err error) {
	err = a.n.book.Do(ctx, a.key, func(u *conversations.Unit) (err error) {
		a.unit, a.now, a.held, a.hook = u, u.Now, false, nil
		out, err = a.decide(ctx)
		return err
	})
	return out, err
}

// foundNoPlace reports whether the store refused the unit because all places for messages that wait are taken.
func (a *acceptance) foundNoPlace(err error) bool {
	return a.held && !isRefusal(err) && errors.Is(err, store.ErrQuota)
}

// stillRunning answers a repeat that waited for its twin as long as a sender is made to wait: with the answer
// that is stored so far (AM-21).
func (n *Node) stillRunning(ctx context.Context, in bridge.Inbound, cause error) (bridge.Outcome, error) {
	rec, err := n.store.Steps().FindReplay(ctx, string(in.Peer), string(in.MessageID), time.Now())
	switch {
	case err == nil && rec.Digest == in.Digest:
		return repeat(rec)
	case err == nil:
		return bridge.Outcome{}, wire.ErrIDReused
	}
	return bridge.Outcome{}, wire.ErrUnavailable.Because(cause)
}

// repeat is the stored answer. It is gone where the owner deleted the conversation, and the message stays accepted.
func repeat(rec store.Replay) (bridge.Outcome, error) {
	if rec.Status == 0 {
		return bridge.Outcome{}, wire.ErrConversationClosed
	}
	return bridge.Outcome{Status: rec.Status, Raw: rec.Answer, Duplicate: true}, nil
}

// decide runs lines 9 to 16 once, and fills the unit that takes the message in.
func (a *acceptance) decide(ctx context.Context) (out bridge.Outcome, err error) {
	if out, done, err := a.repeated(ctx); done || err != nil { // lines 9, 10
		return out, err
	}
	if err := a.admit(ctx); err != nil { // lines 11, 12
		return bridge.Outcome{}, err
	}
	if err := a.unseal(ctx); err != nil {
		return bridge.Outcome{}, err
	}
	if a.in.Payload.GetStr("action") == wire.ActionClose { // line 13
		return a.close(ctx)
	}
	if err := a.live(); err != nil {
		return bridge.Outcome{}, err
	}
	if err := a.understood(); err != nil { // line 14
		return bridge.Outcome{}, err
	}
	if out, done, err := a.takeBack(ctx); done || err != nil {
		return out, err
	}
	a.event = eventOf(a.in.Intent, a.in.Payload, a.unit.Conversation())
	if a.mustHold() { // line 15
		return a.hold(ctx)
	}
	if err := a.received(ctx, conversations.Received); err != nil {
		return bridge.Outcome{}, err
	}
	if conv := a.unit.Conversation(); conv.Unclear == a.in.MessageID && a.in.MessageID != "" { // AM-88
		a.takes = false
		if _, ok := conv.Clarification(a.in.MessageID); !ok {
			return a.toOwner(ctx)
		}
		a.route = clarifying
	}
	if a.route.Handler != nil { // line 16
		return a.run(ctx)
	}
	return a.toInbox(ctx)
}

// repeated is lines 9 and 10. An exact repeat gets its stored answer whatever its age; for anything else the
// clock comes first, so that an old message with a reused id is told about its age (AM-24).
func (a *acceptance) repeated(ctx context.Context) (bridge.Outcome, bool, error) {
	steps := a.n.store.Steps()
	rec, err := steps.FindReplay(ctx, string(a.in.Peer), string(a.in.MessageID), a.now)
	found := err == nil
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return bridge.Outcome{}, false, err
	}
	if found && rec.Digest == a.in.Digest {
		out, err := repeat(rec)
		return out, true, err
	}
	if a.in.Native != nil {
		if err := a.n.verifier.Timely(*a.in.Native, a.arrived()); err != nil {
			return bridge.Outcome{}, false, err
		}
	}
	if found {
		return bridge.Outcome{}, false, wire.ErrIDReused
	}
	first := resendOf(a.in.Payload)
	if first == "" {
		return bridge.Outcome{}, false, nil
	}
	rec, err = steps.FindReplay(ctx, string(a.in.Peer), first, a.now)
	if err == nil && rec.Conv == a.key { // AM-48: signed anew, but known
		out, err := repeat(rec)
		return out, true, err
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return bridge.Outcome{}, false, err
	}
	return bridge.Outcome{}, false, nil
}

// arrived is the time that line 9 judges by: for mail, that of its receipt by the relay (AM-20).
func (a *acceptance) arrived() time.Time {
	if a.in.Unattended {
		return a.in.Received
	}
	return a.now
}

func resendOf(payload wire.Value) string {
	meta, _ := payload.Get("metadata")
	return meta.GetStr("resend_of")
}

// admit is lines 11 and 12: who may, and how often.
func (a *acceptance) admit(ctx context.Context) (err error) {
	if a.standing, err = a.n.rules.Standing(ctx, a.in.Principal, a.now); err != nil {
		return err
	}
	conv := a.unit.Conversation()
	if !a.unit.New() && conv.Address != a.in.Address {
		// Anybody may take the id that stands for a foreign peer: it is not let into that peer's conversations.
		return wire.ErrNotAllowed
	}
	if err := a.judge(ctx); err != nil {
		return err
	}
	if err := a.charge(); err != nil {
		return err
	}
	if err := a.openable(ctx); err != nil {
		return err
	}
	return a.room()
}

// judge is the access rule of line 11. A seal hides whether the message cancels what was agreed: it is judged once more
// when it is open.
func (a *acceptance) judge(ctx context.Context) (err error) {
	conv := a.unit.Conversation()
	expected := conv.WroteFirst || a.cancels(ctx, conv)
	a.verdict, err = a.n.policyFor(a.in.Address).Admit(a.standing, expected)
	if a.verdict == acl.HoldSender && len(conv.Let) > 0 { // the owner lets the sender go on here (AM-34)
		a.verdict, expected = acl.Admitted, true
	}
	a.stranger = !a.standing.Known() && !expected
	if a.in.Unproven != nil && err == nil { // the id may be let in, but the sender may be somebody else (AM-2)
		a.verdict, a.stranger = acl.HoldSender, true
	}
	return err
}

// Why a message is not kept.
var (
	errConversationFull = errors.New("the conversation is full")
	errKeptFull         = errors.New("open conversations hold all that may be kept")
)

// room is the part of line 12 that counts bytes. A close is always taken, because it makes room. Who is refused may
// come back when silence has ended the conversation, and learns of that.
func (a *acceptance) room() error {
	switch {
	case a.in.Payload.GetStr("action") == wire.ActionClose:
		return nil
	case a.unit.Full():
		return wire.ErrRateLimited.After(a.n.book.IdleFor()).Because(errConversationFull)
	case a.stranger && a.n.overfull.Load():
		return wire.ErrRateLimited.After(sweepEvery).Because(errKeptFull)
	}
	return nil
}

// live is line 13 for anything but a close.
func (a *acceptance) live() error {
	if a.unit.New() {
		return nil
	}
	conv := a.unit.Conversation()
	switch {
	case conv.Rejected:
		return wire.ErrOwnerRejected
	case conv.At(a.now, a.n.book.IdleFor()) != conversations.Open:
		return wire.ErrConversationClosed
	}
	return nil
}

// understood is line 14: the intent is one this node takes, and the payload has its shape.
func (a *acceptance) understood() (err error) {
	conv := a.unit.Conversation()
	ours := a.n.Card().Supports(a.in.Intent) || a.route.Handler != nil ||
		a.in.Address != "" || conv.WroteFirst && conv.Intent == a.in.Intent // AM-30, AM-70
	if !ours || !a.in.Intent.Standard() && !a.in.Intent.Custom() {
		return wire.ErrIntent
	}
	a.known, err = wire.CheckPayload(a.in.Intent, a.in.Payload)
	if field, ok := errors.AsType[*wire.FieldError](err); ok {
		return wire.ErrPayload.WithField(field)
	}
	if schemas := a.n.cfg.Schemas; err == nil && schemas != nil && !a.in.Intent.Standard() {
		if err := schemas.Check(a.in.Intent, a.in.Payload); err != nil {
			return wire.ErrPayload.Because(err)
		}
	}
	return err
}

// close answers a close with its echo, which is the agreement that "completed" asks for (AM-39).
func (a *acceptance) close(ctx context.Context) (bridge.Outcome, error) {
	if a.unit.New() {
		return bridge.Outcome{}, wire.ErrConversationClosed
	}
	if err := a.received(ctx, conversations.ClosedByPeer); err != nil {
		return bridge.Outcome{}, err
	}
	if _, err := a.n.withdraw(ctx, a.unit, all); err != nil {
		return bridge.Outcome{}, err
	}
	if err := acceptCounts(ctx, a.unit, a.newItem(ItemNew), ""); err != nil {
		return bridge.Outcome{}, err
	}
	echo := wire.Obj(
		wire.Member{Key: "action", Value: wire.Text(wire.ActionClose)},
		wire.Member{Key: "status", Value: wire.Text(a.in.Payload.GetStr("status"))},
	)
	a.unit.Add(a.n.notices.Change(a.n.notice("closed", a.in.Peer, a.in.Name, a.key, a.now)))
	a.unit.Add(a.n.bridges.observe(a.in)...)
	return a.answer(ctx, http.StatusOK, echo)
}

// toInbox is line 16 where no hook wants the message: the owner's agent reads it when it likes (AM-71, AM-74).
func (a *acceptance) toInbox(ctx context.Context) (bridge.Outcome, error) {
	item := a.newItem(ItemNew)
	a.unit.Add(item.change())
	if err := acceptCounts(ctx, a.unit, item, ""); err != nil {
		return bridge.Outcome{}, err
	}
	return a.answer(ctx, http.StatusOK, received())
}

// toOwner puts an accept that does not say what it accepts before the owner. The answer tells its sender to wait, so that
// the sender does not take the event for agreed (AM-88).
func (a *acceptance) toOwner(ctx context.Context) (bridge.Outcome, error) {
	item := a.newItem(ItemNew)
	item.Pending, item.Note = true, noteUnclear
	a.unit.Add(item.change(), a.n.notices.Change(a.n.notice("message", a.in.Peer, a.in.Name, a.key, a.now)))
	return a.answer(ctx, http.StatusAccepted, pending(a.now, reasonIntent))
}

func received() wire.Value { return actionOf(wire.ActionReceived) }

// actionOf is a payload that is an action alone.
func actionOf(action string) wire.Value {
	return wire.Obj(wire.Member{Key: "action", Value: wire.Text(action)})
}

// received records the message in its conversation and transcript.
func (a *acceptance) received(ctx context.Context, kind conversations.Kind) error {
	err := a.unit.Record(ctx, conversations.Event{
		Kind: kind, At: a.now, Intent: a.in.Intent, Payload: a.in.Payload, Principal: a.in.Principal, Address: a.in.Address,
		Idle: a.n.bridges.silence(a.in.Intent), Sealed: a.seal.sealed, Recipient: a.seal.back, Deadline: a.in.Deadline, Purge: a.in.Purge,
		ID: a.in.MessageID, Answers: conversations.AnswersIn(a.in.Payload), Written: a.written(),
		Name: a.in.Name, Waits: a.held,
	})
	if err != nil {
		return err
	}
	a.unit.Append(store.Entry{MessageID: string(a.in.MessageID), At: a.now, Raw: a.in.Raw, Digest: a.in.Digest, Key: a.seal.key})
	return nil
}

// written is when the sender says that it wrote the message.
func (a *acceptance) written() time.Time {
	if a.in.Time.IsZero() {
		return a.now
	}
	return a.in.Time
}

// answer signs payload as the reply and makes it part of the unit.
func (a *acceptance) answer(ctx context.Context, status int, payload wire.Value) (bridge.Outcome, error) {
	reply, err := a.n.sign(a.draft(payload))
	if err != nil {
		return bridge.Outcome{}, err
	}
	if a.unit.Conversation().State == conversations.Open { // the echo of a close is no event any more
		err := a.unit.Record(ctx, conversations.Event{
			Kind: conversations.Replied, At: a.now, Intent: a.in.Intent, Payload: payload,
			ID: reply.Message.ID, Answers: a.in.MessageID, Direct: true,
		})
		if err != nil {
			return bridge.Outcome{}, err
		}
	}
	a.unit.Append(reply.entry())
	return a.accepted(status, reply), nil
}

// draft is a message of ours to the peer in this conversation.
func (a *acceptance) draft(payload wire.Value) wire.Draft {
	return wire.Draft{Conversation: a.in.ConvID, To: a.in.Peer, Time: a.now, Intent: a.in.Intent, Payload: payload}
}

// accepted completes the unit: a repeat of the message gets this reply.
func (a *acceptance) accepted(status int, reply signed) bridge.Outcome {
	a.unit.Add(a.opened()...)
	a.unit.Add(a.in.Records...)
	a.unit.Replay = &store.Replay{
		Sender: string(a.in.Peer), MessageID: string(a.in.MessageID), Digest: a.in.Digest,
		Conv: a.key, Status: status, Answer: reply.Raw,
		Expires: conversations.Sooner(a.now.Add(a.n.replayFor()), a.in.Purge),
	}
	return bridge.Outcome{Status: status, Reply: &reply.Message, Raw: reply.Raw}
}

// replayFor is how long a record is kept at least (AM-23): beyond any window, and beyond the longest stay in a relay.
func (n *Node) replayFor() time.Duration {
	const relayTTL = 7 * 24 * time.Hour
	w := n.window
	return 24*time.Hour + max(w.Past+w.Future, relayTTL)
}

func isConflict(err error) bool { return conversations.IsConflict(err) }

// isRefusal reports whether an error says what is wrong with a message, and is not the store's.
func isRefusal(err error) bool {
	_, refused := errors.AsType[*wire.Error](err)
	return refused
}
