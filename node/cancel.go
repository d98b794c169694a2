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

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// metaAgreedIn names the conversation in which an event was agreed: that one has ended (AM-39), so whoever cancels the
// event says so in another (AM-87).
const metaAgreedIn = "agreed_in"

// eventOf returns the UID of the agreed event that a message takes back, "" if it takes back none. The UID is made of the
// peer that the conversation is with, so nobody reaches an event of others. before is the conversation without the message.
func eventOf(intent wire.Intent, payload wire.Value, before conversations.Conversation) string {
	in := before.Key.ID
	switch payload.GetStr("action") {
	case "cancel", "decline":
		if intent != wire.Schedule {
			return ""
		}
		if elsewhere := conversations.AgreedIn(payload); elsewhere != "" {
			return calendar.UID(before.Key.Peer, elsewhere)
		}
	case wire.ActionClose:
	default:
		return ""
	}
	if !before.IsAbout(payload) {
		return "" // it declines a proposal, or closes a conversation that went well
	}
	return calendar.UID(before.Key.Peer, in)
}

// unbook is the contributor that reacts to a message that takes an agreed event back: the event goes out of the calendar,
// its agreement is marked, and the owner is notified if it was the peer who did so.
func (n *Node) unbook(ctx context.Context, u *conversations.Unit, before conversations.Conversation, e conversations.Event) error {
	by, payload := conversations.Ours, e.Payload
	switch e.Kind {
	case conversations.Sent, conversations.Replied, conversations.ClosedByUs:
	case conversations.OwnerRejected:
		payload = rejection(wire.OwnerRejected)
	case conversations.Received, conversations.ClosedByPeer:
		if e.Waits {
			return nil
		}
		by = conversations.Theirs
	default:
		return nil
	}
	event, changes, err := n.takenBack(ctx, eventOf(e.Intent, payload, before), payload, before.Key, by, u.Now)
	if err != nil {
		return err
	}
	u.Add(changes...)
	if by == conversations.Theirs && event.UID != "" {
		u.Add(n.cancelNotice(event, before.Key, e.Name, u.Now))
	}
	return nil
}

// takenBack returns the changes that take an agreed event back, none if uid is empty. event is what goes out of the
// calendar, its zero value if nothing does.
func (n *Node) takenBack(ctx context.Context, uid string, payload wire.Value, key store.ConvKey, by conversations.Side, now time.Time) (event calendar.Event, changes []store.Change, err error) {
	if uid == "" {
		return event, nil, nil
	}
	marks, err := n.markCancelled(ctx, payload, key, by, now)
	if err != nil || n.cfg.Agreed == nil {
		return event, marks, err
	}
	event, changes, err = n.cfg.Agreed.Cancel(ctx, uid, now)
	return event, append(changes, marks...), err
}

// cancelNotice tells the owner that the peer cancelled an event.
func (n *Node) cancelNotice(e calendar.Event, key store.ConvKey, name string, now time.Time) store.Change {
	notice := n.notice(notify.Cancelled, wire.AgentID(key.Peer), name, key, now)
	notice.Title = "cancelled: " + e.Title
	notice.Text = e.Start.Format("Mon 2 Jan 2006 15:04 -07:00") + " with " + e.With
	return n.notices.Change(notice)
}

// nsCancelled holds the agreements that were cancelled from another conversation, by the UID of their event: the
// conversation in which an event was agreed has ended (AM-87).
const nsCancelled = "agreement-cancelled"

// markCancelled returns the change that marks the agreement of another conversation as cancelled, if the message is a
// cancel or decline of mesh.schedule that names one in force with the same peer.
func (n *Node) markCancelled(ctx context.Context, payload wire.Value, here store.ConvKey, by conversations.Side, now time.Time) ([]store.Change, error) {
	action, in := payload.GetStr("action"), conversations.AgreedIn(payload)
	if action != "cancel" && action != "decline" || in == "" || in == here.ID {
		return nil, nil
	}
	there, err := n.book.Load(ctx, store.ConvKey{Peer: here.Peer, ID: in}, now)
	if err != nil || !there.Conversation().InForce() {
		return nil, err
	}
	body, err := json.Marshal(conversations.Cancellation{By: by, At: now.UTC()})
	if err != nil {
		return nil, fmt.Errorf("encode cancellation: %w", err)
	}
	return []store.Change{{IfRev: store.Any, Record: store.Record{
		NS: nsCancelled, Key: calendar.UID(here.Peer, in), Body: body, Expires: now.Add(2 * n.cfg.Retention),
	}}}, nil
}

// agreement returns what was agreed in a conversation, nil if nothing was, with the mark of a later cancellation.
func (n *Node) agreement(ctx context.Context, conv conversations.Conversation, now time.Time) (*conversations.Agreement, error) {
	if !conv.InForce() {
		return conv.Agreement, nil
	}
	rec, err := n.store.Records().Get(ctx, nsCancelled, calendar.UID(conv.Key.Peer, conv.Key.ID), now)
	if errors.Is(err, store.ErrNotFound) {
		return conv.Agreement, nil
	}
	var c conversations.Cancellation
	if err == nil {
		err = json.Unmarshal(rec.Body, &c)
	}
	if err != nil {
		return nil, fmt.Errorf("read cancellation: %w", err)
	}
	a := *conv.Agreement
	if c.At.After(a.At) {
		a.Cancelled = &c
	}
	return &a, nil
}

// cancels reports whether the message takes back an event that its sender agreed with us. It may in every mode, as it may
// answer where our owner wrote (AM-30). One that is sealed is taken for a cancel until it is open.
func (a *acceptance) cancels(ctx context.Context, before conversations.Conversation) bool {
	payload := a.in.Payload
	if conversations.IsSealed(payload) {
		payload = payload.With("action", wire.Text("cancel"))
	}
	_, changes, err := a.n.takenBack(ctx, eventOf(a.in.Intent, payload, before), payload, a.key, conversations.Theirs, a.now)
	return err == nil && len(changes) > 0
}

// ErrNoEvent: nothing was agreed under that name, or more than one thing.
var ErrNoEvent = &wire.Error{Code: wire.InvalidMessage, Status: http.StatusNotFound, Message: "no agreed event has this id, or more than one begins with it"}

// CancelEvent cancels an agreed event, named by its UID or a unique part of one: it goes out of the owner's calendar, and
// the peer is told, in a new conversation: the one in which it was agreed may have ended at the other side already.
func (n *Node) CancelEvent(ctx context.Context, name, reason string, wait time.Duration) (Sent, error) {
	e, err := n.event(ctx, name)
	if err != nil {
		return Sent{}, err
	}
	payload := actionOf("cancel")
	if reason != "" {
		payload = payload.With("reason", wire.Text(reason))
	}
	out := Outgoing{To: wire.AgentID(e.Peer), Address: e.Address, Intent: wire.Schedule, Via: "owner"}
	now := time.Now()
	thread, err := n.book.Load(ctx, store.ConvKey{Peer: e.Peer, ID: e.Conversation}, now)
	if err != nil {
		return Sent{}, err
	}
	if thread.Conversation().Sealed {
		out.Seal = Sealed
	}
	out.Payload = withMeta(payload, metaAgreedIn, e.Conversation)
	return n.Send(ctx, out, wait)
}

// event finds an agreed event.
func (n *Node) event(ctx context.Context, name string) (calendar.Event, error) {
	if n.cfg.Agreed == nil || name == "" {
		return calendar.Event{}, ErrNoEvent
	}
	events, err := n.cfg.Agreed.Events(ctx, time.Now())
	if err != nil {
		return calendar.Event{}, err
	}
	named := slices.DeleteFunc(events, func(e calendar.Event) bool {
		return !strings.HasPrefix(e.UID, name) && !strings.HasPrefix(strings.TrimPrefix(e.UID, calendar.UIDPrefix), name)
	})
	if len(named) != 1 {
		return calendar.Event{}, ErrNoEvent
	}
	return named[0], nil
}
