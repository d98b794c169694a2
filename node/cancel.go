package node

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// metaAgreedIn names the conversation in which an event was agreed: that one has ended (AM-39), so whoever cancels the
// event says so in another (AM-87).
const metaAgreedIn = "agreed_in"

// eventOf returns the UID of the agreed event that a message is about, "" where it takes none back. The UID is made of the
// peer that the conversation is with, so nobody reaches an event of others. before is the conversation without the message.
func eventOf(intent wire.Intent, payload wire.Value, before conversations.Conversation) string {
	action := payload.GetStr("action")
	meta, _ := payload.Get("metadata")
	in := meta.GetStr(metaAgreedIn)
	switch {
	case intent != wire.Schedule || action != "cancel" && action != "decline":
		return ""
	case in != "":
		return calendar.UID(before.Key.Peer, in)
	case action == "decline" && !before.AcceptSent && !before.AcceptReceived:
		return "" // of a proposal; what was agreed before it stands
	}
	return calendar.UID(before.Key.Peer, before.Key.ID)
}

// uncalendar returns the changes that take the event which a message of either side cancels out of the calendar.
func (n *Node) uncalendar(ctx context.Context, intent wire.Intent, payload wire.Value, before conversations.Conversation, now time.Time) (calendar.Event, []store.Change, error) {
	return n.dropEvent(ctx, eventOf(intent, payload, before), now)
}

func (n *Node) dropEvent(ctx context.Context, uid string, now time.Time) (calendar.Event, []store.Change, error) {
	if uid == "" || n.cfg.Agreed == nil {
		return calendar.Event{}, nil, nil
	}
	return n.cfg.Agreed.Cancelled(ctx, uid, now)
}

// cancelledBy is dropEvent for a message of the peer's: the owner is told.
func (n *Node) cancelledBy(ctx context.Context, uid string, key store.ConvKey, peer wire.AgentID, name string, now time.Time) ([]store.Change, error) {
	e, changes, err := n.dropEvent(ctx, uid, now)
	if err != nil || len(changes) == 0 {
		return nil, err
	}
	notice := n.notice(notify.Cancelled, peer, name, key, now)
	notice.Title = "cancelled: " + e.Title
	notice.Text = e.Start.Format("Mon 2 Jan 2006 15:04 -07:00") + " with " + e.With
	return append(changes, n.notices.Change(notice)), nil
}

// cancels says whether the message takes back an event that its sender agreed with us. It may in every mode, as it may
// answer where our owner wrote (AM-30). One that is sealed is taken for a cancel until it is open.
func (a *acceptance) cancels(ctx context.Context, before conversations.Conversation) bool {
	payload := a.in.Payload
	if conversations.IsSealed(payload) {
		payload = payload.With("action", wire.Text("cancel"))
	}
	_, changes, err := a.n.uncalendar(ctx, a.in.Intent, payload, before, a.now)
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

// ownerCancelEvent is CancelEvent for the owner API.
func (n *Node) ownerCancelEvent(c echo.Context) error {
	var req struct {
		Event       string `json:"event"`
		Reason      string `json:"reason"`
		WaitSeconds int    `json:"wait_seconds"`
	}
	if err := decodeOwner(c, &req); err != nil {
		return err
	}
	if n.cfg.Agreed == nil {
		return fault(http.StatusNotFound, "no calendar is configured", "set calendar.files or calendar.url")
	}
	wait, err := ownerWait(c, req.WaitSeconds)
	if err != nil {
		return err
	}
	sent, err := n.CancelEvent(c.Request().Context(), req.Event, req.Reason, wait)
	if err != nil {
		return ownerError(err)
	}
	return httpapi.JSON(c, http.StatusOK, sent)
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
