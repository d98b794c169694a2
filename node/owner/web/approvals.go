package web

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/node/zone"
	"github.com/agentmesh/agentmesh/store"
)

// askView is a question to the owner as the page shows it: the sender, how the sender was verified, the exact content,
// and its hash.
type askView struct {
	owner.Approval
	Behind  []laterMessage // the later messages that are decided with this one, in order
	What    string         // the question, in our words
	Address string
	Proof   string
	Intent  string
	Content content
	Facts   []owner.Fact // the other members of the question's body
	Buttons []button
	Whole   bool // everything is shown, so the owner can decide on this page
}

type laterMessage struct {
	ID, Hash string
	Created  time.Time
	Name     string
	Intent   string
	Conv     store.ConvKey
	Content  content
}

type button struct {
	Choice acl.Choice
	Label  string
	Class  string
}

// questionTitles are the titles of questions by kind. A question of another kind has its own.
var questionTitles = map[string]string{
	owner.AskMessage: "A message waits", owner.AskOutgoing: "Your agent wants to send", owner.AskTask: "Your agent wants to answer",
	owner.AskInterrupted: "A hook was interrupted", owner.AskQuestion: "Your agent asks you", owner.AskKeyChange: "A key changed",
}

var choiceClasses = map[acl.Choice]string{acl.Approve: "strong", acl.Block: "danger"}

// separateMembers are members of a question's body that the page shows in places of their own, or not at all.
var separateMembers = []string{"payload", "from", "name", "address", "verified", "intent", "item", "to", "via", "hold", "bound"}

func viewAsks(asks []owner.Approval) []askView {
	var views []askView
	for _, ask := range asks {
		views = append(views, viewAsk(ask))
	}
	return views
}

// viewAsk returns the view of a question, with the messages that are decided with it.
func viewAsk(ask owner.Approval) askView {
	v := viewQuestion(ask)
	for _, m := range ask.Messages[min(1, len(ask.Messages)):] {
		behind := laterMessage{
			ID: m.Ask, Hash: m.Hash, Created: m.At, Name: m.Name, Intent: string(m.Intent),
			Conv: store.ConvKey{Peer: string(m.From), ID: string(m.Conversation)}, Content: contentOf(m.Payload),
		}
		v.Behind = append(v.Behind, behind)
		v.Whole = v.Whole && !behind.Content.Large
	}
	return v
}

// viewQuestion returns the view of a question, without the later messages that are decided with it.
func viewQuestion(ask owner.Approval) askView {
	v := askView{Approval: ask, What: capitalize(ask.Title), Whole: true} // the title is our text, also from a bridge
	if title := questionTitles[ask.Kind]; title != "" {
		v.What = title
	}
	for _, choice := range ask.Choices {
		v.Buttons = append(v.Buttons, button{Choice: choice, Label: ask.Label(choice), Class: choiceClasses[choice]})
	}
	body, err := wire.ParseObject(ask.Body)
	if err != nil { // a body in a bridge's own format
		v.Content = contentOf(ask.Body)
		return v
	}
	v.Address, v.Intent = body.GetStr("address"), body.GetStr("intent")
	if proof := body.GetStr("verified"); proof != "" {
		v.Proof = proofText(proof)
	}
	if ask.Kind == owner.AskMessage {
		switch body.GetStr("hold") {
		case "sender":
			v.What = "A stranger writes"
		case "intent":
			v.What = "A message asks for your decision"
		case "turns":
			v.What = capitalize(body.GetStr("reason"))
		}
	}
	if ask.Rule == owner.RuleUnproven {
		v.What += ", and the id is not proven"
	}
	if payload, ok := body.Get("payload"); ok {
		v.Content = contentOf(json.RawMessage(payload.JSON()))
	}
	v.Facts = owner.FactsOf(body.Without(separateMembers...), false)
	v.Whole = !v.Content.Large
	return v
}

func capitalize(s string) string {
	first, size := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(first)) + s[size:]
}

func (v askView) Pending() bool { return v.State == acl.AskPending }

func (v askView) Outcome() string { return owner.Outcome(v.Ask) }

// proofText describes how a sender was verified.
func proofText(proof string) string {
	switch proof {
	case "signature":
		return "signature checked, with the key on the sender's card"
	case "bearer":
		return "a token that only the sender has, checked by the bridge"
	case "none", "":
		return "not at all: only the other network names the sender"
	}
	return proof
}

var askStates = []acl.AskState{acl.AskPending, acl.AskApproved, acl.AskRejected, acl.AskWithdrawn, acl.AskExpired}

type approvalsView struct {
	State  acl.AskState
	States []acl.AskState
	Asks   owner.List[askView]
	// Strangers reports whether strangers are among the waiting senders on this page of the list.
	Strangers bool
}

// maxAskCards is how many questions one page shows, each with its content.
const maxAskCards = 10

func (p *pages) showApprovals(c echo.Context) error {
	view := approvalsView{State: acl.AskState(c.QueryParam("state")), States: askStates}
	if !slices.Contains(askStates, view.State) {
		view.State = acl.AskPending
	}
	q := latest(view.State, c.QueryParam("before"))
	if view.State == acl.AskPending { // oldest first, so that a new question moves nothing
		q = owner.Query{State: string(view.State), After: c.QueryParam("after"), Limit: maxAskCards}
	}
	asks, err := p.n.ListApprovals(c.Request().Context(), q)
	if err != nil {
		return err
	}
	view.Asks.Items, view.Asks.Next = viewAsks(asks.Items), asks.Next
	view.Strangers = view.State == acl.AskPending && slices.ContainsFunc(asks.Items, isAboutSender)
	return p.shell.Render(c, p.approvals, httpapi.View{
		Title: "Approvals", Topics: []string{string(owner.TopicApprovals)}, Done: p.doneMessage(c), Undo: p.undo(c), Data: view,
	})
}

// isAboutSender reports whether the question is whether a sender may write at all.
func isAboutSender(ask owner.Approval) bool {
	return len(ask.Messages) > 0 && ask.Messages[0].Hold == "sender"
}

func (p *pages) showApproval(c echo.Context) error { return p.renderApproval(c, http.StatusOK, "") }

// renderApproval responds with the page of one question, which shows errorText if that is not empty.
func (p *pages) renderApproval(c echo.Context, status int, errorText string) error {
	ask, err := p.n.FindApproval(c.Request().Context(), c.Param("id"))
	if err != nil {
		return err
	}
	view := viewAsk(ask)
	view.Whole = true // this page shows content of any size
	return p.shell.Render(c, p.approval, httpapi.View{
		Title: view.What, Status: status, Error: errorText, Topics: []string{string(owner.TopicApprovals)},
		Self: httpapi.PagePath + "/approvals/" + ask.ID, Data: view,
	})
}

// decide carries out a choice. The form has the hash of what the page showed, so the owner decides exactly about that
// (AM-34).
func (p *pages) decide(c echo.Context, form url.Values) error {
	ctx, choice := c.Request().Context(), acl.Choice(form.Get("choice"))
	var was acl.Standing
	ask, err := p.n.FindApproval(ctx, c.Param("id"))
	if err == nil {
		was, err = p.standing(c, ask.Subject)
	}
	if err != nil {
		return err
	}
	decided, err := p.n.Decide(ctx, c.Param("id"), owner.Decision{Choice: choice, Hash: form.Get("hash"), Text: form.Get("text"), By: door}, 0)
	next := "approvals"
	if decided.Conv.ID != "" { // what was decided about goes on there
		if _, err := p.n.ReadTranscript(ctx, decided.Conv.ID, decided.Conv.Peer, noEntries); err == nil {
			next = convPath(decided.Conv.Peer, decided.Conv.ID)
		}
	}
	switch {
	case err == nil:
		return p.doneChanged(c, next, didOf(decided.Ask), decided.Subject, was)
	case errors.Is(err, acl.ErrAskGone):
		return p.renderApproval(c, http.StatusConflict, "This was decided before: "+decidedText(decided.Ask)+". Your choice changed nothing.")
	case errors.Is(err, acl.ErrHashMismatch):
		return p.renderApproval(c, http.StatusConflict, "The message here is not the one that you saw. Nothing was decided; look again.")
	case errors.Is(err, acl.ErrChoice):
		return p.renderApproval(c, http.StatusBadRequest, "This question has no such answer. Nothing was decided.")
	}
	if refusal, ok := errors.AsType[*wire.Error](err); ok && refusal.Status < http.StatusInternalServerError {
		return p.renderApproval(c, http.StatusConflict, "It cannot be released: "+refusal.Message+". Nothing was decided.")
	}
	return err
}

// didOf returns the key of the message about a decision; see doneMessages.
func didOf(decided acl.Ask) string {
	if decided.LetsIn(decided.Choice) {
		return "let-in"
	}
	return string(decided.Choice)
}

// decidedText returns what was decided, through which interface, and when.
func decidedText(ask acl.Ask) string {
	text := owner.Outcome(ask)
	if ask.By != "" {
		text += " by " + ask.By
	}
	if !ask.Decided.IsZero() {
		text += ", " + zone.In(ask.Decided).Format("2 Jan 2006, 15:04:05")
	}
	return text
}

func (p *pages) rejectStrangers(c echo.Context, _ url.Values) error {
	if err := httpapi.KeepOpen(c, owner.RejectFor); err != nil {
		return err
	}
	if _, err := p.n.RejectStrangers(c.Request().Context(), door); err != nil {
		return err
	}
	return httpapi.Done(c, "approvals", "strangers")
}
