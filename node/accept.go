package node

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/guard"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

var _ bridge.Receiver = (*Node)(nil)

// acceptance is one message on its way through lines 9 to 16 of the receive table in docs/protocol.md; "line 15" below
// means line 15 of that table. Package rules decides; an acceptance reads what the rules need, and carries out the verdict.
type acceptance struct {
	n   *Node
	in  bridge.Inbound // the payload is open once the message is charged
	key store.ConvKey

	spent  rules.Bound     // a bound on turns that is used up, found after the store refused a turn
	lifted map[string]bool // bounds that are used up, too, but that the owner lifted

	charged bool       // the limits are charged; a second attempt at the unit does not charge again
	drawn   acl.Charge // what was charged to the node's own limits
	seal    seal

	// What follows belongs to one attempt at the unit.
	unit       *conversations.Unit
	now        time.Time
	state      rules.State
	verdict    rules.Verdict
	withdrawal []store.Change // takes back the held messages of state.Withdrawn
	route      Route
	hook       *run // the run that handles the message; nil if no hook of this process handles it
}

// Accept takes a message from an authenticated sender through lines 9 to 16: clock and replay, access, limits,
// conversation, intent, approval, handler. A foreign message has no signature and no time that the node could check;
// the bridge that received the message vouches for it. Every error is a *[wire.Error]. After wire.ErrUnavailable the
// message may have been accepted nevertheless. After any other error, nothing has changed except the limits, the logs,
// and the notice about a sealed message that could not be opened.
func (n *Node) Accept(ctx context.Context, in bridge.Inbound) (out bridge.Outcome, err error) {
	defer func() { n.logMessage(ctx, in, out, err) }()
	a := &acceptance{
		n: n, in: in,
		key:    store.ConvKey{Peer: string(in.Peer), ID: string(in.ConvID)},
		lifted: map[string]bool{},
	}
	unlock, err := n.acceptLock.Lock(ctx, string(in.Peer)+" "+string(in.MessageID), n.cfg.SyncDeadline)
	if err != nil {
		return n.answerWithoutTurn(ctx, in, err)
	}
	defer unlock()
	// The message is stored in one unit (AM-26). If another process accepted a copy meanwhile, a new attempt finds the
	// message as a repeat.
	for range 3 {
		err = n.book.Do(ctx, a.key, func(u *conversations.Unit) (err error) {
			out, err = a.decide(ctx, u)
			return err
		})
		if a.isHoldQuota(err) && a.verdict.Ask {
			continue // a new attempt may displace another question
		}
		if a.verdict.Do != rules.Run && a.verdict.Do != rules.Clarify || isRefusal(err) || !errors.Is(err, store.ErrQuota) {
			break
		}
		if a.spent, a.lifted, err = n.turns.findSpent(ctx, a.newItem(owner.ItemNew), time.Now()); err != nil {
			break
		}
		err = store.ErrQuota // if it is refused again
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
		n.countRefusal(in.Principal, cmp.Or(rules.RefusedBy(a.state, err), codeOf(err)), err)
		return bridge.Outcome{}, toWireError(err)
	}
	if a.hook != nil && !a.hook.unattended {
		out = a.hook.await(ctx, out)
	}
	a.countAdmission(out)
	return out, nil
}

// isHoldQuota reports whether the store refused the unit because too many messages wait for the owner.
func (a *acceptance) isHoldQuota(err error) bool {
	return a.verdict.Do == rules.Hold && !isRefusal(err) && errors.Is(err, store.ErrQuota)
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

// decide takes the message through lines 9 to 16, in one attempt at the unit.
func (a *acceptance) decide(ctx context.Context, u *conversations.Unit) (bridge.Outcome, error) {
	a.unit, a.now, a.hook, a.route, a.verdict = u, u.Now, nil, a.n.route(a.in.Intent), rules.Verdict{}
	if err := a.load(ctx); err != nil {
		return bridge.Outcome{}, err
	}
	switch a.verdict = rules.Admit(a.state, a.in); a.verdict.Do { // lines 9 to 11
	case rules.Repeat:
		return storedAnswer(*a.verdict.Stored)
	case rules.Refuse:
		return bridge.Outcome{}, a.verdict.Error
	}
	if err := a.charge(); err != nil { // line 12
		return bridge.Outcome{}, err
	}
	if err := a.loadSpace(ctx); err != nil {
		return bridge.Outcome{}, err
	}
	if err := rules.Fit(a.state, a.in, a.verdict.Stranger); err != nil {
		return bridge.Outcome{}, err
	}
	if err := a.unseal(ctx); err != nil {
		return bridge.Outcome{}, err
	}
	if err := a.loadOpened(ctx); err != nil {
		return bridge.Outcome{}, err
	}
	a.verdict = rules.Decide(a.state, a.in) // lines 13 to 16
	return a.carryOut(ctx)
}

// load reads what [rules.Admit] needs.
func (a *acceptance) load(ctx context.Context) (err error) {
	conv := a.unit.Conversation()
	a.state = rules.State{
		Now: a.now, Arrived: a.arrivedAt(), Window: a.n.cfg.Window, Policy: a.n.policyFor(a.in.Address), Conv: conv,
		New: a.unit.IsNew(), IdleFor: a.n.book.IdleFor(), Silence: a.n.bridges.silence(a.in.Intent), Schemas: a.n.cfg.Schemas,
		Supported: a.n.Card().Supports(a.in.Intent),
		Route:     a.route.ruled(), Turns: rules.Turns{Autonomy: a.n.turns.boundsFor(a.in.Verified), Spent: a.spent},
		Guarded: a.n.cfg.Guard != nil && a.n.cfg.Guard.Judges(guard.In),
	}
	if a.state.Replay, err = a.findReplay(ctx, string(a.in.MessageID)); err != nil || a.state.Replay != nil {
		return err // of a known id, Admit needs nothing else
	}
	if a.state.Resent, err = a.findReplay(ctx, resendOf(a.in.Payload)); err != nil {
		return err
	}
	if a.state.Standing, err = a.n.rules.Standing(ctx, a.in.Principal, a.now, a.in.Address); err != nil {
		return err
	}
	a.state.CancelsEvent = a.isCancellation(ctx, conv)
	return nil
}

// findReplay returns the record of a message of the sender with this id, or nil.
func (a *acceptance) findReplay(ctx context.Context, id string) (*store.Replay, error) {
	if id == "" {
		return nil, nil
	}
	rec, err := a.n.store.Steps().FindReplay(ctx, string(a.in.Peer), id, a.now)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &rec, nil
}

// loadSpace reads what [rules.Fit] needs.
func (a *acceptance) loadSpace(ctx context.Context) (err error) {
	a.state.ConvFull, a.state.KeptFull, a.state.RetryKept = a.unit.IsFull(), a.n.overfull.Load(), sweepEvery
	if a.isMetered() && a.unit.IsNew() && a.in.Meter.MaxOpen() > 0 {
		a.state.MaxOpen = a.in.Meter.MaxOpen()
		a.state.Open, err = a.countOpen(ctx)
	}
	return err
}

// loadOpened reads what [rules.Decide] needs besides, now that the payload is open.
func (a *acceptance) loadOpened(ctx context.Context) (err error) {
	conv, action := a.unit.Conversation(), a.in.Payload.GetStr("action")
	if a.seal.sealed {
		a.state.Sealed, a.state.Recipient = true, a.seal.answerTo
		a.state.CancelsEvent = a.isCancellation(ctx, conv)
	}
	if action != wire.ActionClose {
		a.state.Ended = a.unit.CheckOpen(a.arrivedAt())
		a.state.Conv = a.unit.Conversation()
	}
	if (action == "withdraw" || action == "cancel") && conv.Holds(a.now) > 0 {
		a.state.Withdrawn, a.withdrawal, err = a.n.findWithdrawn(ctx, a.key, a.takesBack, a.now)
	}
	return err
}

// takesBack reports whether a withdrawal or cancel of the sender takes back the message that ask is about. A sender
// cannot cancel questions about messages of ours.
func (a *acceptance) takesBack(ask acl.Ask) bool {
	return ask.Kind == owner.AskMessage && (a.in.Cancels == "" || a.in.Cancels == cmp.Or(ask.OwnHash, ask.Hash))
}

// carryOut adds to the unit what the verdict says.
func (a *acceptance) carryOut(ctx context.Context) (bridge.Outcome, error) {
	switch a.verdict.Do {
	case rules.Refuse:
		return bridge.Outcome{}, a.verdict.Error
	case rules.Hold:
		return a.hold(ctx)
	}
	if err := a.recordMessage(ctx); err != nil {
		return bridge.Outcome{}, err
	}
	switch a.verdict.Do {
	case rules.Close:
		return a.close(ctx)
	case rules.Withdraw:
		return a.withdrawHeld(ctx)
	case rules.Unclear:
		return a.toOwner(ctx)
	case rules.Clarify:
		a.route = clarifyRoute
		return a.run(ctx)
	case rules.Judge:
		a.route = judgeRoute
		return a.run(ctx)
	case rules.Run:
		return a.run(ctx)
	case rules.Read:
		return a.toInbox(ctx, owner.ItemRead)
	}
	return a.toInbox(ctx, owner.ItemNew)
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

// close ends the conversation, withdraws its questions to the owner, and answers with a close of the same status. The
// status "completed" needs this echo as our consent (AM-39).
func (a *acceptance) close(ctx context.Context) (bridge.Outcome, error) {
	if _, err := a.n.withdrawAsks(ctx, a.unit, nil); err != nil {
		return bridge.Outcome{}, err
	}
	if err := a.n.countAccept(ctx, a.unit, a.newItem(owner.ItemNew), ""); err != nil {
		return bridge.Outcome{}, err
	}
	a.unit.Add(a.n.notices.Change(a.n.notice("closed", a.in.Peer, a.in.Name, a.key, a.now)))
	a.unit.Add(a.n.bridges.observe(a.in)...)
	return a.answer(ctx, http.StatusOK, closePayload(a.in.Payload.GetStr("status")))
}

// toInbox implements line 16 for a message that no hook handles (AM-71, AM-74, AM-91).
func (a *acceptance) toInbox(ctx context.Context, state owner.ItemState) (bridge.Outcome, error) {
	item := a.newItem(state)
	a.unit.Add(item.change())
	if err := a.n.countAccept(ctx, a.unit, item, ""); err != nil {
		return bridge.Outcome{}, err
	}
	return a.answer(ctx, http.StatusOK, receiptPayload())
}

// toOwner puts an accept that does not say what it accepts into the owner's inbox. The answer tells the sender to wait,
// so that it does not take the event for agreed (AM-88).
func (a *acceptance) toOwner(ctx context.Context) (bridge.Outcome, error) {
	item := a.newItem(owner.ItemNew)
	item.Pending, item.Note = true, noteUnclear
	a.unit.Add(item.change(), a.n.notices.Change(a.n.notice("message", a.in.Peer, a.in.Name, a.key, a.now)))
	return a.answer(ctx, http.StatusAccepted, pendingPayload(a.now, rules.ReasonUnclear))
}

func receiptPayload() wire.Value { return actionOf(wire.ActionReceived) }

func closePayload(status string) wire.Value {
	return actionOf(wire.ActionClose).With("status", wire.Text(status))
}

func actionOf(action string) wire.Value { return wire.Obj(wire.TextField("action", action)) }

// recordMessage adds the message to its conversation and to the transcript.
func (a *acceptance) recordMessage(ctx context.Context) error {
	if err := a.n.record(ctx, a.unit, a.verdict.Event); err != nil {
		return err
	}
	a.unit.Append(store.Entry{MessageID: string(a.in.MessageID), At: a.now, Raw: a.in.Raw, Digest: a.in.Digest, Key: a.seal.key})
	return nil
}

// answer signs a reply, adds it to the conversation and the transcript, and completes the unit.
func (a *acceptance) answer(ctx context.Context, status int, payload wire.Value) (bridge.Outcome, error) {
	reply, err := a.n.sign(a.draft(payload))
	if err != nil {
		return bridge.Outcome{}, err
	}
	if a.unit.Conversation().State == conversations.Open { // the echo of a close is not an event
		err := a.n.record(ctx, a.unit, conversations.Event{
			Kind: conversations.Replied, At: a.now, Intent: a.in.Intent, Payload: payload,
			ID: reply.Message.ID, Answers: a.in.MessageID, Direct: true,
		})
		if err != nil {
			return bridge.Outcome{}, err
		}
	}
	a.unit.Append(reply.transcriptEntry("node"))
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

// withdrawHeld withdraws the held messages that the sender takes back with this message (AM-36). Recording the message
// also cancels the agreed event that it names (AM-87).
func (a *acceptance) withdrawHeld(ctx context.Context) (bridge.Outcome, error) {
	a.unit.Add(a.withdrawal...)
	for _, ask := range a.state.Withdrawn {
		if err := a.unit.Record(conversations.Event{Kind: conversations.HoldEnded, At: a.now, Until: ask.Expires}); err != nil {
			return bridge.Outcome{}, err
		}
	}
	return a.answer(ctx, http.StatusOK, receiptPayload())
}

// withdrawAsks withdraws the pending questions of the unit's conversation for which isChosen returns true, or all if
// isChosen is nil, and the held items that they are about. It returns the withdrawn questions.
func (n *Node) withdrawAsks(ctx context.Context, u *conversations.Unit, isChosen func(acl.Ask) bool) ([]acl.Ask, error) {
	withdrawn, changes, err := n.findWithdrawn(ctx, u.Conversation().Key, isChosen, u.Now)
	u.Add(changes...)
	return withdrawn, err
}

// findWithdrawn returns the questions that withdrawAsks withdraws, and the changes that do it.
func (n *Node) findWithdrawn(ctx context.Context, key store.ConvKey, isChosen func(acl.Ask) bool, now time.Time) (withdrawn []acl.Ask, changes []store.Change, err error) {
	changes, err = n.asks.Withdraw(ctx, key, func(ask acl.Ask) (selected bool) {
		if selected = isChosen == nil || isChosen(ask); selected {
			withdrawn = append(withdrawn, ask)
		}
		return selected
	}, now)
	if err != nil || len(withdrawn) == 0 {
		return nil, nil, err
	}
	held, err := n.itemsOf(ctx, key, owner.ItemHeld, owner.ItemInterrupted)
	if err != nil {
		return nil, nil, err
	}
	for _, item := range held {
		if slices.ContainsFunc(withdrawn, func(ask acl.Ask) bool { return ask.ID == item.Ask }) {
			item.State = owner.ItemWithdrawn
			changes = append(changes, item.change())
		}
	}
	return withdrawn, changes, nil
}
