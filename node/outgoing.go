package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// OutboundPolicy decides to whom our side may write, and which messages the owner sees first (AM-50). It applies to
// everybody on our side who sends: the owner's commands, an agent that uses them, hooks and their answers, bridges. It
// does not apply to messages of the protocol itself: receipts, the echo of a close, and the refusal that the owner
// decided on. The zero value permits every message that does not commit the owner (AM-31).
type OutboundPolicy struct {
	// Mode is for recipients what access.mode is for senders. Empty means allowlist if Allow has entries, else open.
	Mode    acl.Mode
	Allow   []string // agent ids and foreign addresses
	Seal    Sealing  // empty: SealOff
	Approve []string // patterns of intents (see [acl.Match]) that wait for the owner
}

func (p OutboundPolicy) mode() acl.Mode {
	switch {
	case p.Mode != "":
		return p.Mode
	case len(p.Allow) > 0:
		return acl.Allowlist
	}
	return acl.Open
}

func (p OutboundPolicy) isListed(out Outgoing) bool {
	return slices.Contains(p.Allow, principal(out)) || slices.Contains(p.Allow, string(out.To))
}

// permit applies the owner's rules to a message that somebody on our side wants to send. Every such message passes
// permit before it leaves. The error is one of [rules.Leave], or an error of the store.
func (n *Node) permit(ctx context.Context, out Outgoing, now time.Time) (p rules.Permission, err error) {
	recipient, policy := principal(out), n.cfg.Outbound
	d := rules.Departure{
		Intents: []wire.Intent{out.Intent}, Payload: out.Payload, Unproven: out.unproven != nil,
		Mode: policy.mode(), Listed: policy.isListed(out), Approve: policy.Approve, Policy: n.outgoingPolicy(out.Via),
	}
	if out.answered != "" {
		d.Intents = append(d.Intents, out.answered)
	}
	for _, intent := range d.Intents {
		d.Handled = append(d.Handled, n.route(intent).Handler != nil)
	}
	if d.Standing, err = n.rules.Standing(ctx, recipient, now); err != nil {
		return p, err
	}
	if d.Asks() {
		if d.Remembered, err = n.recipients.Standing(ctx, recipient, now); err != nil {
			return p, err
		}
	}
	if d.Spent, err = n.spentForAgent(ctx, out, now); err != nil {
		return p, err
	}
	if d.Appointment, err = n.appointment(ctx, out, d.Policy, now); err != nil {
		return p, err
	}
	return rules.Leave(d)
}

// countSent adds a message that left without a question to the sums of the audit log.
func (n *Node) countSent(out Outgoing, p rules.Permission) {
	n.audit.Count(acl.AuditEntry{At: time.Now(), Kind: acl.AuditSent, Subject: principal(out), Rule: p.Rule, Note: "via " + out.Via})
}

// recipientInfo is what the owner sees about the recipient of a message.
type recipientInfo struct {
	Name        string    `json:"name,omitempty"` // from its card: untrusted text
	Endpoint    string    `json:"endpoint,omitempty"`
	Directory   string    `json:"directory,omitempty"` // the directory that lists it; empty if the owner gave the card
	Fingerprint string    `json:"fingerprint,omitempty"`
	Pinned      time.Time `json:"pinned,omitzero"`    // when we first saw its key; zero: not yet
	KeyProof    time.Time `json:"key_proof,omitzero"` // when it proved to the directory that it has the key
	KeyChanged  time.Time `json:"key_changed,omitzero"`
	ID          string    `json:"id,omitempty"` // "derived": the id is computed from the key
	Foreign     bool      `json:"foreign,omitempty"`
	Error       string    `json:"error,omitempty"` // why some fields are not known
	// Unproven is the key that the owner's approval would accept as the recipient's.
	Unproven *bridge.UnprovenKey `json:"unproven,omitempty"`
}

// recordTime bounds the request for the recipient's record in a directory.
const recordTime = 5 * time.Second

// lookUpRecipient returns what the owner sees about the recipient. It makes network calls: no step of the store may be open.
func (n *Node) lookUpRecipient(ctx context.Context, out Outgoing) recipientInfo {
	if out.Address != "" {
		return recipientInfo{Foreign: true}
	}
	peer, unproven, err := n.findRecipient(ctx, out.To)
	if err != nil {
		return recipientInfo{Error: wire.OneLine(err.Error(), 200)}
	}
	r := recipientInfo{
		Unproven: unproven,
		Name:     wire.OneLine(peer.Card.Name, 100), Endpoint: wire.OneLine(peer.Card.Endpoint, 300), Directory: peer.Directory,
		Fingerprint: peer.Key.Fingerprint(), Pinned: peer.Pinned.UTC(),
	}
	if out.To.HasDerivedShape() && peer.Unproven == nil {
		r.ID = "derived"
	}
	i := slices.IndexFunc(n.cfg.Directories, func(d *client.Directory) bool { return d.Base == peer.Directory })
	if i < 0 {
		return r
	}
	ctx, cancel := context.WithTimeout(ctx, recordTime)
	defer cancel()
	record, err := n.cfg.Directories[i].Record(ctx, out.To)
	if err != nil {
		r.Error = "the directory does not say whether the key was proven"
		return r
	}
	v := record.Verification
	if v.Key != nil {
		r.KeyProof = v.Key.UTC()
	}
	if v.KeyChangedAt != nil {
		r.KeyChanged = v.KeyChangedAt.UTC()
	}
	return r
}

// checkRecipientKey returns an error if the recipient no longer has the key that the owner was shown, or if its card
// cannot be found.
func (n *Node) checkRecipientKey(ctx context.Context, out Outgoing, shown recipientInfo) error {
	if out.Address != "" || shown.Fingerprint == "" {
		return nil
	}
	peer, _, err := n.findRecipient(ctx, out.To)
	switch {
	case errors.Is(err, client.ErrUnknownAgent):
		return ErrNoRecipient
	case err != nil:
		return wire.ErrUnavailable.Because(err)
	case peer.Key.Fingerprint() != shown.Fingerprint:
		return ErrRecipientChanged
	}
	return nil
}

// ErrOtherKey means that another key of the agent was accepted after the owner was asked about this one.
var ErrOtherKey = &wire.Error{
	Code: wire.InvalidSignature, Status: http.StatusConflict, Message: "another key of this agent was accepted meanwhile; reject this question",
}

// unprovenKeyOf returns the key of a peer that the owner must accept first, or nil.
func unprovenKeyOf(peer client.Peer) *bridge.UnprovenKey {
	if !peer.IsDoubtful() {
		return nil
	}
	return &bridge.UnprovenKey{
		Fingerprint: peer.Key.Fingerprint(), PublicKey: peer.Card.PublicKey, Directory: peer.Directory,
		Why: (&client.UnprovenError{Peer: peer}).Error(),
	}
}

// findRecipient returns the card of an agent. If the owner must accept the key on the card first, it returns that key,
// too.
func (n *Node) findRecipient(ctx context.Context, id wire.AgentID) (client.Peer, *bridge.UnprovenKey, error) {
	peer, err := n.cards.Find(ctx, id, time.Now())
	if e, ok := errors.AsType[*client.UnprovenError](err); ok {
		if key := unprovenKeyOf(e.Peer); key != nil {
			return e.Peer, key, nil
		}
	}
	return peer, nil, err
}

// pinChanges returns the changes that pin the key that the owner was shown, if any, or else keep the pinned key, if keep
// is set.
func (n *Node) pinChanges(ctx context.Context, agent wire.AgentID, shown *bridge.UnprovenKey, keep bool, now time.Time) ([]store.Change, error) {
	pin := client.Pin{Agent: agent}
	switch {
	case shown != nil:
		pin.Fingerprint, pin.PublicKey, pin.Directory = shown.Fingerprint, shown.PublicKey, shown.Directory
	case !keep:
		return nil, nil
	}
	changes, err := n.cards.PinChanges(ctx, pin, now)
	if errors.Is(err, client.ErrOtherKey) {
		return nil, ErrOtherKey
	}
	return changes, err
}

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
	if p.Reason != "" {
		shown = shown.With("reason", wire.Text(p.Reason))
		ask.Body = shown.JSON()
	}
	ask.ID, ask.Subject, ask.Rule, ask.Hash = acl.NewAskID(ask.Created), principal(out), p.Rule, hexOf(signing.Digest(shown))
	ask.Expires, ask.Choices = ask.Created.Add(n.cfg.HoldFor), []acl.Choice{acl.Approve, acl.Reject}
	if p.AllowAlways {
		ask.Choices = []acl.Choice{acl.Approve, acl.ApproveAlways, acl.Reject}
	}
	slot := acl.Slot{Key: "outgoing/" + ask.ID, Term: "outgoing", Max: maxOutgoingAsks}
	if p.Bound != "" { // the owner decides first whether the agent goes on, so others are refused meanwhile
		slot.Term, slot.Max = "outgoing/"+out.asItem("").boundSlot(p.Bound).Key, 1
		ask.Choices = []acl.Choice{acl.Approve, acl.ApproveConversation, acl.Reject}
	}
	if p.Reason == noteNoVerdict && ask.Kind == owner.AskOutgoing {
		ask.Choices = append(ask.Choices, acl.AskAgain)
	}
	ask, changes := n.asks.Open(ask, slot)
	notice := n.notice("outgoing", out.To, name, ask.Conv, ask.Created)
	notice.Ask = ask.ID
	return ask, append(changes, n.notices.Change(notice)), nil
}

// askOutgoing asks the owner about a message of ours (AM-50). Until the owner approves it, the message is neither
// signed nor part of its conversation. Meanwhile the idle time of the conversation does not run (AM-40).
func (n *Node) askOutgoing(ctx context.Context, out Outgoing, p rules.Permission) (owner.Sent, error) {
	to := n.lookUpRecipient(ctx, out)
	var ask acl.Ask
	err := n.book.Do(ctx, out.key(), func(u *conversations.Unit) (err error) {
		ask, err = n.openOutgoingAsk(ctx, u, out, to, p)
		u.Add(out.repeat.changes(owner.Sent{Conversation: out.Conv, State: owner.SendHeld, Ask: ask.ID}, "", u.Now)...)
		return err
	})
	if errors.Is(err, store.ErrQuota) {
		return owner.Sent{}, ErrAsksFull
	}
	if err != nil {
		return owner.Sent{}, err
	}
	sent := owner.Sent{Conversation: out.Conv, State: owner.SendHeld, Ask: ask.ID, Hint: "it waits for the owner: agentmesh approvals show " + ask.ID}
	if out.unproven != nil {
		sent.Err = &owner.SendFailure{Message: out.unproven.Why}
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
	n.countBound(u, ask)
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
	if item.State != owner.ItemHeld {
		item.hold(ask)
		u.Add(item.change())
	}
	return ask, nil
}

// resolve sends or drops the message. Before it sends, it checks the block list, the allowlist and the recipient's key
// again.
func (q outgoingAsk) resolve(ctx context.Context, n *Node, ask acl.Ask, d acl.Decision) error {
	out := q.Outgoing
	out.askExpires, out.proven = ask.Expires, q.Recipient.Fingerprint != ""
	if !d.Choice.Approves() {
		return q.drop(ctx, n, ask, d)
	}
	if err := ask.CheckBody(); err != nil {
		return n.refuseNotShown(ask, err)
	}
	if _, err := n.permit(ctx, out, d.Now); err != nil {
		return err
	}
	if d.Choice == acl.AskAgain {
		if why := n.judgeOut(ctx, out); why != "" {
			return owner.Fault(http.StatusConflict, why, "")
		}
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
	changes, err := n.pinChanges(ctx, out.To, q.Recipient.Unproven, false, d.Now)
	if err != nil {
		return err
	}
	p := posting{queuedMessage: queuedMessage{n: n, out: out}, approved: true}
	queued, err := p.result(n.book.Try(ctx, out.key(), d.Now, func(u *conversations.Unit) error {
		p.unit = u
		u.Add(changes...)
		u.Add(d.Changes...)
		bound, isMore := strings.CutPrefix(ask.Rule, rules.Bound("").Rule())
		if err := n.turns.grant(ctx, u, out.asItem(""), rules.Bound(bound), isMore, d.Choice == acl.ApproveConversation); err != nil {
			return err
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
		if err == nil && item.State == owner.ItemHeld && item.Ask == ask.ID {
			item.State, item.Note, item.Woken = owner.ItemNew, noteNotSent, time.Time{}
			u.Add(item.change())
		}
		return nil
	})
}

// noteNotSent is the note on an inbox item whose answer the owner did not approve.
const noteNotSent = "you did not approve the answer that waited"

// ErrAsksFull means that too many of our messages wait for the owner.
var ErrAsksFull = &wire.Error{Code: wire.RateLimited, Status: 429, Retry: true, Message: "too many messages wait for your approval"}
