package node

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/guard"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// messageResolver carries out the owner's decisions about held messages (AM-34, AM-35).
type messageResolver struct{ n *Node }

// Resolve stores the decision together with its effect on the message, in one [conversations.Unit]. If other messages of
// the sender wait behind this one, they follow, each in its own unit. After store.ErrConflict, the caller must call
// Resolve again.
func (r messageResolver) Resolve(ctx context.Context, ask acl.Ask, d acl.Decision) error {
	v, err := r.n.newHeldDecision(ask, d)
	if err != nil {
		return err
	}
	defer r.n.work.Claim(acl.AskNamespace, ask.ID)() // afterwards the worker carries out the rest
	if err := r.n.book.Try(ctx, ask.Conv, d.Now, func(u *conversations.Unit) error { return v.carryOut(ctx, u) }); err != nil {
		return err
	}
	if _, err := r.n.resolveReady(context.WithoutCancel(ctx), append([]acl.Ask{ask}, d.Tail...)); err != nil {
		r.n.log.Warn("a decision cannot be carried out yet", "ask", ask.ID, "err", err)
	}
	return nil
}

// heldDecision carries out the owner's decision about one held message.
type heldDecision struct {
	n    *Node
	ask  acl.Ask
	d    acl.Decision
	held owner.HeldBody

	item Item
	unit *conversations.Unit

	// Set only if the owner lets the message in. message is the message as received, or zero if it is foreign.
	message   wire.Message
	payload   wire.Value
	cancelled []store.Change // cancels an agreed event, if the message does
}

func (n *Node) newHeldDecision(ask acl.Ask, d acl.Decision) (*heldDecision, error) {
	v := &heldDecision{n: n, ask: ask, d: d}
	if err := json.Unmarshal(ask.Body, &v.held); err != nil {
		return nil, fmt.Errorf("decode question: %w", err)
	}
	return v, nil
}

// isFirst reports whether the message is the first of those that wait for the same decision. Only its unit stores a rule
// about the sender.
func (v *heldDecision) isFirst() bool { return v.ask.Behind == "" }

// carryOut adds the decision about the message, and everything that follows from it, to u.
func (v *heldDecision) carryOut(ctx context.Context, u *conversations.Unit) (err error) {
	v.unit = u
	u.Add(v.d.Changes...)
	if v.item, err = v.n.Item(ctx, v.held.Item); err != nil {
		return err
	}
	if v.item.State != owner.ItemHeld {
		return fmt.Errorf("message %s is %s: %w", v.item.MessageID, v.item.State, store.ErrConflict)
	}
	ended := conversations.Event{Kind: conversations.HoldEnded, At: v.d.Now, Until: v.ask.Expires}
	if v.d.Choice.Approves() {
		if v.message, v.cancelled, err = v.item.prepareRelease(ctx, v.n, &ended); err != nil {
			return err
		}
		v.payload = ended.Payload
	}
	if err := u.Record(ended); err != nil {
		return err
	}
	if !v.d.Choice.Approves() {
		return v.refuse(ctx)
	}
	if err := v.item.checkShown(v.payload, v.message, v.held.Payload, cmp.Or(v.ask.OwnHash, v.ask.Hash)); err != nil {
		return v.n.refuseNotShown(v.ask, err)
	}
	return v.release(ctx)
}

// prepareRelease fills in ended, the event that ends the hold of a message that the owner lets in. It returns the
// message as received. If the message cancels an agreed event, prepareRelease also returns the changes that cancel the
// event, unless the event was agreed after the message came.
func (i *Item) prepareRelease(ctx context.Context, n *Node, ended *conversations.Event) (wire.Message, []store.Change, error) {
	payload, message, err := n.readItem(ctx, *i)
	if err != nil {
		return message, nil, err
	}
	agreedIn := store.ConvKey{Peer: string(i.Peer), ID: cmp.Or(conversations.AgreedIn(payload), string(i.Conversation))}
	agreed, err := n.book.Load(ctx, agreedIn, ended.At)
	if err != nil {
		return message, nil, err
	}
	if a := agreed.Conversation().Schedule.Agreement; a != nil && a.At.After(i.At) {
		i.Cancels = ""
	}
	ended.ID, ended.Intent, ended.Payload, ended.Answers = i.MessageID, i.Intent, payload, conversations.AnswersIn(payload)
	ended.Written = cmp.Or(message.Time, i.At) // a foreign message has no time of its own
	ended.Cancels = i.Cancels == calendar.UID(string(i.Peer), string(i.Conversation))
	if i.Deferred {
		ended.Arrived, i.Deferred = i.At, false
	}
	cancelled, err := n.cancelChanges(ctx, i.Cancels, payload, i.key(), conversations.Theirs, i.PeerName, ended.At)
	return message, cancelled, err
}

// checkShown compares the item, its payload and its original message with what the owner approved: the digest of the
// message, and the payload in the question. The transcript has no signed original of a message that came over a bridge,
// so checkShown compares only the item. The original of a sealed message has a sealed payload, so checkShown compares
// only the digest of the original.
func (i Item) checkShown(payload wire.Value, message wire.Message, inQuestion json.RawMessage, approvedDigest string) error {
	shown, err := wire.Parse(inQuestion)
	if err != nil {
		return fmt.Errorf("read shown payload: %w", err)
	}
	switch {
	case i.Digest != approvedDigest:
		return errors.New("the inbox item belongs to another message")
	case !isSamePayload(payload, shown):
		return errors.New("the payload of the inbox item differs from the one shown")
	case i.Address != "":
		return nil
	case hexOf(signing.Digest(message.Tree.Without("signature"))) != approvedDigest:
		return errors.New("the message in the transcript differs from the one approved")
	case !i.Sealed && !isSamePayload(message.Payload, shown):
		return errors.New("the payload in the transcript differs from the one shown")
	}
	return nil
}

func isSamePayload(a, b wire.Value) bool {
	return bytes.Equal(signing.Canonical(a, signing.JCS), signing.Canonical(b, signing.JCS))
}

// refuseNotShown logs that the owner approved something other than what the page or command showed, and returns
// acl.ErrNotShown. The question stays open.
func (n *Node) refuseNotShown(ask acl.Ask, why error) error {
	n.log.Error("an approved question differs from what is stored", "ask", ask.ID, "kind", ask.Kind, "err", why)
	return acl.ErrNotShown
}

// release checks the block list and the access mode again, and then passes the message to its hook or to the inbox
// (AM-25, AM-34). It also pins the sender's key and stores the owner's rule about the sender.
func (v *heldDecision) release(ctx context.Context) error {
	standing, err := v.n.rules.Standing(ctx, v.ask.Subject, v.d.Now, v.item.Address)
	if err != nil {
		return err
	}
	route := v.n.route(v.item.Intent)
	verdict := rules.Release(rules.State{
		Standing: standing, Policy: v.n.policyFor(v.item.Address), Ended: v.unit.CheckOpen(v.unit.Now), Conv: v.unit.Conversation(),
		CancelsEvent: len(v.cancelled) > 0, Route: route.ruled(),
	}, v.item.answered(v.payload))
	if verdict.Do == rules.Refuse {
		return verdict.Error
	}
	letsIn := v.ask.LetsIn(v.d.Choice) && v.isFirst()
	pins, err := v.n.pinChanges(ctx, v.item.Peer, v.held.Unproven, letsIn, v.d.Now)
	if err != nil {
		return err
	}
	v.unit.Add(append(pins, v.cancelled...)...)
	if letsIn && standing != acl.Allowed { // a peer on the allowlist stays allowed (AM-29)
		v.unit.Add(v.n.rules.Change(v.ask.Subject, acl.Approved, v.d.Now))
	}
	isMore := v.held.Hold == "turns"
	if err := v.n.turns.grant(ctx, v.unit, v.item, rules.Bound(v.held.Bound), v.isFirst() && isMore, v.d.Choice == acl.ApproveConversation && isMore); err != nil {
		return err
	}
	if v.d.Choice == acl.ApproveConversation && !isMore {
		if err := v.unit.Record(conversations.Event{Kind: conversations.OwnerAdmitted, At: v.d.Now, Intent: v.item.Intent}); err != nil {
			return err
		}
	}
	switch verdict.Do {
	case rules.Judge, rules.Run, rules.Inbox:
		if v.item.Verdict == nil { // the guard comes after the rules
			break
		}
		if v.item.Verdict.Decision == string(guard.Deny) {
			return v.releaseToInbox(ctx) // for the owner, and for no agent
		}
		if err := v.item.letThrough(v.unit); err != nil {
			return err
		}
		if verdict.Do == rules.Judge {
			return v.releaseToInbox(ctx)
		}
	}
	switch verdict.Do {
	case rules.Read:
		return v.releaseReceipt(ctx)
	case rules.Judge:
		return v.releaseToHook(judgeRoute)
	case rules.Unclear: // AM-88
		v.item.State, v.item.Note = owner.ItemNew, noteUnclear
		v.unit.Add(v.item.change())
		return nil
	case rules.Clarify:
		return v.releaseToHook(clarifyRoute)
	case rules.Run:
		return v.releaseToHook(route)
	}
	return v.releaseToInbox(ctx)
}

func (v *heldDecision) releaseToHook(route Route) error {
	if err := v.n.turns.take(v.unit, v.item, route, nil); err != nil { // the owner decided on this one
		return err
	}
	v.item.Route, v.item.Approved = route.Name, true
	freePlace, err := v.n.runs.Reserve(v.item.turn(route))
	if err != nil {
		return err
	}
	claimed := v.n.claimRun(&v.item)
	v.unit.Add(v.item.change())
	v.unit.Otherwise(freePlace) // if the unit is not committed
	if !claimed {
		v.unit.Then(freePlace)
		return nil
	}
	r := &run{
		n: v.n, key: v.item.key(), itemID: v.item.ID, message: v.message, payload: v.payload, route: route, freePlace: freePlace, unattended: true,
		turn: v.item.turn(route),
	}
	v.unit.Then(func() { v.n.start(r) })
	return nil
}

func (v *heldDecision) releaseToInbox(ctx context.Context) error {
	v.item.State = owner.ItemNew
	v.unit.Add(v.item.moveToEnd(v.unit.Now)...)
	if err := v.reply(ctx, receiptPayload()); err != nil {
		return err
	}
	return v.n.countAccept(ctx, v.unit, v.item, "") // last, because this may close the conversation
}

// releaseReceipt marks a receipt as read, and answers only a repeat of it (AM-91).
func (v *heldDecision) releaseReceipt(ctx context.Context) error {
	v.item.State = owner.ItemRead
	v.unit.Add(v.item.change())
	if err := v.storeReply(receiptPayload()); err != nil {
		return err
	}
	return v.n.countAccept(ctx, v.unit, v.item, "")
}

// refuse ends the conversation with its other questions and sends the peer a close (AM-35). It sends nothing to a
// sender whose key is not proven, or after the end of the conversation. It also stores what that decides about the
// sender, see [rules.Rejection].
func (v *heldDecision) refuse(ctx context.Context) error {
	if s := rules.Rejection(v.isFirst(), v.d.Choice == acl.Block, v.held.Hold == "sender", v.held.Unproven == nil); s != "" {
		v.unit.Add(v.n.rules.Change(v.ask.Subject, s, v.d.Now))
	}
	v.item.State = owner.ItemRejected
	v.unit.Add(v.item.change())
	conv := v.unit.Conversation()
	if !v.unit.IsOpen() {
		if conv.Rejected { // the sender got the close before; a repeat of this message gets a close too
			return v.storeReply(rejectionPayload(wire.OwnerRejected))
		}
		return nil
	}
	others := func(ask acl.Ask) bool { return ask.ID != v.ask.ID && !v.unit.HasChange(acl.AskNamespace, ask.ID) }
	if _, err := v.n.withdrawAsks(ctx, v.unit, others); err != nil {
		return err
	}
	if err := v.n.record(ctx, v.unit, conversations.Event{Kind: conversations.OwnerRejected, At: v.d.Now, Intent: v.item.Intent}); err != nil {
		return err
	}
	if v.held.Unproven != nil {
		return v.storeReply(rejectionPayload(wire.OwnerRejected)) // nothing is sent to a key that the owner does not accept
	}
	return v.reply(ctx, rejectionPayload(wire.OwnerRejected))
}

// rejectionPayload returns the close that ends a refused conversation (AM-35).
func rejectionPayload(reason wire.Code) wire.Value {
	return closePayload("failed").With("reason", wire.Text(string(reason)))
}

// reply sends payload as a new message, and stores it as the answer to a repeat of the held message (AM-22).
func (v *heldDecision) reply(ctx context.Context, payload wire.Value) error {
	s, err := v.n.enqueue(ctx, v.unit, v.item.newReply(payload))
	v.unit.Answer = v.item.newReplay(http.StatusOK, s.Raw)
	return err
}

// storeReply stores payload only as the answer to a repeat, and sends nothing.
func (v *heldDecision) storeReply(payload wire.Value) error {
	out := v.item.newReply(payload)
	s, err := v.n.sign(wire.Draft{
		Conversation: out.Conv, To: out.To, Time: v.d.Now, Intent: out.Intent,
		Payload: withMeta(payload, "in_reply_to", string(out.InReplyTo)),
	})
	if err != nil {
		return err
	}
	v.unit.Append(s.transcriptEntry("node"))
	v.unit.Answer = v.item.newReplay(http.StatusOK, s.Raw)
	return nil
}

// newReply returns an answer to the item for the outbox. The caller must also store it for a repeat, see
// [Item.newReplay].
func (i Item) newReply(payload wire.Value) Outgoing {
	return Outgoing{
		To: i.Peer, Address: i.Address, Conv: i.Conversation, Intent: i.Intent, Payload: payload,
		InReplyTo: i.MessageID, Via: "node", fetchable: i.canRepeat(),
	}
}

// canRepeat reports whether the sender can fetch the stored answer by repeating its message. A foreign peer cannot, nor
// can a peer whose message was its synchronous reply to ours.
func (i Item) canRepeat() bool { return i.Kind == kindMessage && i.Address == "" }

// newReplay returns the record by which a repeat of the item's message gets the bytes in raw as its answer. It returns
// nil if the item's digest is not valid.
func (i Item) newReplay(status int, raw []byte) *store.Replay {
	digest, err := hex.DecodeString(i.Digest)
	if err != nil || len(digest) != sha256.Size {
		return nil
	}
	return &store.Replay{
		Sender: string(i.Peer), MessageID: string(i.MessageID), Digest: [32]byte(digest), Conv: i.key(), Status: status, Answer: raw,
	}
}
