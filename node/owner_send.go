package node

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// maxWait bounds how long the owner's request waits for a first delivery or an answer.
const maxWait = 55

// ownerSend starts or continues a conversation with an agent.
func (n *Node) ownerSend(c echo.Context) error {
	var req struct {
		To           string              `json:"to"`
		Conversation wire.ConversationID `json:"conversation"`
		Intent       wire.Intent         `json:"intent"`
		Payload      wire.Value          `json:"payload"`
		Seal         SealChoice          `json:"seal"`
		WaitSeconds  int                 `json:"wait_seconds"`
	}
	if err := decodeOwner(c, &req); err != nil {
		return err
	}
	to, address, err := n.recipientNamed(c.Request().Context(), req.To)
	if err != nil {
		return err
	}
	if req.Conversation != "" && !req.Conversation.Valid() {
		return fault(http.StatusBadRequest, "conversation is not a conversation id", "leave it out to start one")
	}
	return n.send(c, Outgoing{
		To: to, Address: address, Conv: req.Conversation, Intent: req.Intent, Payload: req.Payload, Seal: req.Seal, Via: "owner",
	}, req.WaitSeconds)
}

// recipientNamed turns what the owner typed into an agent id, and the address where it is that of a foreign peer
// ("agentrelay:free/agent-042").
func (n *Node) recipientNamed(ctx context.Context, name string) (to wire.AgentID, address string, err error) {
	if a, err := bridge.ParseAddress(name); err == nil && n.transports[a.Kind] != nil {
		return a.Pseudonym(), name, nil
	}
	to, err = n.resolvePeer(ctx, name)
	return to, "", err
}

// ownerReply answers in a conversation: the newest message that still waits there, if one does. Who names the inbox item
// instead answers that one, or nothing where somebody else has answered it (two agents that read one inbox).
func (n *Node) ownerReply(c echo.Context) error {
	var req struct {
		Conversation string      `json:"conversation"`
		Peer         string      `json:"peer"`
		Item         string      `json:"item"`
		Intent       wire.Intent `json:"intent"`
		Payload      wire.Value  `json:"payload"`
		Seal         SealChoice  `json:"seal"`
		WaitSeconds  int         `json:"wait_seconds"`
	}
	if err := decodeOwner(c, &req); err != nil {
		return err
	}
	ctx := c.Request().Context()
	var out Outgoing
	if req.Item != "" {
		item, err := n.findItem(ctx, req.Item)
		if err != nil {
			return ownerError(err)
		}
		if item.Kind == kindTask {
			return n.ownerAnswer(c, item, req.Payload, req.Seal)
		}
		if out, err = n.answering(ctx, item); err != nil {
			return err
		}
	} else {
		key, err := n.conversation(ctx, req.Conversation, req.Peer)
		if err != nil {
			return err
		}
		if out, err = n.replying(ctx, key); err != nil {
			return err
		}
	}
	out.Payload, out.Seal = req.Payload, req.Seal
	if req.Intent != "" {
		out.Intent = req.Intent
	}
	return n.send(c, out, req.WaitSeconds)
}

// ownerAnswer answers a task, which its bridge takes at once.
func (n *Node) ownerAnswer(c echo.Context, item Item, payload wire.Value, seal SealChoice) error {
	if seal == Sealed {
		return fault(http.StatusBadRequest, "a task of a bridge cannot be answered sealed", "")
	}
	sent, err := n.answerTask(c.Request().Context(), item, payload)
	if err != nil {
		return ownerError(err)
	}
	return httpapi.JSON(c, http.StatusOK, sent)
}

// replying is a message that goes on in a conversation, and answers the newest message that waits there, if one does.
func (n *Node) replying(ctx context.Context, key store.ConvKey) (Outgoing, error) {
	out, err := n.continuing(ctx, key)
	if err != nil {
		return Outgoing{}, err
	}
	waiting, err := n.itemsOf(ctx, key, unanswered...)
	if err != nil {
		return Outgoing{}, ownerError(err)
	}
	for _, item := range waiting {
		if item.Kind == kindMessage {
			out.InReplyTo, out.Answers = item.MessageID, item.ID
		}
	}
	return out, nil
}

// answering is a message that answers one inbox item, if nobody else has.
func (n *Node) answering(ctx context.Context, item Item) (Outgoing, error) {
	if err := item.answerable(); err != nil {
		return Outgoing{}, err
	}
	out, err := n.continuing(ctx, item.key())
	if err != nil {
		return Outgoing{}, err
	}
	out.Answers, out.Once = item.ID, true
	if item.Kind == kindMessage {
		out.InReplyTo = item.MessageID
	}
	return out, nil
}

// continuing is a message that goes on in a conversation: same peer, same intent.
func (n *Node) continuing(ctx context.Context, key store.ConvKey) (Outgoing, error) {
	row, err := n.store.Steps().Conversation(ctx, key, time.Now())
	if err != nil {
		return Outgoing{}, ownerError(err)
	}
	conv, err := conversations.Decode(row)
	if err != nil {
		return Outgoing{}, err
	}
	return Outgoing{
		To: wire.AgentID(key.Peer), Address: conv.Address, Conv: wire.ConversationID(key.ID), Intent: conv.Intent, Via: "owner",
	}, nil
}

// ownerWait is how long a request waits for an answer, for which it is kept open.
func ownerWait(c echo.Context, seconds int) (time.Duration, error) {
	if seconds < 0 || seconds > maxWait {
		return 0, fault(http.StatusBadRequest, "wait_seconds must be 0 to 55", "")
	}
	wait := time.Duration(seconds) * time.Second
	return wait, httpapi.KeepOpen(c, wait+10*time.Second)
}

func (n *Node) send(c echo.Context, out Outgoing, waitSeconds int) error {
	if !out.Seal.valid() {
		return fault(http.StatusBadRequest, "seal must be seal or open", "leave it out for what outgoing.seal says")
	}
	if out.Payload.Kind() != wire.Object {
		return fault(http.StatusBadRequest, "payload must be a JSON object", "")
	}
	if !out.Intent.Standard() && !out.Intent.Custom() {
		return fault(http.StatusBadRequest, "intent is neither a mesh.* nor a reverse-domain name", "for example mesh.schedule, com.example.invoice")
	}
	if _, err := wire.CheckPayload(out.Intent, out.Payload); err != nil {
		return fault(http.StatusBadRequest, err.Error(), "")
	}
	wait, err := ownerWait(c, waitSeconds)
	if err != nil {
		return err
	}
	sent, err := n.SendForAnswer(c.Request().Context(), out, wait)
	if err != nil {
		if errors.Is(err, wire.ErrConversationClosed) {
			return fault(http.StatusConflict, "the conversation has ended", "start a new one with: agentmesh send")
		}
		return ownerError(err)
	}
	return httpapi.JSON(c, http.StatusOK, sent)
}
