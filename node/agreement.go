package node

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/work"
)

// agree records that an accept counts now: its recipient has answered it (AM-88). accept may be empty, see
// [rules.Counts]. If that makes an agreement, agree adds the notice and the calendar entry of an agreed event (AM-36). If
// we opened the conversation, agree also adds our close, or a record to close it when nothing in it is open (AM-90). written
// is when the answer was written, name the peer's name, and settles the item or outbox entry that the unit ends.
func (n *Node) agree(ctx context.Context, u *conversations.Unit, accept wire.MessageID, written time.Time, name, settles string) error {
	if accept == "" {
		return nil
	}
	before := u.Conversation().Agreed(accept)
	err := u.Record(conversations.Event{Kind: conversations.AcceptCounts, At: u.Now, ID: accept, Written: written, Name: name})
	conv := u.Conversation()
	agreed := conv.Agreed(accept)
	if err != nil || agreed == before {
		return err
	}
	peer := wire.AgentID(conv.Key.Peer)
	notice := n.notice(notify.Agreed, peer, name, conv.Key, u.Now)
	notice.Title, notice.Text = agreedText(*agreed, name)
	if by := agreed.Decided(); by != "" {
		notice.Text = "agreed " + by + ": " + notice.Text // before the peer's words
	}
	u.Add(n.notices.Change(notice))
	if e, ok := calendar.AgreedEvent(*agreed, conv.Key.Peer, conv.Key.ID, cmp.Or(name, string(peer)), u.Now); ok {
		e.Address = conv.Address
		u.Add(n.cfg.Agreed.Add(e))
	}
	if !conv.Mine || conv.State != conversations.Open {
		return nil
	}
	due := closing{Key: conv.Key, Intent: agreed.Intent, By: u.Now.Add(closeWithin).UTC()}
	if busy, err := n.isBusy(ctx, u, settles); busy || err != nil {
		u.Add(due.change())
		return err
	}
	return n.closeAgreed(ctx, u, due)
}

// closing is a conversation of ours with an agreement. We close it as soon as nothing in it is open, at the latest at By
// (AM-90).
type closing struct {
	Key    store.ConvKey `json:"key"`
	Intent wire.Intent   `json:"intent"` // of the agreement
	By     time.Time     `json:"by"`
}

const (
	nsClosing   = "closing"
	closeWithin = 10 * time.Minute
)

func (c closing) change() store.Change {
	return store.Change{IfRev: store.Any, Record: store.Record{
		NS: nsClosing, Key: c.Key.Peer + "/" + c.Key.ID, Body: wire.MustMarshal(c), Due: store.DueNow,
	}}
}

// openGates looks again at what waits for something that changed: the close of a conversation for its end of work, and a
// decision about several messages for the hook of one.
func (d duties) openGates(changes []store.Change) {
	d.n.work.Open(nsClosing, func(gate string) bool {
		return slices.ContainsFunc(changes, func(c store.Change) bool { return slices.Contains(c.Record.Terms, gate) })
	})
	d.n.work.Open(acl.AskNamespace, func(gate string) bool {
		return slices.ContainsFunc(changes, func(c store.Change) bool { return c.Record.NS == nsInbox && idAt(c.Record.Key) == gate })
	})
}

// workClosing sends our close, unless something is open in the conversation: a proposal, a message that waits for our
// owner, the run of a hook, or a message of ours that is not delivered.
func (n *Node) workClosing(ctx context.Context, rec store.Record, _ bool) (later work.Later, err error) {
	at, err := store.Decode[closing](rec)
	if err != nil {
		return later, err
	}
	drop := store.Change{Record: rec, IfRev: rec.Rev, Delete: true}
	thread, err := n.book.Load(ctx, at.Key, time.Now())
	if err != nil {
		return later, err
	}
	if !thread.IsOpen() {
		return later, n.store.Records().Apply(ctx, []store.Change{drop}, time.Now())
	}
	return later, n.book.Do(ctx, at.Key, func(u *conversations.Unit) error {
		later = work.Later{}
		if left := at.By.Sub(u.Now); left > 0 && u.IsOpen() && !u.IsNew() {
			if busy, err := n.isBusy(ctx, u, ""); busy || err != nil {
				later = work.Later{Gate: convTerm(at.Key), Pause: min(left, time.Minute)}
				return err
			}
		}
		u.Add(drop)
		if !u.IsOpen() || u.IsNew() {
			return nil
		}
		return n.closeAgreed(ctx, u, at)
	})
}

func (n *Node) closeAgreed(ctx context.Context, u *conversations.Unit, at closing) error {
	conv := u.Conversation()
	_, err := n.enqueue(ctx, u, Outgoing{
		To: wire.AgentID(at.Key.Peer), Address: conv.Address, Conv: wire.ConversationID(at.Key.ID), Intent: at.Intent,
		Payload: closePayload("completed"), InReplyTo: conv.Heard, Via: "node",
	})
	return err
}

// isBusy reports whether something is open in a conversation that would end with its close, apart from the item or outbox
// entry that the unit settles.
func (n *Node) isBusy(ctx context.Context, u *conversations.Unit, settles string) (bool, error) {
	conv := u.Conversation()
	open := []string{stateTerm(owner.ItemRunning), stateTerm(owner.ItemWaiting), waitTerm(conv.Key)}
	isOpen := func(change store.Change) bool {
		return slices.ContainsFunc(change.Record.Terms, func(term string) bool { return slices.Contains(open, term) })
	}
	if conv.Holds(u.Now) > 0 || slices.ContainsFunc(conv.Deals(), conversations.Deal.Stands) || slices.ContainsFunc(u.Changes(), isOpen) {
		return true, nil
	}
	for entry, err := range n.allEntries(ctx, waitTerm(conv.Key)) {
		if err != nil || entry.ID != settles {
			return true, err
		}
	}
	working, err := n.itemsOf(ctx, conv.Key, owner.ItemRunning, owner.ItemWaiting)
	return slices.ContainsFunc(working, func(i Item) bool { return i.ID != settles }), err
}

// countAccept records that an accept counts now, if there is one, because we answer the message of item. reply is the id
// of our answer if it leaves on the same connection, or "".
func (n *Node) countAccept(ctx context.Context, u *conversations.Unit, item Item, reply wire.MessageID) error {
	conv, confirmed := u.Conversation(), wire.MessageID("")
	if item.ConfirmsAccept {
		payload, _ := wire.Parse(item.Payload) // a payload that cannot be read confirms no accept
		if accept := conv.FindAnsweredAccept(payload); accept != nil {
			confirmed = accept.Message
		}
	}
	return n.agree(ctx, u, rules.Counts(conv, confirmed, item.MessageID, reply), time.Time{}, item.PeerName, item.ID)
}

// agreedText returns the title of an agreement, and a line with what was agreed. The peer may have written these texts;
// [notify.Box] cleans them.
func agreedText(a conversations.Agreement, name string) (title, text string) {
	var parts []string
	title = cmp.Or(a.Title, "Meeting")
	if a.Intent == wire.Negotiate { // it has neither title nor time
		title, parts = "Offer", append(parts, a.String())
	}
	if at, ok := wire.ParseInstant(a.Time); ok {
		parts = append(parts, at.Format("Mon 2 Jan 2006 15:04 -07:00"))
	} else if a.Time != "" {
		parts = append(parts, a.Time)
	}
	if a.Location != "" {
		parts = append(parts, "at "+a.Location)
	}
	if a.Duration != "" {
		parts = append(parts, "("+a.Duration+")")
	}
	if name != "" {
		parts = append(parts, "with "+name)
	}
	return title, strings.Join(parts, " ")
}

// noticeTitles are the titles of notices by kind. They contain no text of a message (AM-36).
var noticeTitles = map[string]string{
	"message":     "a message came in",
	"approval":    "a message waits for your decision",
	"outgoing":    "a message of yours waits for your decision",
	"handoff":     "somebody asks to talk to you",
	"expiring":    "something waits for you and will soon expire",
	"listing":     "a directory will soon stop listing you",
	"removed":     "a directory removed your agent",
	"unanswered":  "your agent did not answer a message",
	"hook-failed": "your agent could not answer a message",
	"interrupted": "a restart interrupted your agent",
	"closed":      "a conversation was closed",
	"key-change":  "a peer's key changed",

	kindUnreadable: "a sealed message could not be opened",
}

// notice returns a notice about a peer. Its title depends on the kind, and its text is the name and the short id of the
// peer.
func (n *Node) notice(kind string, peer wire.AgentID, name string, key store.ConvKey, now time.Time) notify.Notice {
	shown, who := owner.ShowName(owner.PeerNames{PeerName: name}, "", string(peer)), owner.ShortID(string(peer))
	if shown.Claimed {
		who = shown.String() + " (" + who + ")"
	}
	return notify.Notice{Kind: kind, Title: noticeTitles[kind], Text: who, At: now, Conv: key, Peer: peer}
}

// metaAgreedIn is the member of the metadata by which a cancellation names the conversation of the agreement (AM-87).
// That conversation may have ended (AM-39).
const metaAgreedIn = "agreed_in"

// record records a message, or that the owner rejected the peer. If that cancels an agreed event, record removes the
// event from the calendar. If the event was agreed in another conversation, record marks that agreement as cancelled. If
// the peer cancelled an event or a deal, record also notifies the owner.
func (n *Node) record(ctx context.Context, u *conversations.Unit, e conversations.Event) error {
	before, by, payload := u.Conversation(), conversations.Ours, e.Payload
	if err := u.Record(e); err != nil {
		return err
	}
	if e.Kind == conversations.Received || e.Kind == conversations.ClosedByPeer || e.Kind == conversations.Afterwards {
		by = conversations.Theirs
	}
	for i, deal := range before.Deals() {
		after, fate := u.Conversation().Deals()[i], ""
		switch {
		case by == conversations.Ours || !deal.InForce():
		case after.Agreement.Doubtful && !deal.Agreement.Doubtful:
			fate = "perhaps cancelled: "
		case !after.InForce() && deal.Agreement.Intent == wire.Negotiate: // cancelChanges tells of events
			fate = "cancelled: "
		}
		if fate != "" {
			notice := n.notice(notify.Cancelled, wire.AgentID(before.Key.Peer), e.Name, before.Key, u.Now)
			notice.Title, notice.Text = agreedText(*deal.Agreement, e.Name)
			notice.Title = fate + notice.Title
			u.Add(n.notices.Change(notice))
		}
	}
	switch {
	case e.Kind == conversations.OwnerRejected:
		payload = rejectionPayload(wire.OwnerRejected)
	case e.Waits:
		return nil
	}
	cancelling := e
	cancelling.Payload = payload
	changes, err := n.cancelChanges(ctx, rules.CancelledEvent(cancelling, before, by), payload, before.Key, by, e.Name, u.Now)
	u.Add(changes...)
	return err
}

// cancelChanges returns the changes that cancel the agreed event uid, if any. If the peer cancels an event in the
// calendar, they include a notice to the owner. name is the peer's name.
func (n *Node) cancelChanges(ctx context.Context, uid string, payload wire.Value, key store.ConvKey, by conversations.Side, name string, now time.Time) ([]store.Change, error) {
	if uid == "" {
		return nil, nil
	}
	changes, err := n.markCancellation(ctx, payload, key, by, now)
	if err != nil {
		return changes, err
	}
	event, removal, err := n.cfg.Agreed.Cancel(ctx, uid, now)
	if by == conversations.Theirs && event.UID != "" {
		changes = append(changes, n.newCancelNotice(event, key, name, now))
	}
	return append(changes, removal...), err
}

func (n *Node) newCancelNotice(e calendar.Event, key store.ConvKey, name string, now time.Time) store.Change {
	notice := n.notice(notify.Cancelled, wire.AgentID(key.Peer), name, key, now)
	notice.Title = "cancelled: " + e.Title
	notice.Text = e.Start.Format("Mon 2 Jan 2006 15:04 -07:00") + " with " + e.With
	return n.notices.Change(notice)
}

// nsCancelled holds the cancellations that came in a conversation other than that of the agreement, keyed by the UID of
// the event (AM-87). The stored agreement stays unchanged.
const nsCancelled = "agreement-cancelled"

// markCancellation returns the change that marks the agreement of another conversation as cancelled, if the message is
// a cancel or decline that names an agreement with the same peer. key is the conversation of the message. The mark
// keeps the side and the time of the first cancellation.
func (n *Node) markCancellation(ctx context.Context, payload wire.Value, key store.ConvKey, by conversations.Side, now time.Time) ([]store.Change, error) {
	action, in := payload.GetStr("action"), conversations.AgreedIn(payload)
	if action != "cancel" && action != "decline" || in == "" || in == key.ID {
		return nil, nil
	}
	agreed, err := n.book.Load(ctx, store.ConvKey{Peer: key.Peer, ID: in}, now)
	if err != nil {
		return nil, err
	}
	v, err := viewAgreement(ctx, n.store.Records(), agreed.Conversation(), agreed.Conversation().Schedule, now)
	if err != nil || v == nil {
		return nil, err
	}
	body := wire.MustMarshal(cmp.Or(v.Cancelled, &conversations.Cancellation{By: by, At: now.UTC()}))
	mark := store.Record{NS: nsCancelled, Key: calendar.UID(key.Peer, in), Body: body, Expires: now.Add(2 * n.cfg.Retention)}
	return []store.Change{{IfRev: store.Any, Record: mark}}, nil
}

// viewAgreements returns what was agreed in a conversation, the newest first.
func viewAgreements(ctx context.Context, records store.Records, conv conversations.Conversation, now time.Time) (list []owner.Agreement, err error) {
	for _, d := range conv.Deals() {
		v, err := viewAgreement(ctx, records, conv, d, now)
		if err != nil {
			return nil, err
		}
		if v != nil {
			list = append(list, *v)
		}
	}
	slices.SortFunc(list, func(a, b owner.Agreement) int { return b.At.Compare(a.At) })
	return list, nil
}

// viewAgreement returns what was agreed for one intent, with the first cancellation if any, or nil if nothing was agreed.
func viewAgreement(ctx context.Context, records store.Records, conv conversations.Conversation, d conversations.Deal, now time.Time) (*owner.Agreement, error) {
	if d.Agreement == nil {
		return nil, nil
	}
	v := &owner.Agreement{Agreement: *d.Agreement, Standing: owner.StandingAgreed}
	var elsewhere conversations.Cancellation
	if d.Agreement.Intent != wire.Schedule { // only an event can be cancelled in another conversation
	} else if _, _, err := store.ReadRecord(ctx, records, nsCancelled, calendar.UID(conv.Key.Peer, conv.Key.ID), &elsewhere, now); err != nil {
		return nil, fmt.Errorf("read cancellation: %w", err)
	}
	if elsewhere.At.After(v.At) && (v.Cancelled == nil || elsewhere.At.Before(v.Cancelled.At)) { // the first after the agreement
		v.Cancelled = &elsewhere
	}
	switch {
	case v.Cancelled != nil:
		v.Standing = owner.StandingCancelled
	case v.Doubtful:
		v.Standing = owner.StandingDoubtful
	case conv.State == conversations.Failed:
		v.Standing = owner.StandingFailed
	}
	return v, nil
}

// isCancellation reports whether the message cancels an event that we agreed on with its sender, in this conversation
// or in another one. Such a message is admitted in every access mode (AM-30). Until it is opened, a sealed message
// counts as a cancel.
func (a *acceptance) isCancellation(ctx context.Context, before conversations.Conversation) bool {
	payload := a.in.Payload
	if conversations.IsSealed(payload) {
		payload = payload.With("action", wire.Text("cancel"))
	}
	uid := rules.CancelledEvent(conversations.Event{
		Intent: a.in.Intent, Payload: payload, Answers: conversations.AnswersIn(payload), Written: a.in.Time,
	}, before, conversations.Theirs)
	changes, err := a.n.cancelChanges(ctx, uid, payload, a.key, conversations.Theirs, a.in.Name, a.now)
	return before.Schedule.InForce() && uid == calendar.UID(before.Key.Peer, before.Key.ID) || err == nil && len(changes) > 0
}

// ErrNoEvent means that no agreed event has the given id, or that several ids begin with it.
var ErrNoEvent = &wire.Error{Code: wire.InvalidMessage, Status: http.StatusNotFound, Message: "no agreed event has this id, or more than one begins with it"}

// CancelEvent cancels an agreed event, named by its UID or a unique beginning of it. It tells the peer in a new
// conversation, because the peer may have ended the old one.
func (n *Node) CancelEvent(ctx context.Context, m owner.Cancellation, wait time.Duration) (owner.Sent, error) {
	e, err := n.findEvent(ctx, m.Event)
	if err != nil {
		return owner.Sent{}, err
	}
	out := Outgoing{To: wire.AgentID(e.Peer), Address: e.Address, Intent: wire.Schedule, Via: owner.Author(m.By)}
	agreed, err := n.book.Load(ctx, store.ConvKey{Peer: e.Peer, ID: e.Conversation}, time.Now())
	if err != nil {
		return owner.Sent{}, err
	}
	if agreed.Conversation().Sealed {
		out.Seal = owner.Sealed
	}
	out.Payload = withMeta(actionOf("cancel").WithOptional("reason", m.Reason), metaAgreedIn, e.Conversation)
	return n.Send(ctx, out, wait)
}

func (n *Node) findEvent(ctx context.Context, name string) (calendar.Event, error) {
	if name == "" {
		return calendar.Event{}, ErrNoEvent
	}
	events, err := n.cfg.Agreed.Events(ctx, time.Now())
	if err != nil {
		return calendar.Event{}, err
	}
	matches := slices.DeleteFunc(events, func(e calendar.Event) bool {
		return !strings.HasPrefix(e.UID, name) && !strings.HasPrefix(strings.TrimPrefix(e.UID, calendar.UIDPrefix), name)
	})
	if len(matches) != 1 {
		return calendar.Event{}, ErrNoEvent
	}
	return matches[0], nil
}
