package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/guard"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/work"
)

// deliveryOutcome builds the [conversations.Unit] that ends an outbox entry, with everything that follows from the
// outcome.
type deliveryOutcome struct {
	n     *Node
	entry OutboxEntry
	unit  *conversations.Unit
	name  string // the peer's name, from its card
	sent  owner.Sent
	run   *run // the run that handles the reply; nil if the inbox gets it
	seal  seal // how the reply is sealed

	spent  rules.Bound     // a bound on turns that is used up, found after the store refused a turn
	lifted map[string]bool // bounds that are used up, too, but that the owner lifted
	handed Item            // the item of run
}

// endEntry ends an outbox entry in one unit, to which fill adds the outcome. If the unit cannot
// be stored, the entry stays in flight and is tried again; the peer recognizes the repeat by the message id.
func (n *Node) endEntry(ctx context.Context, e OutboxEntry, fill func(context.Context, *deliveryOutcome) error) error {
	ctx = context.WithoutCancel(ctx) // store the outcome even if the node stops
	var handed Item
	spent, lifted := rules.Bound(""), map[string]bool{}
	end := func(u *conversations.Unit) error {
		o := &deliveryOutcome{n: n, entry: e, unit: u, spent: spent, lifted: lifted}
		o.entry.InFlight, o.entry.Due, o.entry.Attempts = false, time.Time{}, e.Attempts+1
		o.entry.Ended, o.entry.Keep = u.Now.UTC(), conversations.Sooner(u.Now.Add(n.cfg.Retention), u.Conversation().Purge)
		err := fill(ctx, o)
		if handed = o.handed; err != nil {
			return err
		}
		reply, tree := o.sent.Reply, o.sent.ReplyTree
		o.sent = o.entry.sent()
		o.sent.Reply, o.sent.ReplyTree, o.sent.ReplySealed = reply, tree, o.seal.sealed
		u.Add(o.entry.change())
		u.Then(func() {
			n.logDelivery(o.entry, string(o.entry.State), o.entry.Err.String())
			n.outbox.waiters.Give(e.ID, o.sent)
			if o.run != nil {
				n.start(o.run)
			}
		})
		return nil
	}
	err := n.book.Do(ctx, e.key(), end)
	if errors.Is(err, store.ErrQuota) && handed.ID != "" { // the agent has no turn left for the reply
		if spent, lifted, err = n.turns.findSpent(ctx, handed, time.Now()); err == nil {
			err = n.book.Do(ctx, e.key(), end)
		}
	}
	if err != nil {
		return fmt.Errorf("store outcome of delivery: %w", err)
	}
	return nil
}

// endWithSuccess ends an entry that the peer accepted, or that a mailbox or relay stored for the peer.
func (n *Node) endWithSuccess(ctx context.Context, e OutboxEntry, d bridge.Delivered) error {
	e.State, e.Status, e.Err, e.Hint = owner.SendDelivered, http.StatusOK, nil, ""
	if d.Queued {
		e.Status, e.Hint = http.StatusAccepted, "it is kept for the peer; the reply comes later"
	}
	return n.endEntry(ctx, e, func(ctx context.Context, o *deliveryOutcome) error {
		if o.unit.IsNew() { // the owner deleted the conversation meanwhile
			return nil
		}
		if err := o.recordArrival(d); err != nil || d.Reply == nil {
			return err
		}
		seen, err := n.store.Steps().FindReplay(ctx, string(e.To), string(d.Reply.ID), o.unit.Now)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return o.receiveReply(ctx, d)
		case err != nil:
			return err
		case seen.Digest == replyDigest(d):
			return nil // the peer repeated a reply that was stored before (AM-22)
		}
		o.entry.State = owner.SendUnverified // THREATS 4: the reply reuses the id of another message
		o.entry.Err = &owner.SendFailure{Code: wire.InvalidSignature, Message: client.ErrReplyUnverified.Error()}
		o.addNotice("reply-unverified", titleUnverified)
		return nil
	})
}

// recordArrival records that the peer, or a mailbox for the peer, has the message. The time of arrival is the time in
// the peer's reply, or now.
func (o *deliveryOutcome) recordArrival(d bridge.Delivered) error {
	arrived := o.unit.Now
	if d.Reply != nil && !d.Reply.Time.IsZero() {
		arrived = d.Reply.Time
	}
	return o.unit.Record(conversations.Event{
		Kind: conversations.Delivered, At: o.unit.Now, ID: o.entry.First, Answers: o.entry.MessageID, Written: arrived,
	})
}

const titleUnverified = "an answer could not be verified"

// endWithBadReply ends an entry whose answer is not a valid reply of the peer. The answer is discarded (AM-18).
func (n *Node) endWithBadReply(ctx context.Context, e OutboxEntry, cause error) error {
	e.State, e.Status = owner.SendUnverified, http.StatusOK
	e.Err = &owner.SendFailure{Code: wire.InvalidSignature, Message: wire.OneLine(cause.Error(), 300)}
	e.Hint = "the peer accepted the message, but its answer cannot be trusted"
	return n.endEntry(ctx, e, func(_ context.Context, o *deliveryOutcome) error {
		o.addNotice("reply-unverified", titleUnverified)
		return nil
	})
}

// retryOrEnd postpones an entry to its next attempt, or ends it (AM-47). If the attempt lacked
// something, the entry waits for it in memory.
func (n *Node) retryOrEnd(ctx context.Context, e OutboxEntry, cause error) (work.Later, error) {
	f := failureOf(cause)
	e.Status, e.Err, e.Hint, e.Awaits = f.Status, f.reported, f.hint, f.Awaits
	_, clockOff := f.ClockOff()
	if clockOff { // the peer has not processed it; with the right time, the message gets another signature
		f.Retry, e.Misdated = true, true
	}
	if f.reported.Code == wire.InvalidSignature && n.registrar.IsRotationRecent() {
		f.Retry, f.Processed = true, false // the peer may not know the new key yet
	}
	e.Processed = e.Processed || f.Processed
	e.Doubtful = e.Doubtful || f.Processed && e.MessageID != e.First // the peer may have processed a resend
	if _, retryable := errors.AsType[retryableError](cause); errors.Is(cause, errUnknownDelivery) && !retryable {
		e.State = owner.SendUnknown
		e.Hint = "ask the peer whether it has the message before you send it again"
		return work.Later{}, n.endEntry(ctx, e, func(_ context.Context, o *deliveryOutcome) error {
			o.addNotice("unknown", "it is not known whether a message was delivered")
			return nil
		})
	}
	now, attempts := time.Now(), e.Attempts+1
	due := now.Add(pauseAfter(attempts, f.After))
	if clockOff {
		due = now.Add(min(pauseAfter(attempts, 0), tellAfter))
	}
	if f.Unsent { // nothing left the node, so this attempt does not count
		due, attempts = now.Add(pauseAfter(0, f.After)), e.Attempts
	}
	// An entry ends after a final failure, or if it is too old. A wrong clock must not end it.
	if !f.Retry || !f.Unsent && due.After(e.Created.Add(giveUpAfter)) && n.clock.Reliable() {
		return work.Later{}, n.endWithFailure(ctx, e)
	}
	e.InFlight, e.Attempts, e.Due = false, attempts, due.UTC()
	n.logDelivery(e, outcomePostponed, cause.Error())
	var changes []store.Change
	if isReceipt := e.Fetchable && e.Action == wire.ActionReceived; !e.Told && !f.Unsent && !isReceipt && due.Sub(e.Created) >= tellAfter {
		e.Told = true
		notice := n.notice("delayed", e.To, "", e.key(), now)
		notice.Title = "a message has not been delivered yet"
		why := e.Err.String()
		if f.Refusal != nil { // the peer chose its code and its words
			why = fmt.Sprintf("the peer answers HTTP %d", f.Status)
		}
		notice.Text += ": " + cmp.Or(e.Hint, why)
		changes = append(changes, n.notices.Change(notice))
	}
	if err := n.store.Records().Apply(context.WithoutCancel(ctx), append(changes, e.change()), now); err != nil {
		return work.Later{}, fmt.Errorf("store outbox entry: %w", err) // the stored entry stays in flight, which is safe
	}
	n.outbox.waiters.Give(e.ID, e.sent())
	if e.Awaits != "" {
		return work.Later{Gate: e.Awaits, Pause: time.Until(due)}, nil
	}
	return work.Later{}, nil
}

// endWithFailure ends an entry that the node gives up on. The conversation fails too, unless the peer can still fetch
// the message by repeating its own message (AM-22). The owner gets a notice, unless the message is a receipt that the
// peer can fetch, or a bridge suppresses the notice.
func (n *Node) endWithFailure(ctx context.Context, e OutboxEntry) error {
	e.State = owner.SendFailed
	title, quiet := "a message could not be delivered", false
	if e.Fetchable {
		title, quiet = "an answer could not be delivered", e.Action == wire.ActionReceived
		e.Hint = strings.TrimSuffix("the peer gets the answer when it repeats its message; "+e.Hint, "; ")
	}
	return n.endEntry(ctx, e, func(ctx context.Context, o *deliveryOutcome) error {
		if !e.Fetchable {
			if err := o.failConversation(ctx); err != nil {
				return err
			}
		}
		about, silent, changes := n.bridges.reportFailure(ctx, o.entry)
		o.unit.Add(changes...)
		text := title
		if about != "" {
			text += ": " + about
		}
		if !quiet && !silent {
			o.addNotice("undelivered", text)
		}
		return nil
	})
}

// failConversation ends the conversation of an entry that cannot be delivered, and withdraws its questions to the owner.
// Later messages in it fail as well, except a close, by which the peer may still learn of the end.
func (o *deliveryOutcome) failConversation(ctx context.Context) error {
	_, err := o.n.withdrawAsks(ctx, o.unit, nil)
	if err == nil && !o.unit.IsNew() {
		err = o.unit.Record(conversations.Event{Kind: conversations.DeliveryFailed, At: o.unit.Now})
	}
	if err != nil {
		return err
	}
	for later, err := range o.n.allEntries(ctx, waitTerm(o.entry.key())) { // bounded by the size of a transcript
		if err != nil {
			return err
		}
		if later.ID <= o.entry.ID || later.Action == wire.ActionClose {
			continue
		}
		later.State, later.InFlight, later.Due = owner.SendFailed, false, time.Time{}
		later.Err = &owner.SendFailure{Message: "an earlier message of the conversation could not be delivered"}
		later.Ended, later.Keep = o.entry.Ended, o.entry.Keep
		o.unit.Add(later.change())
		o.unit.Then(func() { o.n.outbox.waiters.Give(later.ID, later.sent()) })
	}
	return nil
}

func (o *deliveryOutcome) addNotice(kind, title string) {
	notice := o.n.notice(kind, o.entry.To, "", o.entry.key(), o.unit.Now)
	notice.Title = title
	if o.entry.Hint != "" {
		notice.Text += ": " + o.entry.Hint
	}
	o.unit.Add(o.n.notices.Change(notice))
}

// receiveReply adds a verified synchronous reply to the unit: conversation, transcript, inbox and agreement. It also
// stores a replay record, so that the reply is not accepted a second time if it also arrives as a message.
func (o *deliveryOutcome) receiveReply(ctx context.Context, d bridge.Delivered) error {
	digest := replyDigest(d)
	opened, seal, note := o.n.unsealReply(d)
	m, action := &opened, opened.Action()
	o.seal, o.name = seal, o.peerName(ctx)
	isOpen, err := o.recordReply(ctx, m, action)
	if err != nil {
		return err
	}
	o.unit.Append(store.Entry{MessageID: string(m.ID), At: o.unit.Now, Raw: d.Raw, Digest: digest, Key: seal.key})
	o.entry.Reply = m.ID
	o.sent.Reply, o.sent.ReplyTree = m, m.Tree
	if seal.sealed {
		o.sent.ReplyTree = m.Tree.With("payload", m.Payload)
	}
	if note != "" {
		o.addNotice(kindUnreadable, noticeTitles[kindUnreadable])
	}
	// The bridges observe that our message waits, or that the peer closed the conversation.
	if action == wire.ActionPending || action == wire.ActionClose && o.entry.Action != wire.ActionClose {
		o.unit.Add(o.n.bridges.observe(bridge.Inbound{
			Principal: principal(Outgoing{To: o.entry.To, Address: o.entry.Address}), Peer: o.entry.To, Address: o.entry.Address,
			MessageID: m.ID, ConvID: m.Conversation, Intent: m.Intent, Payload: m.Payload, Time: m.Time, Received: o.unit.Now,
			Raw: d.Raw, Digest: digest, Native: m,
		})...)
	}
	if action == wire.ActionPending {
		o.entry.Status, o.entry.Hint = http.StatusAccepted, "the peer's owner decides; the answer comes later"
	}
	ack, err := o.n.sign(wire.Draft{
		Conversation: o.entry.Conversation, To: o.entry.To, Time: o.unit.Now, Intent: m.Intent, Payload: receiptPayload(),
	})
	if err != nil {
		return err
	}
	o.unit.Replay = &store.Replay{
		Sender: string(o.entry.To), MessageID: string(m.ID), Digest: digest, Conv: o.entry.key(),
		Status: http.StatusOK, Answer: ack.Raw, Expires: conversations.Sooner(o.unit.Now.Add(o.n.replayFor()), o.unit.Conversation().Purge),
	}
	if err := o.hand(ctx, m, digest, isOpen, note); err != nil {
		return err
	}
	if action == wire.ActionPending || note != "" {
		return nil
	}
	return o.countAccept(ctx, m)
}

// hand gives a reply to its hook or to the inbox, as [rules.Hear] decides. note is why it could not be unsealed, or "".
func (o *deliveryOutcome) hand(ctx context.Context, m *wire.Message, digest [32]byte, isOpen bool, note string) error {
	c, route := o.unit.Conversation(), o.n.route(m.Intent)
	known, err := wire.CheckPayload(m.Intent, m.Payload)
	switch {
	case note != "":
		known = false
	case err != nil:
		known, note = false, wire.OneLine(fmt.Sprintf("the reply does not have the shape of its intent: %v", err), 300)
	}
	do, bound := rules.Hear(c, route.ruled(), rules.Reply{
		Answered: rules.Answered{
			ID: m.ID, Intent: m.Intent, Payload: m.Payload, Reply: true, Confirms: o.entry.Action == "accept" && c.Awaits(o.entry.First),
			Unjudged: o.isUnjudged(m),
		},
		To: o.entry.Action, Receipt: route.Receipts, Open: isOpen, Readable: known,
		Turns: rules.Turns{Autonomy: o.n.turns.bounds, Spent: o.spent},
	}, o.unit.Now)
	if do == rules.Drop {
		return nil
	}
	item, err := o.newItem(ctx, m, digest)
	if err != nil {
		return err
	}
	item.ActionKnown, item.Note = known, note
	switch do {
	case rules.Read:
		item.State = owner.ItemRead
	case rules.Hold:
		err = o.holdReply(ctx, &item, bound)
	case rules.Judge:
		err = o.runHook(&item, m, judgeRoute)
	case rules.Clarify:
		err = o.runHook(&item, m, clarifyRoute)
	case rules.Run:
		err = o.runHook(&item, m, route)
	}
	if err != nil {
		return err
	}
	if item.State == owner.ItemNew && c.IsUnclear(m.ID) { // an ambiguous accept, left to the owner
		item.Note = noteUnclear
		o.addNotice("message", noticeTitles["message"])
	}
	o.unit.Add(item.change())
	return nil
}

// runHook makes the unit run the hook of route for the reply, and marks item as running, unless the queue of runs is
// full: then the reply stays in the inbox. If another process must run the hook, item waits for that process. The hook's
// answer leaves through the outbox.
func (o *deliveryOutcome) runHook(item *Item, m *wire.Message, route Route) error {
	freePlace, err := o.n.runs.Reserve(item.turn(route))
	if err != nil {
		return nil
	}
	o.handed = *item
	if err := o.n.turns.take(o.unit, *item, route, o.lifted); err != nil {
		freePlace()
		return err
	}
	item.Route = route.Name
	if !o.n.claimRun(item) {
		freePlace()
		return nil
	}
	o.run = &run{n: o.n, key: item.key(), itemID: item.ID, message: *m, payload: m.Payload, route: route, freePlace: freePlace, unattended: true, turn: item.turn(route)}
	o.unit.Otherwise(freePlace) // if the unit is not committed
	return nil
}

// holdReply asks the owner at a bound on turns. If too many such questions wait, the reply goes to the inbox.
func (o *deliveryOutcome) holdReply(ctx context.Context, item *Item, bound rules.Bound) error {
	a := acceptance{n: o.n, key: item.key(), now: o.unit.Now, verdict: rules.Verdict{Waits: []rules.Reason{rules.ByTurns}, Bound: bound}}
	a.in.Peer, a.state = item.Peer, rules.State{Now: o.unit.Now, Conv: o.unit.Conversation(), Turns: rules.Turns{Autonomy: o.n.turns.bounds}}
	ask, changes, err := a.openAsk(ctx, *item, rules.WordsFor(a.verdict, a.state, a.in))
	if errors.Is(err, store.ErrQuota) {
		return nil
	}
	if err != nil {
		return err
	}
	item.hold(ask)
	o.n.countBound(o.unit, ask)
	o.unit.Add(changes...)
	if ask.Behind == "" {
		notice := o.n.notice("approval", item.Peer, item.PeerName, item.key(), o.unit.Now)
		notice.Ask = ask.ID
		o.unit.Add(o.n.notices.Change(notice))
	}
	return o.unit.Record(conversations.Event{Kind: conversations.HoldOpened, At: o.unit.Now, Until: ask.Expires, ID: item.MessageID})
}

// countAccept records that an accept counts now: our accept, which the peer has answered, or the accept in the reply.
func (o *deliveryOutcome) countAccept(ctx context.Context, m *wire.Message) error {
	conv, confirmed := o.unit.Conversation(), wire.MessageID("")
	if o.entry.Action == "accept" && conv.Awaits(o.entry.First) {
		confirmed = o.entry.First
	}
	return o.n.agree(ctx, o.unit, rules.Counts(conv, confirmed, m.ID, ""), m.Time, o.name, o.entry.ID)
}

// recordReply adds the reply to the conversation. isOpen reports whether the conversation was open when the reply left. A
// later reply, such as the echo of our close, is not an event (AM-39).
func (o *deliveryOutcome) recordReply(ctx context.Context, m *wire.Message, action string) (isOpen bool, err error) {
	if o.entry.Action == wire.ActionClose {
		return false, nil
	}
	event := conversations.Event{
		Kind: conversations.Received, At: o.unit.Now, Intent: m.Intent, Payload: m.Payload, Principal: o.unit.Conversation().Principal,
		Sealed: o.seal.sealed, Recipient: o.seal.answerTo, ID: m.ID, Answers: o.entry.First, Written: m.Time, Direct: true, Name: o.name,
		Unjudged: o.isUnjudged(m),
	}
	if action == wire.ActionClose {
		event.Kind = conversations.ClosedByPeer
	}
	err = o.n.record(ctx, o.unit, event)
	if _, refused := errors.AsType[*wire.Error](err); refused {
		return false, nil
	}
	if err != nil || action == wire.ActionClose {
		return false, err
	}
	if action == wire.ActionPending { // AM-40
		event = conversations.Event{Kind: conversations.HeldByPeer, At: o.unit.Now, Until: o.unit.Now.Add(o.n.cfg.HoldFor), ID: o.entry.First}
		return true, o.unit.Record(event)
	}
	return true, nil
}

// isUnjudged reports whether the guard judges the reply before the owner's agent sees it.
func (o *deliveryOutcome) isUnjudged(m *wire.Message) bool {
	return o.n.cfg.Guard != nil && o.n.cfg.Guard.Judges(guard.In) && rules.HasText(m.Payload)
}

func (o *deliveryOutcome) newItem(ctx context.Context, m *wire.Message, digest [32]byte) (Item, error) {
	c := o.unit.Conversation()
	standing, err := o.n.rules.Standing(ctx, c.Principal, o.unit.Now)
	if err != nil {
		return Item{}, err
	}
	item := Item{Item: owner.Item{
		ID: newItemID(o.unit.Now), State: owner.ItemNew, Kind: kindReply, Peer: o.entry.To, PeerName: o.name, Address: o.entry.Address,
		Conversation: o.entry.Conversation, MessageID: m.ID, Intent: m.Intent,
		Payload: signing.Canonical(m.Payload, signing.JCS), Verified: bridge.VerifiedSignature, Trust: string(standing),
		At: o.unit.Now, Digest: hexOf(digest), Expires: conversations.Sooner(o.unit.Now.Add(o.n.cfg.Retention), c.Purge),
		Sealed: o.seal.sealed, Unjudged: o.isUnjudged(m),
	}, Agrees: c.Deal(m.Intent).IsPlainAccept(m.ID)}
	if !standing.Known() && !c.WroteFirst {
		item.Origin = "id:" + item.subject()
	}
	if o.entry.Address != "" {
		item.Verified, item.Principal = bridge.VerifiedNone, c.Principal
	}
	return item, nil
}

// peerName returns the name on the peer's card, or "". After a delivery the card is in the cache.
func (o *deliveryOutcome) peerName(ctx context.Context) string {
	if o.entry.Address != "" {
		return ""
	}
	peer, err := o.n.cards.Find(ctx, o.entry.To, time.Now())
	if err != nil {
		return ""
	}
	return wire.OneLine(peer.Card.Name, 100)
}

// failure classifies why an attempt failed, as AM-47 and AM-48 require.
type failure struct {
	client.SendError
	reported *owner.SendFailure // what the owner sees
	hint     string
}

func failureOf(err error) failure {
	f := failure{reported: &owner.SendFailure{Message: wire.OneLine(err.Error(), 300)}}
	if e, ok := errors.AsType[*client.SendError](err); ok {
		f.SendError, f.hint = *e, e.Hint()
		if e.Refusal != nil {
			f.reported = &owner.SendFailure{Code: e.Refusal.Code, Message: e.Refusal.Message}
		}
		return f
	}
	if _, retryable := errors.AsType[retryableError](err); retryable {
		f.Retry = true
	}
	if e, ok := errors.AsType[*client.UnprovenError](err); ok {
		f.hint = e.Hint()
	}
	if errors.Is(err, client.ErrUnknownAgent) {
		f.reported.Code, f.hint = wire.AgentUnavailable, "no configured directory lists the agent any more"
	}
	return f
}
