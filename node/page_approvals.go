package node

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// askView is a question to the owner as the page shows it: who, verified how, exactly what, and its hash.
type askView struct {
	acl.Ask
	Behind  []askView // what is decided with it, in order
	What    string    // the question, in our words
	Name    string    // as the other side calls itself
	Address string
	Proof   string
	Intent  string
	Content content
	Facts   []fact // what else the question is about
	Buttons []button
	Whole   bool // everything is shown, so it can be decided here
}

// button is one choice.
type button struct {
	Choice acl.Choice
	Label  string
	Class  string
}

// questions says what the kinds ask, and what their choices are called where that differs.
var questions = map[string]struct {
	what   string
	labels map[acl.Choice]string
}{
	askMessage:     {"A message waits", nil},
	askOutgoing:    {"Your agent wants to send", map[acl.Choice]string{acl.Approve: "Send it", acl.ApproveAlways: "Always send to them", acl.Reject: "Do not send"}},
	askTask:        {"Your agent wants to answer", map[acl.Choice]string{acl.Approve: "Send it", acl.ApproveAlways: "Always send to them", acl.Reject: "Do not send"}},
	askInterrupted: {"A hook was interrupted", map[acl.Choice]string{acl.Approve: "Run it again", acl.Reject: "Leave it"}},
	askKeyChange:   {"A key changed", map[acl.Choice]string{acl.Approve: "Accept the new key", acl.Reject: "Keep the old key"}},
}

var choiceLabels = map[acl.Choice]string{
	acl.Approve: "Approve once", acl.ApproveConversation: "Approve this conversation", acl.ApproveAlways: "Always approve", acl.Reject: "Reject", acl.Block: "Block",
}

var choiceClasses = map[acl.Choice]string{acl.Approve: "strong", acl.Block: "danger"}

// shownApart are members of a question's body that stand in places of their own.
var shownApart = []string{"payload", "from", "name", "address", "verified", "intent", "item", "to", "via", "hold"}

// view is viewAsk with what is decided with the question.
func (p *pages) view(ctx context.Context, ask acl.Ask) (askView, error) {
	v := viewAsk(ask)
	tail, err := p.n.asks.Tail(ctx, ask, time.Now())
	for _, t := range tail {
		behind := viewAsk(t)
		v.Behind = append(v.Behind, behind)
		v.Whole = v.Whole && behind.Whole
	}
	return v, err
}

func (p *pages) views(ctx context.Context, asks []acl.Ask) (views []askView, err error) {
	for _, ask := range asks {
		v, err := p.view(ctx, ask)
		if err != nil {
			return nil, err
		}
		views = append(views, v)
	}
	return views, nil
}

func viewAsk(ask acl.Ask) askView {
	v := askView{Ask: ask, What: ask.Kind, Whole: true}
	q, ok := questions[ask.Kind]
	if ok {
		v.What = q.what
	}
	for _, choice := range ask.Choices {
		b := button{Choice: choice, Label: choiceLabels[choice], Class: choiceClasses[choice]}
		if label := q.labels[choice]; label != "" {
			b.Label = label
		}
		if b.Label == "" {
			b.Label = string(choice)
		}
		v.Buttons = append(v.Buttons, b)
	}
	body, err := wire.ParseObject(ask.Body)
	if err != nil { // a bridge's own
		v.Content = contentOf(ask.Body)
		return v
	}
	v.Name, v.Address, v.Intent = body.GetStr("name"), body.GetStr("address"), body.GetStr("intent")
	if proof := body.GetStr("verified"); proof != "" {
		v.Proof = proofText(proof)
	}
	if ask.Kind == askMessage {
		switch body.GetStr("hold") {
		case "sender":
			v.What = "A stranger writes"
		case "intent":
			v.What = "A message asks for your decision"
		}
	}
	if ask.Rule == RuleUnproven {
		v.What += ", and the id is not proven"
	}
	if payload, ok := body.Get("payload"); ok {
		v.Content = contentOf(json.RawMessage(payload.JSON()))
	}
	v.Facts = factsOf(body.Without(shownApart...))
	v.Whole = !v.Content.Large
	return v
}

// Peer is who a message of ours would go to, or one of theirs came from.
func (v askView) Peer() string { return v.Subject }

// Pending says whether it still waits.
func (v askView) Pending() bool { return v.State == acl.AskPending }

// Outcome says how it ended.
func (v askView) Outcome() string {
	switch v.State {
	case acl.AskApproved:
		switch v.Choice {
		case acl.ApproveAlways:
			return "approved, always"
		case acl.ApproveConversation:
			return "approved, this conversation"
		}
		return "approved"
	case acl.AskRejected:
		if v.Choice == acl.Block {
			return "blocked"
		}
		return "rejected"
	case acl.AskWithdrawn:
		return "withdrawn, or answered elsewhere"
	case acl.AskExpired:
		if !v.Displaced.IsZero() {
			return "expired: the list was full, and another sender got its place"
		}
		return "expired without a decision"
	}
	return "waiting"
}

func proofText(proof string) string {
	switch proof {
	case bridge.VerifiedSignature:
		return "signature checked, with the key on the sender's card"
	case bridge.VerifiedBearer:
		return "a token that is the sender's alone; the bridge checked it"
	case bridge.VerifiedNone, "":
		return "nothing: the other network says so"
	}
	return proof
}

// askStates are the filters of the list.
var askStates = []acl.AskState{acl.AskPending, acl.AskApproved, acl.AskRejected, acl.AskWithdrawn, acl.AskExpired}

type approvalsView struct {
	State  acl.AskState
	States []acl.AskState
	Asks   listed[askView]
	// Strangers reports whether strangers are among what waits.
	Strangers bool
}

// maxAskCards is how many questions a page shows at once, each with all that it is about.
const maxAskCards = 10

func (p *pages) showApprovals(c echo.Context) error {
	ctx, now := c.Request().Context(), time.Now()
	view := approvalsView{State: acl.AskState(c.QueryParam("state")), States: askStates}
	if !slices.Contains(askStates, view.State) {
		view.State = acl.AskPending
	}
	list := func(after string, limit int) ([]acl.Ask, string, error) {
		return p.n.asks.List(ctx, acl.AskFilter{State: view.State}, after, limit, now)
	}
	if view.State == acl.AskPending { // what waits longest comes first, and what arrives moves nothing
		asks, next, err := list(c.QueryParam("after"), maxAskCards)
		if err != nil {
			return ownerError(err)
		}
		if view.Asks.Items, err = p.views(ctx, asks); err != nil {
			return ownerError(err)
		}
		view.Asks.Older = next
		view.Strangers = slices.ContainsFunc(asks, isAboutSender)
	} else {
		asks, err := latest("ask_", c.QueryParam("before"), now, millis, func(a acl.Ask) string { return a.ID }, list)
		if err != nil {
			return ownerError(err)
		}
		if view.Asks.Items, err = p.views(ctx, asks.Items); err != nil {
			return ownerError(err)
		}
		view.Asks.Older = asks.Older
	}
	return p.shell.Render(c, p.approvals, httpapi.View{
		Title: "Approvals", Topics: []string{string(TopicApprovals)}, Said: said(c), Data: view,
	})
}

func (p *pages) showApproval(c echo.Context) error { return p.approvalPage(c, http.StatusOK, "") }

// approvalPage shows one question, with everything that it is about.
func (p *pages) approvalPage(c echo.Context, status int, wrong string) error {
	ask, err := p.n.findAsk(c.Request().Context(), c.Param("id"))
	if err != nil {
		return ownerError(err)
	}
	view, err := p.view(c.Request().Context(), ask)
	if err != nil {
		return ownerError(err)
	}
	view.Whole = true
	return p.shell.Render(c, p.approval, httpapi.View{
		Title: view.What, Status: status, Wrong: wrong, Topics: []string{string(TopicApprovals)},
		Self: httpapi.PagePath + "/approvals/" + ask.ID, Data: view,
	})
}

// decide carries out a choice about exactly what the page showed: the form has its hash (AM-34).
func (p *pages) decide(c echo.Context) error {
	form, err := httpapi.Form(c, maxPageForm)
	if err != nil {
		return err
	}
	ctx, choice := c.Request().Context(), acl.Choice(form.Get("choice"))
	ask, err := p.n.decide(ctx, c.Param("id"), form.Get("hash"), choice, doorPage)
	switch {
	case err == nil:
		return httpapi.Done(c, "approvals", string(choice))
	case errors.Is(err, acl.ErrAskGone):
		return p.approvalPage(c, http.StatusConflict, "This was decided before: "+decidedText(ask)+". Your choice changed nothing.")
	case errors.Is(err, acl.ErrHashMismatch):
		return p.approvalPage(c, http.StatusConflict, "What you saw is not what waits here. Nothing was decided; look again.")
	case errors.Is(err, acl.ErrChoice):
		return p.approvalPage(c, http.StatusBadRequest, "This question has no such answer. Nothing was decided.")
	}
	if refusal, ok := errors.AsType[*wire.Error](err); ok && refusal.Status < http.StatusInternalServerError {
		return p.approvalPage(c, http.StatusConflict, "It cannot be released: "+refusal.Message+". Nothing was decided.")
	}
	return ownerError(err)
}

// decidedText says who decided what, and when.
func decidedText(ask acl.Ask) string {
	text := viewAsk(ask).Outcome()
	if ask.By != "" {
		text += " by " + ask.By
	}
	if !ask.Decided.IsZero() {
		text += ", " + ask.Decided.Local().Format("2 Jan 2006, 15:04:05")
	}
	return text
}

// decide finds the question and carries out a choice about it. The question is returned as it stands.
func (n *Node) decide(ctx context.Context, id, hash string, choice acl.Choice, by string) (acl.Ask, error) {
	ask, err := n.findAsk(ctx, id)
	if err != nil {
		return ask, err
	}
	ask, err = n.asks.Decide(ctx, ask.ID, hash, choice, by, time.Now())
	if err == nil {
		n.fresh.give()
	}
	return ask, err
}
