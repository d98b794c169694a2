package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// maxOutgoingAsks bounds the messages of ours that wait for the owner.
const maxOutgoingAsks = 200

// outgoingAsk is the body of an askOutgoing question: exactly what leaves, and to whom.
type outgoingAsk struct {
	Outgoing
	Recipient recipient `json:"recipient"`
	Sealed    bool      `json:"sealed,omitempty"` // only the recipient will read it
}

// question asks the owner about a message of ours. The hash covers the recipient's key as well as the payload.
func (n *Node) outgoingQuestion(out Outgoing, to recipient, p permission, now time.Time) (acl.Ask, []store.Change, error) {
	body, err := json.Marshal(outgoingAsk{out, to, out.sealTo != ""})
	if err != nil {
		return acl.Ask{}, nil, fmt.Errorf("encode outgoing message: %w", err)
	}
	shown, err := wire.ParseObject(body)
	if err != nil {
		return acl.Ask{}, nil, fmt.Errorf("encode outgoing message: %w", err)
	}
	choices := []acl.Choice{acl.Approve, acl.Reject}
	if p.always {
		choices = []acl.Choice{acl.Approve, acl.ApproveAlways, acl.Reject}
	}
	id := acl.NewAskID(now)
	ask, changes := n.asks.Open(acl.Ask{
		ID: id, Kind: askOutgoing, Subject: principal(out), Conv: out.key(), Rule: p.rule,
		Title: fmt.Sprintf("send %s to %s", out.Intent, out.To), Body: body,
		Hash:    hexOf(signing.Digest(shown)),
		Choices: choices, Created: now, Expires: now.Add(n.cfg.HoldFor),
	}, acl.Slot{Key: "outgoing/" + id, Term: "outgoing", Max: maxOutgoingAsks})
	notice := n.notice("outgoing", out.To, "", out.key(), now)
	return ask, append(changes, n.notices.Change(notice)), nil
}

// askOutgoing puts a message of ours before the owner (AM-50). It is neither signed nor part of its conversation until
// the owner lets it go; the clock of that conversation waits (AM-40).
func (n *Node) askOutgoing(ctx context.Context, out Outgoing, p permission) (Sent, error) {
	to := n.recipientOf(ctx, out)
	var ask acl.Ask
	err := n.book.Do(ctx, out.key(), func(u *conversations.Unit) (err error) {
		ask, err = n.openOutgoing(ctx, u, out, to, p)
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
		sent.Hint = "ask its owner over another channel whether this is the agent's key, and only then: agentmesh approvals approve " + ask.ID
	}
	return sent, nil
}

func (n *Node) openOutgoing(ctx context.Context, u *conversations.Unit, out Outgoing, to recipient, p permission) (acl.Ask, error) {
	ask, changes, err := n.outgoingQuestion(out, to, p, u.Now)
	if err != nil {
		return acl.Ask{}, err
	}
	u.Add(changes...)
	if !u.New() {
		if u.Conversation().At(u.Now, n.book.IdleFor()) != conversations.Open {
			return acl.Ask{}, wire.ErrConversationClosed
		}
		if err := u.Record(ctx, conversations.Event{Kind: conversations.HoldOpened, At: u.Now, Until: ask.Expires}); err != nil {
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
	if item.State != ItemHeld { // else another question about it waits, and is taken back when this answer leaves
		item.State, item.Ask = ItemHeld, ask.ID
		u.Add(item.change())
	}
	return ask, nil
}

// outgoingResolver carries out what the owner decided about a message of ours.
type outgoingResolver struct{ n *Node }

// Resolve sends the message, or drops it. The block list, the outbound allowlist and the recipient's key are asked
// again.
func (r outgoingResolver) Resolve(ctx context.Context, ask acl.Ask, d acl.Decision) error {
	var body outgoingAsk
	if err := json.Unmarshal(ask.Body, &body); err != nil {
		return fmt.Errorf("decode outgoing message: %w", err)
	}
	out := body.Outgoing
	out.waited = ask.Expires
	if d.Choice != acl.Approve && d.Choice != acl.ApproveAlways {
		return r.drop(ctx, ask, out, d)
	}
	if err := ask.CheckBody(); err != nil {
		return r.n.notShown(ask, err)
	}
	if _, err := r.n.permit(ctx, out, d.Now); err != nil {
		return err
	}
	if err := r.n.stillThem(ctx, out, body.Recipient); err != nil {
		return err
	}
	if err := r.n.sealing(ctx, &out, d.Now); err != nil {
		return err
	}
	if body.Sealed && out.sealTo == "" {
		return ErrCannotSeal.At("you were shown it as sealed")
	}
	changes, err := r.n.acceptKey(ctx, out.To, body.Recipient.Unproven, d.Now)
	if err != nil {
		return err
	}
	p := posting{n: r.n, out: out}
	left, err := p.done(r.n.book.Try(ctx, out.key(), d.Now, func(u *conversations.Unit) error {
		p.unit = u
		u.Add(changes...)
		u.Add(d.Changes...)
		if d.Choice == acl.ApproveAlways {
			u.Add(r.n.recipients.Change(ask.Subject, acl.Approved, d.Now))
		}
		return p.fill(ctx)
	}))
	if err == nil {
		r.n.released.give(ask.ID, left)
	}
	return err
}

// released hands messages of ours that the owner let go to who waits for what becomes of them.
type released struct {
	mu      sync.Mutex
	waiting map[string]chan posted // by question
}

// expect waits for the message of a question; the caller must end it.
func (r *released) expect(ask string) (left <-chan posted, end func()) {
	ch := make(chan posted, 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting == nil {
		r.waiting = make(map[string]chan posted)
	}
	r.waiting[ask] = ch
	return ch, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.waiting[ask] == ch {
			delete(r.waiting, ask)
		}
		select {
		case p := <-ch: // somebody else's decision let it go
			p.letGo()
		default:
		}
	}
}

// give hands a message over, or lets it go where nobody waits.
func (r *released) give(ask string, p posted) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ch := r.waiting[ask]
	if ch == nil {
		p.letGo()
		return
	}
	delete(r.waiting, ask)
	ch <- p // it has room for one, and is given once
}

// drop ends the wait of a message that does not leave. The message that it would have answered is the owner's again.
func (r outgoingResolver) drop(ctx context.Context, ask acl.Ask, out Outgoing, d acl.Decision) error {
	n := r.n
	return n.book.Try(ctx, out.key(), d.Now, func(u *conversations.Unit) error {
		u.Add(d.Changes...)
		if !u.New() {
			if err := u.Record(ctx, conversations.Event{Kind: conversations.HoldEnded, At: u.Now, Until: out.waited}); err != nil {
				return err
			}
		}
		if out.Answers == "" {
			return nil
		}
		item, err := n.Item(ctx, out.Answers)
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

const noteNotSent = "you did not let the answer out that waited"

// ErrAsksFull: too many messages of ours wait for the owner.
var ErrAsksFull = &wire.Error{Code: wire.RateLimited, Status: 429, Retry: true, Message: "too many messages wait for your approval"}

var _ acl.Resolver = outgoingResolver{}
