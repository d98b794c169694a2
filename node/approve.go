package node

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// messageResolver carries out what the owner decided about held messages (AM-34, AM-35).
type messageResolver struct{ n *Node }

// Resolve applies the decision and its effect on the first message in one unit; those behind it follow, each in a unit
// of its own. A store.ErrConflict has it called again.
func (r messageResolver) Resolve(ctx context.Context, ask acl.Ask, d acl.Decision) error {
	v, err := r.n.verdict(ask, d)
	if err != nil {
		return err
	}
	err = r.n.book.Try(ctx, ask.Conv, d.Now, func(u *conversations.Unit) error { return v.carryOut(ctx, u) })
	if err != nil {
		return err
	}
	r.n.carryOutTail(context.WithoutCancel(ctx), d.Tail, v.running)
	return nil
}

// verdict is one decision on its way.
type verdict struct {
	n    *Node
	ask  acl.Ask
	d    acl.Decision
	held owner.HeldBody

	item    Item
	message wire.Message // as received; its zero value for a foreign message
	payload wire.Value
	unit    *conversations.Unit
	running <-chan struct{} // closed when the hook that it started is done; nil if it started none
}

func (n *Node) verdict(ask acl.Ask, d acl.Decision) (*verdict, error) {
	v := &verdict{n: n, ask: ask, d: d}
	if err := json.Unmarshal(ask.Body, &v.held); err != nil {
		return nil, fmt.Errorf("decode question: %w", err)
	}
	return v, nil
}

// isFirst reports whether the message is the one that the decision began with; what the decision says about the sender
// is stored with that one.
func (v *verdict) isFirst() bool { return v.ask.Behind == "" }

// carryOut puts what the decision does to its message into the unit.
func (v *verdict) carryOut(ctx context.Context, u *conversations.Unit) (err error) {
	v.unit, v.running = u, nil
	u.Add(v.d.Changes...)
	if v.item, err = v.n.Item(ctx, v.held.Item); err != nil {
		return err
	}
	if v.item.State != ItemHeld {
		return fmt.Errorf("message %s is %s: %w", v.item.MessageID, v.item.State, store.ErrConflict)
	}
	if v.payload, v.message, err = v.n.readItem(ctx, v.item); err != nil {
		return err
	}
	if err := u.Record(ctx, conversations.Event{Kind: conversations.HoldEnded, At: v.d.Now, Until: v.ask.Expires}); err != nil {
		return err
	}
	if !v.d.Choice.Approves() {
		return v.refuse(ctx)
	}
	if err := v.item.checkShown(v.payload, v.message, v.held.Payload, cmp.Or(v.ask.OwnHash, v.ask.Hash)); err != nil {
		return v.n.notShown(v.ask, err)
	}
	return v.release(ctx)
}

// checkShown compares the item, its payload and the message that it came in with what the owner approved: the digest of
// the message, and the payload that the question shows. A message that came sealed or over a bridge is stored in another
// form than it was signed in, so its payload is compared with the question alone.
func (i Item) checkShown(payload wire.Value, message wire.Message, question json.RawMessage, approved string) error {
	shown, err := wire.Parse(question)
	if err != nil {
		return fmt.Errorf("read shown payload: %w", err)
	}
	switch {
	case i.Digest != approved:
		return errors.New("the inbox item is of another message")
	case !isSamePayload(payload, shown):
		return errors.New("the payload of the inbox item is another one")
	case i.Address != "":
		return nil
	case hexOf(signing.Digest(message.Tree.Without("signature"))) != approved:
		return errors.New("the message in the transcript is another one")
	case !i.Sealed && !isSamePayload(message.Payload, shown):
		return errors.New("the payload in the transcript is another one")
	}
	return nil
}

// isSamePayload compares in the form in which the inbox keeps payloads.
func isSamePayload(a, b wire.Value) bool {
	return bytes.Equal(signing.Canonical(a, signing.JCS), signing.Canonical(b, signing.JCS))
}

// notShown logs why a question is not carried out. The question stays.
func (n *Node) notShown(ask acl.Ask, why error) error {
	n.log.Error("an approved question is not what is stored", "ask", ask.ID, "kind", ask.Kind, "err", why)
	return acl.ErrNotShown
}

// release lets the message go on to its handler, if it still may: the block list and the access mode are asked
// again (AM-25, AM-34).
func (v *verdict) release(ctx context.Context) error {
	standing, err := v.n.rules.Standing(ctx, v.ask.Subject, v.d.Now)
	if err != nil {
		return err
	}
	conv := v.unit.Conversation()
	event, cancelled, err := v.n.takenBack(ctx, v.item.Cancels, v.payload, v.item.key(), conversations.Theirs, v.d.Now)
	if err != nil {
		return err
	}
	if event.UID != "" {
		cancelled = append(cancelled, v.n.cancelNotice(event, v.item.key(), v.item.PeerName, v.d.Now))
	}
	expected := conv.WroteFirst || len(cancelled) > 0
	if _, err := v.n.policyFor(v.item.Address).Admit(standing, expected); err != nil && !errors.Is(err, wire.ErrOwnerRejected) {
		return err
	}
	switch {
	case conv.Rejected:
		return wire.ErrOwnerRejected
	case conv.At(v.d.Now, v.n.book.IdleFor()) != conversations.Open:
		return wire.ErrConversationClosed
	}
	accepted, err := v.n.acceptKey(ctx, v.item.Peer, v.held.Unproven, v.d.Now)
	if err != nil {
		return err
	}
	v.unit.Add(append(accepted, cancelled...)...)
	if v.d.Choice == acl.ApproveAlways && v.isFirst() && standing != acl.Allowed { // who is on the list stays there (AM-29)
		v.unit.Add(v.n.rules.Change(v.ask.Subject, acl.Approved, v.d.Now))
	}
	if v.d.Choice == acl.ApproveConversation {
		let := conversations.Event{Kind: conversations.OwnerLet, At: v.d.Now, Intent: v.item.Intent}
		if err := v.unit.Record(ctx, let); err != nil {
			return err
		}
	}
	if route := v.n.route(v.item.Intent); route.Handler != nil {
		return v.releaseToHook(route)
	}
	return v.releaseToInbox(ctx)
}

// releaseToHook starts the hook that has messages of this kind.
func (v *verdict) releaseToHook(route Route) error {
	give, err := v.n.runs.reserve()
	if err != nil {
		return err
	}
	v.item.State, v.item.Route, v.item.Let = ItemRunning, route.Name, true
	v.item.Attempt++
	v.unit.Add(v.item.change())
	v.unit.Otherwise(give)
	ended := make(chan struct{})
	done := func() { give(); close(ended) }
	r := &run{n: v.n, itemID: v.item.ID, message: v.message, payload: v.payload, route: route, done: done, late: true}
	v.unit.Then(func() {
		v.running = ended
		v.n.start(r)
	})
	return nil
}

// releaseToInbox puts the message before the owner's agent and tells the sender that it got through.
func (v *verdict) releaseToInbox(ctx context.Context) error {
	v.item.State = ItemNew
	v.unit.Add(v.item.change())
	if err := v.reply(ctx, received()); err != nil {
		return err
	}
	return acceptCounts(ctx, v.unit, v.item, "") // after the reply: it may close the conversation
}

// refuse tells the sender, and remembers the refusal: for the conversation, and for the sender if the question was the
// sender (AM-35). With the conversation ends whatever else was asked in it.
func (v *verdict) refuse(ctx context.Context) error {
	switch {
	case !v.isFirst():
	case v.d.Choice == acl.Block:
		v.unit.Add(v.n.rules.Change(v.ask.Subject, acl.Blocked, v.d.Now))
	case v.held.Hold == "sender" && v.held.Unproven == nil: // else the agent whose id it is would be refused with the other
		v.unit.Add(v.n.rules.Change(v.ask.Subject, acl.Rejected, v.d.Now))
	}
	v.item.State = ItemRejected
	v.unit.Add(v.item.change())
	conv := v.unit.Conversation()
	if conv.At(v.d.Now, v.n.book.IdleFor()) != conversations.Open {
		if conv.Rejected { // the sender has its close; a repeat of this message gets one too
			return v.storeReply(rejection(wire.OwnerRejected))
		}
		return nil
	}
	others := func(ask acl.Ask) bool { return ask.ID != v.ask.ID && !v.unit.Changes(acl.AskNamespace, ask.ID) }
	if _, err := v.n.withdraw(ctx, v.unit, others); err != nil {
		return err
	}
	if err := v.unit.Record(ctx, conversations.Event{Kind: conversations.OwnerRejected, At: v.d.Now, Intent: v.item.Intent}); err != nil {
		return err
	}
	if v.held.Unproven != nil {
		return v.storeReply(rejection(wire.OwnerRejected)) // nothing leaves to a key that the owner does not accept
	}
	return v.reply(ctx, rejection(wire.OwnerRejected))
}

// rejection is the close that ends a conversation which will not go on (AM-35).
func rejection(reason wire.Code) wire.Value {
	return wire.Obj(
		wire.Member{Key: "action", Value: wire.Text(wire.ActionClose)},
		wire.Member{Key: "status", Value: wire.Text("failed")},
		wire.Member{Key: "reason", Value: wire.Text(string(reason))},
	)
}

// reply sends payload as a new message and makes it the answer that a repeat of the held message gets (AM-22).
func (v *verdict) reply(ctx context.Context, payload wire.Value) error {
	_, raw, err := v.n.enqueue(ctx, v.unit, v.item.reply(payload))
	v.unit.Answer = v.item.answer(http.StatusOK, raw)
	return err
}

// storeReply is reply without sending: the sender gets the message if it repeats its own.
func (v *verdict) storeReply(payload wire.Value) error {
	out := v.item.reply(payload)
	s, err := v.n.sign(wire.Draft{
		Conversation: out.Conv, To: out.To, Time: v.d.Now, Intent: out.Intent,
		Payload: withMeta(payload, "in_reply_to", string(out.InReplyTo)),
	})
	if err != nil {
		return err
	}
	v.unit.Append(s.entry())
	v.unit.Answer = v.item.answer(http.StatusOK, s.Raw)
	return nil
}

// reply is an answer to the item that leaves through the outbox. The caller also stores it as the item's answer, with
// [Item.answer].
func (i Item) reply(payload wire.Value) Outgoing {
	return Outgoing{
		To: i.Peer, Address: i.Address, Conv: i.Conversation, Intent: i.Intent, Payload: payload,
		InReplyTo: i.MessageID, Via: "node", fetchable: i.repeats(),
	}
}

// repeats reports whether the sender of the item can repeat it to fetch the stored answer: a peer of this protocol, and
// a message that it sent on its own.
func (i Item) repeats() bool { return i.Kind == kindMessage && i.Address == "" }

// answer replaces what a repeat of the item's message is answered with.
func (i Item) answer(status int, raw []byte) *store.Replay {
	digest, err := decodeDigest(i.Digest)
	if err != nil {
		return nil
	}
	return &store.Replay{
		Sender: string(i.Peer), MessageID: string(i.MessageID), Digest: digest, Conv: i.key(), Status: status, Answer: raw,
	}
}
