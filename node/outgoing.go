package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// maxOutgoingAsks bounds our messages that wait for the owner.
const maxOutgoingAsks = 200

// outgoingAsk is the body of an owner.AskOutgoing question: the message exactly as it would be sent, and its recipient.
type outgoingAsk struct {
	Outgoing
	Recipient recipientInfo `json:"recipient"`
	Sealed    bool          `json:"sealed,omitempty"` // the message will be sealed to the recipient
}

// newOutgoingAsk returns a question about our message, and the changes that open it. The hash that the owner approves
// covers the recipient's key too.
func (n *Node) newOutgoingAsk(out Outgoing, to recipientInfo, p rules.Permission, now time.Time) (acl.Ask, []store.Change, error) {
	return n.openOwnAsk(p, out, "", acl.Ask{
		Kind: owner.AskOutgoing, Conv: out.key(), Created: now,
		Title: fmt.Sprintf("send %s to %s", out.Intent, bridge.Party("", out.Address, string(out.To))), // without a name that the peer chose
	}, outgoingAsk{out, to, out.sealTo != ""})
}

// openOwnAsk returns a question about a message of ours that the owner must approve, and the changes that open it. ask has
// the fields that differ between kinds of questions. name is the recipient's name, or "".
func (n *Node) openOwnAsk(p rules.Permission, out Outgoing, name string, ask acl.Ask, body any) (acl.Ask, []store.Change, error) {
	var err error
	if ask.Body, err = json.Marshal(body); err != nil { // encoding may fail for a time that another agent chose
		return acl.Ask{}, nil, fmt.Errorf("encode outgoing message: %w", err)
	}
	shown, err := wire.ParseObject(ask.Body)
	if err != nil {
		return acl.Ask{}, nil, wire.ErrSyntax.Because(err)
	}
	ask.ID, ask.Subject, ask.Rule, ask.Hash = acl.NewAskID(ask.Created), principal(out), p.Rule, hexOf(signing.Digest(shown))
	ask.Expires, ask.Choices = ask.Created.Add(n.cfg.HoldFor), []acl.Choice{acl.Approve, acl.Reject}
	if p.AllowAlways {
		ask.Choices = []acl.Choice{acl.Approve, acl.ApproveAlways, acl.Reject}
	}
	ask, changes := n.asks.Open(ask, acl.Slot{Key: "outgoing/" + ask.ID, Term: "outgoing", Max: maxOutgoingAsks})
	notice := n.notice("outgoing", out.To, name, ask.Conv, ask.Created)
	notice.Ask = ask.ID
	return ask, append(changes, n.notices.Change(notice)), nil
}

// askOutgoing asks the owner about a message of ours (AM-50). Until the owner approves it, the message is neither
// signed nor part of its conversation. Meanwhile the idle time of the conversation does not run (AM-40).
func (n *Node) askOutgoing(ctx context.Context, out Outgoing, p rules.Permission) (Sent, error) {
	to := n.lookUpRecipient(ctx, out)
	var ask acl.Ask
	err := n.book.Do(ctx, out.key(), func(u *conversations.Unit) (err error) {
		ask, err = n.openOutgoingAsk(ctx, u, out, to, p)
		u.Add(out.repeat.changes(Sent{Conversation: out.Conv, State: SendHeld, Ask: ask.ID}, "", u.Now)...)
		return err
	})
	if errors.Is(err, store.ErrQuota) {
		return Sent{}, ErrAsksFull
	}
	if err != nil {
		return Sent{}, err
	}
	sent := Sent{Conversation: out.Conv, State: SendHeld, Ask: ask.ID, Hint: "it waits for the owner: agentmesh approvals show " + ask.ID}
	if out.unproven != nil {
		sent.Err = &SendFailure{Message: out.unproven.Why}
		sent.Hint = "ask the agent's owner over another channel whether this is its key; only if it is: agentmesh approvals approve " + ask.ID
	}
	return sent, nil
}

// openOutgoingAsk adds the question about our message to the unit, and holds the inbox item that the message answers.
func (n *Node) openOutgoingAsk(ctx context.Context, u *conversations.Unit, out Outgoing, to recipientInfo, p rules.Permission) (acl.Ask, error) {
	ask, changes, err := n.newOutgoingAsk(out, to, p, u.Now)
	if err != nil {
		return acl.Ask{}, err
	}
	u.Add(changes...)
	if !u.IsNew() {
		if !u.IsOpen() {
			return acl.Ask{}, wire.ErrConversationClosed
		}
		if err := u.Record(conversations.Event{Kind: conversations.HoldOpened, At: u.Now, Until: ask.Expires}); err != nil {
			return acl.Ask{}, err
		}
	}
	if out.Answers == "" {
		return ask, nil
	}
	item, err := n.Item(ctx, out.Answers)
	if err != nil {
		return acl.Ask{}, err
	}
	// A held item keeps its earlier question; posting.release withdraws that question when this message is sent.
	if item.State != ItemHeld {
		item.State, item.Ask = ItemHeld, ask.ID
		u.Add(item.change())
	}
	return ask, nil
}

// resolve sends or drops the message. Before it sends, it checks the block list, the allowlist and the recipient's key
// again.
func (q outgoingAsk) resolve(ctx context.Context, n *Node, ask acl.Ask, d acl.Decision) error {
	out := q.Outgoing
	out.askExpires = ask.Expires
	if d.Choice != acl.Approve && d.Choice != acl.ApproveAlways {
		return q.drop(ctx, n, ask, d)
	}
	if err := ask.CheckBody(); err != nil {
		return n.refuseNotShown(ask, err)
	}
	if _, err := n.permit(ctx, out, d.Now); err != nil {
		return err
	}
	if err := n.checkRecipientKey(ctx, out, q.Recipient); err != nil {
		return err
	}
	if err := n.resolveSeal(ctx, &out, d.Now); err != nil {
		return err
	}
	if q.Sealed && out.sealTo == "" {
		return ErrCannotSeal.At("you were shown it as sealed")
	}
	changes, err := n.pinChanges(ctx, out.To, q.Recipient.Unproven, d.Now)
	if err != nil {
		return err
	}
	p := posting{queuedMessage: queuedMessage{n: n, out: out}}
	queued, err := p.result(n.book.Try(ctx, out.key(), d.Now, func(u *conversations.Unit) error {
		p.unit = u
		u.Add(changes...)
		u.Add(d.Changes...)
		if !u.IsNew() {
			if err := u.Record(conversations.Event{Kind: conversations.OwnerActed, At: u.Now}); err != nil {
				return err
			}
		}
		if d.Choice == acl.ApproveAlways {
			u.Add(n.recipients.Change(ask.Subject, acl.Approved, d.Now))
		}
		return p.fill(ctx)
	}))
	if err == nil && !n.outbox.released.Give(ask.ID, queued) {
		queued.unwatch() // nobody waits for the delivery
	}
	return err
}

// expectRelease returns a channel that receives the queued message when the owner approves the question ask. The caller
// must call end.
func (n *Node) expectRelease(ask string) (released <-chan queuedMessage, end func()) {
	ch, forget := n.outbox.released.Expect(ask)
	return ch, func() {
		forget()
		select {
		case p := <-ch: // the owner approved it elsewhere, and nobody received it
			p.unwatch()
		default:
		}
	}
}

// drop stores that the message is not sent. If it was to answer an inbox item, that item is new again.
func (q outgoingAsk) drop(ctx context.Context, n *Node, ask acl.Ask, d acl.Decision) error {
	return n.book.Try(ctx, q.key(), d.Now, func(u *conversations.Unit) error {
		u.Add(d.Changes...)
		if err := u.EndHold(ask.Expires); err != nil {
			return err
		}
		if q.Answers == "" {
			return nil
		}
		item, err := n.Item(ctx, q.Answers)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		if err == nil && item.State == ItemHeld && item.Ask == ask.ID {
			item.State, item.Note, item.Woken = ItemNew, noteNotSent, time.Time{}
			u.Add(item.change())
		}
		return nil
	})
}

// noteNotSent is the note on an inbox item whose answer the owner did not approve.
const noteNotSent = "you did not approve the answer that waited"

// ErrAsksFull means that too many of our messages wait for the owner.
var ErrAsksFull = &wire.Error{Code: wire.RateLimited, Status: 429, Retry: true, Message: "too many messages wait for your approval"}
