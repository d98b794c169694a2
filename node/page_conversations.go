package node

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

type conversationsView struct {
	State  conversations.State
	States []conversations.State
	Items  []convRow
	Next   uint64
}

// convRow is a conversation in a list, with what the owner calls the peer.
type convRow struct {
	convView
	Alias string
}

var convStates = []conversations.State{"", conversations.Open, conversations.Completed, conversations.Failed, conversations.Expired}

func (p *pages) showConversations(c echo.Context) error {
	ctx, now, n := c.Request().Context(), time.Now(), p.n
	q, err := readPage(c, conversations.Open, conversations.Completed, conversations.Failed, conversations.Expired)
	if err != nil {
		return err
	}
	view := conversationsView{State: conversations.State(q.State), States: convStates, Next: q.Before}
	names, err := n.aliases(ctx)
	if err != nil {
		return ownerError(err)
	}
	for len(view.Items) < pageSize {
		page, err := n.book.List(ctx, conversations.Filter{State: view.State}, view.Next, pageSize-len(view.Items), now)
		if err != nil {
			return ownerError(err)
		}
		for _, conv := range page.Conversations {
			v, err := n.view(ctx, conv, now)
			if err != nil {
				return ownerError(err)
			}
			view.Items = append(view.Items, convRow{v, names[conv.Key.Peer]})
		}
		if view.Next = page.Next; view.Next == 0 {
			break
		}
	}
	return p.shell.Render(c, p.conversations, httpapi.View{
		Title: "Conversations", Topics: []string{string(TopicConversations)}, Said: said(c), Data: view,
	})
}

// saying is one entry of a transcript.
type saying struct {
	N       uint64
	Out     bool
	At      time.Time
	ID      string
	Intent  string
	Sealed  bool
	Content content
}

type conversationView struct {
	convView
	URL      string // path below the page
	Foreign  string // address of the peer behind a bridge
	Alias    string
	Sayings  []saying
	Earlier  bool
	Later    uint64 // pass as after
	Chain    string
	Open     bool
	Form     replyForm
	Payloads bool
}

// Choices returns the times that an accept must choose from, none if it need not.
func (v conversationView) Choices() []string {
	if v.Proposal == nil || v.Proposal.By != conversations.Theirs || len(v.Proposal.Times) < 2 {
		return nil
	}
	return v.Proposal.Times
}

// replyForm is what the owner typed, kept where it was refused. Selected is the time that an accept chooses.
type replyForm struct{ Text, Action, Payload, Time, Place, Selected string }

const (
	maxSayings    = 50
	maxChainBytes = 1 << 20 // a transcript up to this size is checked whenever it is shown
)

func convPath(key store.ConvKey) string { return "conversations/" + key.Peer + "/" + key.ID }

func (p *pages) showConversation(c echo.Context) error {
	return p.conversationPage(c, http.StatusOK, "", replyForm{})
}

func (p *pages) conversationPage(c echo.Context, status int, wrong string, form replyForm) error {
	ctx, now, n := c.Request().Context(), time.Now(), p.n
	key := store.ConvKey{Peer: c.Param("peer"), ID: c.Param("id")}
	row, err := n.store.Steps().Conversation(ctx, key, now)
	if err != nil {
		return ownerError(err)
	}
	conv, err := conversations.Decode(row)
	if err != nil {
		return err
	}
	after := conv.Entries - min(conv.Entries, maxSayings)
	if s := c.QueryParam("after"); s != "" {
		if after, err = strconv.ParseUint(s, 10, 64); err != nil {
			return fault(http.StatusBadRequest, "after must be a number", "")
		}
	}
	shown, err := n.view(ctx, conv, now)
	if err != nil {
		return ownerError(err)
	}
	view := conversationView{convView: shown, URL: convPath(key), Foreign: conv.Address, Earlier: after > 0, Form: form}
	view.Open = view.State == conversations.Open
	names, err := n.aliases(ctx)
	if err != nil {
		return ownerError(err)
	}
	view.Alias = names[key.Peer]
	if view.Sayings, view.Later, err = p.sayings(c, conv, after); err != nil {
		return ownerError(err)
	}
	if conv.Bytes <= maxChainBytes {
		view.Chain = "intact"
		if err := n.book.Check(ctx, key, now); err != nil {
			view.Chain = "broken: " + err.Error()
		}
	}
	return p.shell.Render(c, p.conversation, httpapi.View{
		Title: "Conversation", Status: status, Wrong: wrong, Said: said(c), Data: view,
		Topics: []string{string(TopicConversations)}, Self: selfOfConversation(key, c.QueryParam("after")),
	})
}

func selfOfConversation(key store.ConvKey, after string) string {
	self := httpapi.PagePath + "/" + convPath(key)
	if after != "" {
		self += "?after=" + after
	}
	return self
}

// sayings reads a part of a transcript for people.
func (p *pages) sayings(c echo.Context, conv conversations.Conversation, after uint64) (list []saying, next uint64, err error) {
	entries, next, err := p.n.transcript(c.Request().Context(), conv, after)
	if len(entries) > maxSayings {
		entries = entries[:maxSayings]
		next = entries[maxSayings-1].N
	}
	for _, e := range entries {
		s := saying{N: e.N, Out: e.Direction == "out", At: e.At, ID: e.MessageID}
		var m struct {
			Intent  string          `json:"intent"`
			Payload json.RawMessage `json:"payload"`
		}
		if json.Unmarshal(e.Message, &m) != nil || len(m.Payload) == 0 { // of a foreign network
			m.Payload = e.Message
		}
		if s.Sealed = e.Sealed; e.Opened != nil {
			m.Payload = e.Opened.JSON()
		}
		s.Intent, s.Content = m.Intent, contentOf(m.Payload)
		s.Content.Exact = e.Message
		list = append(list, s)
	}
	return list, next, err
}

// reply answers in the conversation, and with it the newest message that waits there.
func (p *pages) reply(c echo.Context) error {
	form, err := httpapi.Form(c, maxPageForm)
	if err != nil {
		return err
	}
	key := store.ConvKey{Peer: c.Param("peer"), ID: c.Param("id")}
	typed := replyForm{
		Text: form.Get("text"), Action: form.Get("action"), Payload: form.Get("payload"),
		Time: form.Get("time"), Place: form.Get("place"), Selected: form.Get("selected"),
	}
	out, err := p.n.replying(c.Request().Context(), key)
	if err != nil {
		return err
	}
	if out.Intent, out.Payload, err = typed.payload(out.Intent); err != nil {
		return p.conversationPage(c, http.StatusBadRequest, err.Error(), typed)
	}
	sent, err := p.n.checkedSend(c.Request().Context(), out)
	if refusal, ok := errors.AsType[*wire.Error](err); ok {
		return p.conversationPage(c, refusal.Status, refusal.Message, typed)
	}
	if err != nil {
		return ownerError(err)
	}
	return httpapi.Done(c, convPath(key), sentAs(sent))
}

func (p *pages) close(c echo.Context) error {
	form, err := httpapi.Form(c, maxPageForm)
	if err != nil {
		return err
	}
	key := store.ConvKey{Peer: c.Param("peer"), ID: c.Param("id")}
	status := form.Get("status")
	if status != "completed" && status != "failed" {
		return fault(http.StatusBadRequest, "status must be completed or failed", "")
	}
	out, err := p.n.continuing(c.Request().Context(), key)
	if err != nil {
		return err
	}
	out.Payload = wire.Obj(
		wire.Member{Key: "action", Value: wire.Text(wire.ActionClose)},
		wire.Member{Key: "status", Value: wire.Text(status)},
	)
	_, err = p.n.checkedSend(c.Request().Context(), out)
	if refusal, ok := errors.AsType[*wire.Error](err); ok {
		return p.conversationPage(c, refusal.Status, refusal.Message, replyForm{})
	}
	if err != nil {
		return ownerError(err)
	}
	return httpapi.Done(c, convPath(key), "closed")
}

// sentAs names what the page says of a message that leaves.
func sentAs(sent Sent) string {
	if sent.State == SendHeld {
		return "held"
	}
	return "sent"
}
