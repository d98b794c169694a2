package node

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Actions that need nothing beside their name, by intent: buttons of an answer.
var plainActions = map[wire.Intent][]string{
	wire.Schedule: {"accept", "decline", "cancel"}, wire.Negotiate: {"accept", "reject", "withdraw"},
}

// payload makes a payload of what was typed: an exact one, an action alone, or a text.
func (f replyForm) payload(intent wire.Intent) (wire.Intent, wire.Value, error) {
	switch {
	case strings.TrimSpace(f.Payload) != "":
		v, err := wire.ParseObject([]byte(f.Payload))
		if err != nil {
			return intent, v, errors.New("the exact payload is not a JSON object")
		}
		return intent, v, nil
	case f.Action != "":
		if !slices.Contains(plainActions[intent], f.Action) {
			return intent, wire.Value{}, errors.New("there is no such answer here")
		}
		members := []wire.Member{{Key: "action", Value: wire.Text(f.Action)}}
		if reason := strings.TrimSpace(f.Text); reason != "" {
			members = append(members, wire.Member{Key: "reason", Value: wire.Text(reason)})
		}
		return intent, wire.Obj(members...), nil
	case strings.TrimSpace(f.Text) == "":
		return intent, wire.Value{}, errors.New("there is nothing to say yet")
	}
	return wire.Deliver, wire.Obj(
		wire.Member{Key: "action", Value: wire.Text("deliver")},
		wire.Member{Key: "message", Value: wire.Obj(wire.Member{Key: "body", Value: wire.Text(f.Text)})},
	), nil
}

// answering has a message answer the newest one that waits in its conversation, if one does.
func (n *Node) answering(ctx context.Context, key store.ConvKey, out *Outgoing) error {
	waiting, err := n.itemsOf(ctx, key, ItemNew, ItemRead, ItemFailed, ItemInterrupted)
	if err != nil {
		return ownerError(err)
	}
	for _, item := range waiting {
		if item.Kind == "message" {
			out.InReplyTo, out.Answers = item.MessageID, item.ID
		}
	}
	return nil
}

// checkedSend sends what the owner typed, without waiting for its delivery.
func (n *Node) checkedSend(ctx context.Context, out Outgoing) (Sent, error) {
	if _, err := wire.CheckPayload(out.Intent, out.Payload); err != nil {
		return Sent{}, fault(http.StatusBadRequest, err.Error(), "")
	}
	sent, err := n.Send(ctx, out, 0)
	if errors.Is(err, wire.ErrConversationClosed) {
		err = fault(http.StatusConflict, "the conversation has ended", "start a new one")
	}
	return sent, err
}

type composeView struct {
	To, Kind, Text, Intent, Payload string
	Peers                           []peerView
	Intents                         []wire.Intent
}

// maxPeerOptions bounds the suggestions for a recipient.
const maxPeerOptions = 200

func (p *pages) showCompose(c echo.Context) error {
	return p.composePage(c, http.StatusOK, "", composeView{To: c.QueryParam("to"), Kind: "message"})
}

func (p *pages) composePage(c echo.Context, status int, wrong string, view composeView) error {
	peers, err := p.n.peerViews(c.Request().Context())
	if err != nil {
		return ownerError(err)
	}
	view.Peers, view.Intents = peers[:min(len(peers), maxPeerOptions)], wire.StandardIntents()
	return p.shell.Render(c, p.compose, httpapi.View{Title: "Write", Status: status, Wrong: wrong, Data: view})
}

func (p *pages) send(c echo.Context) error {
	form, err := httpapi.Form(c, maxPageForm)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	view := composeView{
		To: strings.TrimSpace(form.Get("to")), Kind: form.Get("kind"), Text: form.Get("text"), Intent: strings.TrimSpace(form.Get("intent")),
		Payload: form.Get("payload"),
	}
	out := Outgoing{Via: "owner"}
	if out.To, err = p.n.resolvePeer(ctx, view.To); err == nil {
		out.Intent, out.Payload, err = view.message()
	}
	var sent Sent
	if err == nil {
		sent, err = p.n.checkedSend(ctx, out)
	}
	if refusal, ok := errors.AsType[*wire.Error](err); ok {
		return p.composePage(c, refusal.Status, refusal.Message, view)
	}
	if err != nil {
		return ownerError(err)
	}
	if sent.State == SendHeld {
		return httpapi.Done(c, "approvals", "held")
	}
	return httpapi.Done(c, convPath(store.ConvKey{Peer: string(out.To), ID: string(sent.Conversation)}), "sent")
}

// message makes intent and payload of the form.
func (v composeView) message() (wire.Intent, wire.Value, error) {
	wrong := func(text string) error { return fault(http.StatusBadRequest, text, "") }
	if v.Kind == "exact" {
		payload, err := wire.ParseObject([]byte(v.Payload))
		if err != nil {
			return "", payload, wrong("the exact payload is not a JSON object")
		}
		intent := wire.Intent(v.Intent)
		if !intent.Standard() && !intent.Custom() {
			return "", payload, wrong("intent is neither a mesh.* nor a reverse-domain name")
		}
		return intent, payload, nil
	}
	if strings.TrimSpace(v.Text) == "" {
		return "", wire.Value{}, wrong("there is nothing to say yet")
	}
	if v.Kind == "question" {
		return wire.RequestInfo, wire.Obj(
			wire.Member{Key: "action", Value: wire.Text("ask")}, wire.Member{Key: "question", Value: wire.Text(v.Text)},
		), nil
	}
	return replyForm{Text: v.Text}.payload(wire.Deliver)
}
