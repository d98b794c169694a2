package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// ending is the one unit in which a letter ends, with all that its outcome brings.
type ending struct {
	n    *Node
	l    Letter
	unit *conversations.Unit
	name string // of the peer, as its card has it
	sent Sent
	run  *run // of the hook that takes the reply; nil if the inbox does
	seal seal // of the reply
}

// end commits what fill puts into the unit. If the store does not take it, the letter stays in flight: it is sent again,
// and the peer tells the repetition by its id.
func (n *Node) end(ctx context.Context, l Letter, fill func(context.Context, *ending) error) time.Time {
	ctx = context.WithoutCancel(ctx) // the peer has acted: record it even when stopping
	err := n.book.Do(ctx, l.key(), func(u *conversations.Unit) error {
		e := &ending{n: n, l: l, unit: u}
		e.l.InFlight, e.l.Due, e.l.Attempts = false, time.Time{}, l.Attempts+1
		e.l.Ended, e.l.Keep = u.Now.UTC(), conversations.Sooner(u.Now.Add(n.cfg.Retention), u.Conversation().Purge)
		if err := fill(ctx, e); err != nil {
			return err
		}
		reply, tree := e.sent.Reply, e.sent.ReplyTree
		e.sent = e.l.sent()
		e.sent.Reply, e.sent.ReplyTree, e.sent.ReplySealed = reply, tree, e.seal.sealed
		u.Add(e.l.change())
		u.Then(func() {
			n.attempted(e.l, string(e.l.State), e.l.Err.String())
			n.outbox.tell(l.ID, e.sent)
			if e.run != nil {
				n.start(e.run)
			}
		})
		return nil
	})
	if err != nil {
		n.log.Error("store outcome of delivery", "letter", l.ID, "err", err)
		return time.Now().Add(sendPauses[0])
	}
	return time.Time{}
}

// delivered ends a letter that the peer, or somebody who keeps it for the peer, has taken.
func (n *Node) delivered(ctx context.Context, l Letter, d bridge.Delivered) time.Time {
	l.State, l.Status, l.Err, l.Hint = SendDelivered, http.StatusOK, nil, ""
	if d.Queued {
		l.Status, l.Hint = http.StatusAccepted, "it is kept for the peer; the reply comes later"
	}
	return n.end(ctx, l, func(ctx context.Context, e *ending) error {
		if e.unit.New() { // the owner deleted it meanwhile
			return nil
		}
		if err := e.reached(ctx, d); err != nil || d.Reply == nil {
			return err
		}
		seen, err := n.store.Steps().FindReplay(ctx, string(l.To), string(d.Reply.ID), e.unit.Now)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return e.reply(ctx, d)
		case err != nil:
			return err
		case seen.Digest == replyDigest(d):
			return nil // the stored answer to a repetition, which came in before (AM-22): nothing more happens
		}
		e.l.State = SendUnverified // THREATS 4: an id of another message
		e.l.Err = &SendFailure{Code: wire.InvalidSignature, Message: client.ErrReplyUnverified.Error()}
		e.tellOwner("reply-unverified", titleUnverified)
		return nil
	})
}

// reached records that the peer has the message, since when it says by its own clock.
func (e *ending) reached(ctx context.Context, d bridge.Delivered) error {
	since := e.unit.Now
	if d.Reply != nil && !d.Reply.Time.IsZero() {
		since = d.Reply.Time
	}
	return e.unit.Record(ctx, conversations.Event{
		Kind: conversations.Delivered, At: e.unit.Now, ID: e.l.First, Answers: e.l.MessageID, Written: since,
	})
}

const titleUnverified = "an answer could not be verified"

// unverified ends a letter whose answer is not the peer's reply. Nothing of the answer is kept (AM-18).
func (n *Node) unverified(ctx context.Context, l Letter, cause error) time.Time {
	l.State, l.Status = SendUnverified, http.StatusOK
	l.Err = &SendFailure{Code: wire.InvalidSignature, Message: wire.OneLine(cause.Error(), 300)}
	l.Hint = "the message was taken, but what came back cannot be trusted to be the peer's answer"
	return n.end(ctx, l, func(_ context.Context, e *ending) error {
		e.tellOwner("reply-unverified", titleUnverified)
		return nil
	})
}

// undelivered puts a letter off until its next attempt, or ends it (AM-47).
func (n *Node) undelivered(ctx context.Context, l Letter, cause error) time.Time {
	f := failureOf(cause)
	l.Status, l.Err, l.Hint = f.status, f.told, f.hint
	if f.told.Code == wire.InvalidSignature && n.registrar.JustRotated() {
		f.retry, f.processed = true, false // the peer does not know the new key yet
	}
	l.Processed = l.Processed || f.processed
	l.Doubtful = l.Doubtful || f.processed && l.MessageID != l.First
	if _, later := errors.AsType[laterError](cause); errors.Is(cause, errUnknownDelivery) && !later {
		l.State = SendUnknown
		l.Hint = "ask the peer whether it has the message before you send it again"
		return n.end(ctx, l, func(_ context.Context, e *ending) error {
			e.tellOwner("unknown", "it is not known whether a message was delivered")
			return nil
		})
	}
	now := time.Now()
	due := now.Add(pauseAfter(l.Attempts+1, f.after))
	if !f.retry || due.After(l.Created.Add(giveUpAfter)) && n.clock.Reliable() {
		return n.failed(ctx, l)
	}
	l.InFlight, l.Attempts, l.Due = false, l.Attempts+1, due.UTC()
	n.attempted(l, putOff, cause.Error())
	if err := n.store.Records().Apply(context.WithoutCancel(ctx), []store.Change{l.change()}, now); err != nil {
		n.log.Error("store letter", "letter", l.ID, "err", err) // it stays in flight, which is the careful reading
	}
	n.outbox.tell(l.ID, l.sent())
	return due
}

// failed ends a letter for good and tells the owner. The conversation fails with it, unless the peer can still fetch the
// letter (AM-22). In that case it tells the owner only if the letter says more than that a message arrived.
func (n *Node) failed(ctx context.Context, l Letter) time.Time {
	l.State = SendFailed
	title, quiet := "a message could not be delivered", false
	if l.Fetchable {
		title, quiet = "an answer could not be delivered", l.Action == wire.ActionReceived
		l.Hint = strings.TrimSuffix("the peer gets it when it repeats its message; "+l.Hint, "; ")
	}
	return n.end(ctx, l, func(ctx context.Context, e *ending) error {
		if !l.Fetchable {
			if err := e.failConversation(ctx); err != nil {
				return err
			}
		}
		about, silent, changes := n.bridges.undelivered(ctx, e.l)
		e.unit.Add(changes...)
		told := title
		if about != "" {
			told += ": " + about
		}
		if !quiet && !silent {
			e.tellOwner("undelivered", told)
		}
		return nil
	})
}

// failConversation ends the conversation of a letter that cannot be delivered. Later messages in it are not sent either,
// except for a close, so that the peer may learn of the end.
func (e *ending) failConversation(ctx context.Context) error {
	if !e.unit.New() {
		if err := e.unit.Record(ctx, conversations.Event{Kind: conversations.DeliveryFailed, At: e.unit.Now}); err != nil {
			return err
		}
	}
	for after := e.l.ID; after != ""; { // no more than a transcript holds
		followers, next, err := e.n.letters(ctx, waitTerm(e.l.key()), after, 500)
		if err != nil {
			return err
		}
		for _, f := range followers {
			if f.Action == wire.ActionClose {
				continue
			}
			f.State, f.InFlight, f.Due = SendFailed, false, time.Time{}
			f.Err = &SendFailure{Message: "an earlier message of the conversation could not be delivered"}
			f.Ended, f.Keep = e.unit.Now.UTC(), e.unit.Now.Add(e.n.cfg.Retention)
			e.unit.Add(f.change())
		}
		after = next
	}
	return nil
}

// tellOwner adds a notice to the unit.
func (e *ending) tellOwner(kind, title string) {
	notice := e.n.notice(kind, e.l.To, "", e.l.key(), e.unit.Now)
	notice.Title = title
	if e.l.Hint != "" {
		notice.Text += ": " + e.l.Hint
	}
	e.unit.Add(e.n.notices.Change(notice))
}

// reply puts a verified synchronous reply into the unit: conversation, transcript, inbox, agreement, and a record so
// that the same message is not taken a second time when it comes again another way.
func (e *ending) reply(ctx context.Context, d bridge.Delivered) error {
	digest := replyDigest(d)
	opened, seal, note := e.n.unsealReply(d)
	m, action := &opened, opened.Action()
	e.seal, e.name = seal, e.n.nameOf(ctx, e.l)
	lives, err := e.record(ctx, m, action)
	if err != nil {
		return err
	}
	e.unit.Append(store.Entry{MessageID: string(m.ID), At: e.unit.Now, Raw: d.Raw, Digest: digest, Key: seal.key})
	e.sent.Reply, e.sent.ReplyTree = m, m.Tree
	if seal.sealed {
		e.sent.ReplyTree = m.Tree.With("payload", m.Payload)
	}
	if note != "" {
		e.tellOwner(kindUnreadable, noticeTitles[kindUnreadable])
	}
	if action == wire.ActionPending || action == wire.ActionClose && e.l.Action != wire.ActionClose {
		e.unit.Add(e.n.bridges.observe(bridge.Inbound{
			Principal: principal(Outgoing{To: e.l.To, Address: e.l.Address}), Peer: e.l.To, Address: e.l.Address,
			MessageID: m.ID, ConvID: m.Conversation, Intent: m.Intent, Payload: m.Payload, Time: m.Time, Received: e.unit.Now,
			Raw: d.Raw, Digest: digest, Native: m,
		})...)
	}
	if action == wire.ActionPending {
		e.l.Status, e.l.Hint = http.StatusAccepted, "the peer's owner decides; the answer comes later"
	}
	ack, err := e.n.sign(wire.Draft{
		Conversation: e.l.Conversation, To: e.l.To, Time: e.unit.Now, Intent: m.Intent, Payload: received(),
	})
	if err != nil {
		return err
	}
	e.unit.Replay = &store.Replay{
		Sender: string(e.l.To), MessageID: string(m.ID), Digest: digest, Conv: e.l.key(),
		Status: http.StatusOK, Answer: ack.Raw, Expires: e.unit.Now.Add(e.n.replayFor()),
	}
	if !e.receipt(m.Intent, action) {
		item, err := e.item(ctx, m, digest)
		if err != nil {
			return err
		}
		if item.Sealed = seal.sealed; note != "" {
			item.ActionKnown, item.Note = false, note
		}
		if lives {
			e.run = e.n.replyRun(&item, m, e.unit.Conversation())
		}
		if e.run != nil {
			e.unit.Otherwise(e.run.done)
		}
		if e.run == nil && e.unit.Conversation().Unclear == m.ID {
			item.Note = noteUnclear
			e.tellOwner("message", noticeTitles["message"])
		}
		e.unit.Add(item.change())
	}
	if action == wire.ActionPending || note != "" {
		return nil
	}
	return e.concludes(ctx, m)
}

// receipt reports whether an answer tells nothing but that our message arrived, or waits for the peer's owner. The transcript
// has it; the inbox has what somebody may want to read.
func (e *ending) receipt(intent wire.Intent, action string) bool {
	return action == wire.ActionReceived || action == wire.ActionPending || e.l.Action == wire.ActionClose ||
		action != "" && action == e.n.route(intent).Receipts
}

// concludes adds what an accept brings that counts now: ours, because the peer took it, or the reply.
func (e *ending) concludes(ctx context.Context, m *wire.Message) error {
	accept := m.ID
	switch conv := e.unit.Conversation(); {
	case e.l.Action == "accept" && conv.Awaits(e.l.First):
		accept = e.l.First
	case conv.Accept == nil || conv.Accept.By == conversations.Ours:
		return nil
	}
	return e.unit.Record(ctx, conversations.Event{Kind: conversations.AcceptCounts, At: e.unit.Now, ID: accept, Name: e.name})
}

// record records the reply as an event. lives is false where the conversation has ended meanwhile, or where the reply
// is the echo of our close; then it is kept without being one (AM-39).
func (e *ending) record(ctx context.Context, m *wire.Message, action string) (lives bool, err error) {
	if e.l.Action == wire.ActionClose {
		return false, nil
	}
	event := conversations.Event{
		Kind: conversations.Received, At: e.unit.Now, Intent: m.Intent, Payload: m.Payload, Principal: e.unit.Conversation().Principal,
		Sealed: e.seal.sealed, Recipient: e.seal.back, ID: m.ID, Answers: e.l.First, Written: m.Time, Name: e.name,
	}
	if action == wire.ActionClose {
		event.Kind = conversations.ClosedByPeer
	}
	err = e.unit.Record(ctx, event)
	if _, refused := errors.AsType[*wire.Error](err); refused {
		return false, nil
	}
	if err != nil || action == wire.ActionClose {
		return false, err
	}
	if action == wire.ActionPending { // AM-40: its hold suspends our clock as well
		event = conversations.Event{Kind: conversations.HeldByPeer, At: e.unit.Now, Until: e.unit.Now.Add(e.n.cfg.HoldFor), ID: e.l.First}
		return true, e.unit.Record(ctx, event)
	}
	return true, nil
}

// item is the reply as the inbox shows it.
func (e *ending) item(ctx context.Context, m *wire.Message, digest [32]byte) (Item, error) {
	c := e.unit.Conversation()
	standing, err := e.n.rules.Standing(ctx, c.Principal, e.unit.Now)
	if err != nil {
		return Item{}, err
	}
	item := Item{Item: owner.Item{
		ID: newItemID(e.unit.Now), State: ItemNew, Kind: kindReply, Peer: e.l.To, PeerName: e.name, Address: e.l.Address,
		Conversation: e.l.Conversation, MessageID: m.ID, Intent: m.Intent,
		Payload: signing.Canonical(m.Payload, signing.JCS), Verified: bridge.VerifiedSignature, Trust: string(standing),
		At: e.unit.Now, Digest: hexOf(digest), Expires: e.unit.Now.Add(e.n.cfg.Retention),
	}}
	if e.l.Address != "" {
		item.Verified, item.Principal = bridge.VerifiedNone, c.Principal
	}
	item.ActionKnown, err = wire.CheckPayload(m.Intent, m.Payload)
	if err != nil {
		item.ActionKnown, item.Note = false, wire.OneLine(fmt.Sprintf("the reply does not have the shape of its intent: %v", err), 300)
	}
	return item, nil
}

// nameOf returns the name on the peer's card, which is cached right after a delivery.
func (n *Node) nameOf(ctx context.Context, l Letter) string {
	if l.Address != "" {
		return ""
	}
	peer, err := n.cards.Find(ctx, l.To, time.Now())
	if err != nil {
		return ""
	}
	return wire.OneLine(peer.Card.Name, 100)
}

// failure is why an attempt failed, as AM-47 and AM-48 look at it.
type failure struct {
	retry, processed bool
	after            time.Duration
	status           int
	told             *SendFailure
	hint             string
}

func failureOf(err error) failure {
	f := failure{told: &SendFailure{Message: wire.OneLine(err.Error(), 300)}}
	if e, ok := errors.AsType[*client.SendError](err); ok {
		f.retry, f.processed, f.after, f.status, f.hint = e.Retry, e.Processed, e.After, e.Status, e.Hint()
		if e.Refusal != nil {
			f.told = &SendFailure{Code: e.Refusal.Code, Message: e.Refusal.Message}
		}
		return f
	}
	if _, later := errors.AsType[laterError](err); later {
		f.retry = true
	}
	if e, ok := errors.AsType[*client.UnprovenError](err); ok {
		f.hint = e.Hint()
	}
	if errors.Is(err, client.ErrUnknownAgent) {
		f.told.Code, f.hint = wire.AgentUnavailable, "no configured directory lists the agent any more"
	}
	return f
}
