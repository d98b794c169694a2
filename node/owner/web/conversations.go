package web

import (
	"cmp"
	"context"
	"errors"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

type conversationView struct {
	owner.Conversation
	URL     string // path below the page
	Parts   []part
	Earlier bool   // there are earlier messages
	Later   uint64 // the parameter "after" of the next page
	Chain   string // the state of the hash chain; "" if it was not checked
	Open    bool
	New     int // messages of the conversation that wait in the inbox
	Form    replyForm
}

// Matter returns the intent of what stands in the conversation, or else of the conversation (AM-89).
func (v conversationView) Matter() wire.Intent { return matter(v.Conversation) }

func matter(c owner.Conversation) wire.Intent {
	switch {
	case len(c.Proposals) > 0:
		return c.Proposals[0].Intent
	case len(c.Agreements) > 0:
		return c.Agreements[0].Intent
	}
	return c.Intent
}

// CanAnswer reports whether an offer of the peer waits for an answer of ours.
func (v conversationView) CanAnswer() bool { return slices.ContainsFunc(v.Offers(), offer.CanAnswer) }

// replyForm is what the owner typed. The page shows it again if it was refused. Selected is the time that an accept
// chooses.
type replyForm struct{ Text, Action, Payload, Time, Place, Selected string }

// noEntries is beyond the last entry of every transcript: after it, ReadTranscript returns only the conversation.
const noEntries = math.MaxUint64

const (
	maxMessages   = 50
	maxChainBytes = 1 << 20 // a transcript up to this size is verified whenever it is shown
)

func convPath(peer, id string) string { return "conversations/" + peer + "/" + id }

func (p *pages) showConversation(c echo.Context) error {
	return p.renderConversation(c, http.StatusOK, "", replyForm{})
}

func (p *pages) renderConversation(c echo.Context, status int, errorText string, form replyForm) error {
	ctx := c.Request().Context()
	part, err := p.readPart(c)
	if err != nil {
		return err
	}
	path := convPath(part.Peer, part.ID)
	view := conversationView{
		Conversation: part.Conversation, URL: path, Form: form,
		Open: part.State == conversations.Open,
	}
	view.Earlier = len(part.Transcript) > 0 && part.Transcript[0].N > 1
	messages, later := viewMessages(part)
	view.Parts, view.Later = view.talk(messages), later
	if later == 0 {
		if err := p.says.markUndelivered(ctx, view.Parts); err != nil {
			return err
		}
	}
	waiting, err := p.newItems(ctx, part.Peer, part.ID)
	if err != nil {
		return err
	}
	view.New = len(waiting)
	if part.Bytes <= maxChainBytes {
		view.Chain = "intact"
		if err := p.n.CheckTranscript(ctx, part.Peer, part.ID); err != nil {
			view.Chain = "broken: " + err.Error()
		}
	}
	self := httpapi.PagePath + "/" + path
	if after := c.QueryParam("after"); after != "" {
		self += "?after=" + after
	}
	return p.shell.Render(c, p.conversation, httpapi.View{
		Title: part.Shown().String(), Status: status, Error: errorText, Done: p.doneMessage(c), Undo: p.undo(c), Data: view,
		Topics: []string{string(owner.TopicConversations)}, Self: self,
	})
}

// getEvent serves the agreed event of a conversation as an iCalendar file.
func (p *pages) getEvent(c echo.Context) error {
	conv, err := p.n.ReadTranscript(c.Request().Context(), c.Param("id"), c.Param("peer"), noEntries)
	if err != nil {
		return err
	}
	for _, a := range conv.Agreements {
		e, ok := calendar.AgreedEvent(a.Agreement, conv.Peer, conv.ID, conv.Shown().String(), a.At)
		if !ok {
			continue
		}
		c.Response().Header().Set("Content-Disposition", `attachment; filename="event.ics"`)
		return c.Blob(http.StatusOK, "text/calendar; charset=utf-8", e.Encode())
	}
	return owner.Fault(http.StatusNotFound, "no event with a time and a length was agreed here", "")
}

// newItems returns the inbox items of a conversation that nobody has read. Looking at the conversation does not mark
// them as read, because a program of the owner may wait for them.
func (p *pages) newItems(ctx context.Context, peer, id string) ([]owner.Item, error) {
	page, err := p.n.ListItems(ctx, owner.Query{Peer: peer, Conversation: id})
	return slices.DeleteFunc(page.Items, func(i owner.Item) bool { return i.State != owner.ItemNew }), err
}

func (p *pages) markRead(c echo.Context, _ url.Values) error {
	ctx := c.Request().Context()
	conv, err := p.n.ReadTranscript(ctx, c.Param("id"), c.Param("peer"), noEntries)
	if err != nil {
		return err
	}
	items, err := p.newItems(ctx, conv.Peer, conv.ID)
	if err != nil {
		return err
	}
	for _, item := range items {
		if _, err := p.n.Acknowledge(ctx, item.ID); err != nil {
			return err
		}
	}
	return httpapi.Done(c, convPath(conv.Peer, conv.ID), "read")
}

// readPart reads the part of a transcript that a page shows: the entries after a given one, or the last ones.
func (p *pages) readPart(c echo.Context) (part owner.Transcript, err error) {
	ctx, peer, id := c.Request().Context(), c.Param("peer"), c.Param("id")
	var after uint64
	if s := c.QueryParam("after"); s != "" {
		if after, err = strconv.ParseUint(s, 10, 64); err != nil {
			return part, owner.Fault(http.StatusBadRequest, "after must be a number", "")
		}
	} else {
		if part, err = p.n.ReadTranscript(ctx, id, peer, noEntries); err != nil {
			return part, err
		}
		after = part.Entries - min(part.Entries, maxMessages)
	}
	return p.n.ReadTranscript(ctx, id, peer, after)
}

// reply sends a message in the conversation. It thereby answers the newest message that waits there.
func (p *pages) reply(c echo.Context, form url.Values) error {
	ctx, peer, id := c.Request().Context(), c.Param("peer"), c.Param("id")
	typed := replyForm{
		Text: form.Get("text"), Action: form.Get("action"), Payload: form.Get("payload"),
		Time: form.Get("time"), Place: form.Get("place"), Selected: form.Get("selected"),
	}
	conv, err := p.n.ReadTranscript(ctx, id, peer, noEntries)
	if err != nil {
		return err
	}
	answer := owner.NewReply{Conversation: conv.ID, Peer: conv.Peer, Proposal: wire.MessageID(form.Get("proposal"))}
	about := matter(conv.Conversation)
	for _, p := range conv.Proposals {
		if p.Message == answer.Proposal {
			about = p.Intent
		}
	}
	if answer.Intent, answer.Payload, err = typed.payload(about); err != nil {
		return p.renderConversation(c, http.StatusBadRequest, err.Error(), typed)
	}
	var sent owner.Sent
	isOver := conv.State != conversations.Open && answer.Intent == wire.Deliver // it ended while the owner wrote
	if isOver {
		sent, err = p.n.Send(ctx, owner.NewMessage{To: cmp.Or(conv.Address, conv.Peer), Intent: answer.Intent, Payload: answer.Payload}, 0)
	} else {
		sent, err = p.n.Reply(ctx, answer, 0)
	}
	if refusal, ok := errors.AsType[*wire.Error](err); ok {
		return p.renderConversation(c, refusal.Status, refusal.Message, typed)
	}
	if err != nil {
		return err
	}
	if isOver {
		return doneSent(c, sent, "sent")
	}
	did := "sent"
	if sent.State == owner.SendHeld {
		did = "held"
	}
	return httpapi.Done(c, convPath(conv.Peer, conv.ID), did)
}

// cancel takes back what was agreed. In a conversation that has ended, the cancellation begins another one.
func (p *pages) cancel(c echo.Context, form url.Values) error {
	ctx := c.Request().Context()
	conv, err := p.n.ReadTranscript(ctx, c.Param("id"), c.Param("peer"), noEntries)
	if err != nil {
		return err
	}
	if conv.State == conversations.Open {
		return p.reply(c, url.Values{"action": {"cancel"}})
	}
	_, err = p.n.CancelEvent(ctx, owner.Cancellation{Event: calendar.UID(conv.Peer, conv.ID)}, 0)
	if refusal, ok := errors.AsType[*wire.Error](err); ok {
		return p.renderConversation(c, refusal.Status, refusal.Message, replyForm{})
	}
	if err != nil {
		return err
	}
	return httpapi.Done(c, convPath(conv.Peer, conv.ID), "cancelled")
}

func (p *pages) close(c echo.Context, form url.Values) error {
	order := owner.Close{Peer: c.Param("peer"), Status: form.Get("status")}
	if order.Status != "completed" && order.Status != "failed" {
		return owner.Fault(http.StatusBadRequest, "status must be completed or failed", "")
	}
	_, err := p.n.CloseConversation(c.Request().Context(), c.Param("id"), order, 0)
	if refusal, ok := errors.AsType[*wire.Error](err); ok {
		return p.renderConversation(c, refusal.Status, refusal.Message, replyForm{})
	}
	if err != nil {
		return err
	}
	return httpapi.Done(c, convPath(order.Peer, c.Param("id")), "closed")
}
