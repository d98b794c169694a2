package node

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// convView is a conversation as the owner sees it, its state judged now.
type convView struct {
	ID        string              `json:"conversation_id"`
	Peer      string              `json:"peer"`
	Principal string              `json:"principal,omitempty"`
	State     conversations.State `json:"state"`
	Rejected  bool                `json:"rejected,omitempty"`
	Mine      bool                `json:"opened_by_us"`
	Sealed    bool                `json:"sealed,omitempty"`
	Intent    wire.Intent         `json:"intent"`
	Opened    time.Time           `json:"opened"`
	Last      time.Time           `json:"last"`
	Holds     int                 `json:"holds,omitempty"`
	Proposal  *ProposalView       `json:"proposal,omitempty"`
	Agreement *AgreementView      `json:"agreement,omitempty"`
	Entries   uint64              `json:"entries"`
	Bytes     int64               `json:"bytes"` // of the messages in the transcript
}

func (n *Node) view(ctx context.Context, conv conversations.Conversation, now time.Time) (v convView, err error) {
	v = convView{
		ID: conv.Key.ID, Peer: conv.Key.Peer, State: conv.At(now, n.book.IdleFor()), Rejected: conv.Rejected, Mine: conv.Mine, Sealed: conv.Sealed,
		Intent: conv.Intent, Opened: conv.Opened, Last: conv.Last, Holds: conv.Holds(now), Entries: conv.Entries,
		Bytes: conv.Bytes,
	}
	if conv.Principal != conv.Key.Peer {
		v.Principal = conv.Principal
	}
	v.Proposal = viewProposal(conv)
	v.Agreement, err = n.viewAgreement(ctx, conv, now)
	return v, err
}

// entryView is a transcript entry as the owner sees it. Message is what was received or sent, byte for byte; Opened is the
// payload that was sealed in it.
type entryView struct {
	N         uint64          `json:"n"`
	Direction string          `json:"direction"` // "in" or "out"
	At        time.Time       `json:"at"`
	MessageID string          `json:"message_id"`
	Message   json.RawMessage `json:"message"`
	Sealed    bool            `json:"sealed,omitempty"`
	Opened    *wire.Value     `json:"opened,omitempty"`
	Chain     string          `json:"chain"` // hex
}

func viewEntry(e store.Entry) entryView {
	v := entryView{
		N: e.N, Direction: "in", At: e.At, MessageID: e.MessageID, Message: json.RawMessage(e.Raw), Chain: hexOf(e.Chain),
	}
	if e.Out {
		v.Direction = "out"
	}
	if !json.Valid(e.Raw) { // a foreign message need not be JSON
		v.Message = wire.Text(string(e.Raw)).JSON()
	}
	if said, ok := conversations.SaidIn(e); ok && said.Sealed {
		if v.Sealed = true; !conversations.IsSealed(said.Payload) {
			v.Opened = &said.Payload
		}
	}
	return v
}

func (n *Node) ownerConversations(c echo.Context) error {
	p, err := readPage(c, conversations.Open, conversations.Completed, conversations.Failed, conversations.Expired)
	if err != nil {
		return err
	}
	now := time.Now()
	views := []convView{}
	next := p.Before
	for len(views) < p.Limit {
		filter := conversations.Filter{State: conversations.State(p.State)}
		page, err := n.book.List(c.Request().Context(), filter, next, p.Limit-len(views), now)
		if err != nil {
			return ownerError(err)
		}
		for _, conv := range page.Conversations {
			v, err := n.view(c.Request().Context(), conv, now)
			if err != nil {
				return ownerError(err)
			}
			views = append(views, v)
		}
		if next = page.Next; next == 0 {
			break
		}
	}
	return httpapi.JSON(c, http.StatusOK, struct {
		Items []convView `json:"items"`
		Next  uint64     `json:"next,omitempty"` // pass as before
	}{views, next})
}

// conversation finds what the owner named: by id or unique beginning of one, where two peers use the same id also by peer.
func (n *Node) conversation(ctx context.Context, id, peer string) (store.ConvKey, error) {
	if id == "" {
		return store.ConvKey{}, fault(http.StatusBadRequest, "name a conversation", "list them with: agentmesh conversations list")
	}
	if peer != "" {
		resolved, err := n.resolvePeer(ctx, peer)
		if err != nil {
			return store.ConvKey{}, err
		}
		peer = string(resolved)
	}
	if exact := (store.ConvKey{Peer: peer, ID: id}); peer != "" && wire.ConversationID(id).Valid() {
		_, err := n.store.Steps().Conversation(ctx, exact, time.Now())
		if !errors.Is(err, store.ErrNotFound) {
			return exact, err
		}
	}
	var found []store.ConvKey
	for before := uint64(0); ; {
		page, err := n.book.List(ctx, conversations.Filter{Peer: peer}, before, 500, time.Now())
		if err != nil {
			return store.ConvKey{}, ownerError(err)
		}
		for _, conv := range page.Conversations {
			if conv.Key.ID == id {
				found = append([]store.ConvKey{conv.Key}, found...)
			} else if strings.HasPrefix(conv.Key.ID, id) || strings.HasPrefix(conv.Key.ID, "conv_"+id) {
				found = append(found, conv.Key)
			}
		}
		if before = page.Next; before == 0 {
			break
		}
	}
	switch {
	case len(found) == 0:
		return store.ConvKey{}, fault(http.StatusNotFound, "there is no such conversation", "list them with: agentmesh conversations list")
	case len(found) > 1 && (found[0].ID != id || found[1].ID == id):
		return store.ConvKey{}, fault(http.StatusConflict, "more than one conversation fits", "name more of its id, or its peer")
	}
	return found[0], nil
}

func (n *Node) ownerConversation(c echo.Context) error {
	ctx := c.Request().Context()
	key, err := n.conversation(ctx, c.Param("id"), c.QueryParam("peer"))
	if err != nil {
		return err
	}
	var after uint64
	if s := c.QueryParam("after"); s != "" {
		if after, err = strconv.ParseUint(s, 10, 64); err != nil {
			return fault(http.StatusBadRequest, "after must be a number", "")
		}
	}
	now := time.Now()
	row, err := n.store.Steps().Conversation(ctx, key, now)
	if err != nil {
		return ownerError(err)
	}
	conv, err := conversations.Decode(row)
	if err != nil {
		return err
	}
	entries, next, err := n.transcript(ctx, conv, after)
	if err != nil {
		return ownerError(err)
	}
	view, err := n.view(ctx, conv, now)
	if err != nil {
		return ownerError(err)
	}
	return httpapi.JSON(c, http.StatusOK, struct {
		convView
		Transcript []entryView `json:"transcript"`
		Next       uint64      `json:"next,omitempty"` // pass as after
	}{view, entries, next})
}

// transcript returns a page of a transcript, the entries after the one numbered after. next is 0 on the last page.
func (n *Node) transcript(ctx context.Context, conv conversations.Conversation, after uint64) (views []entryView, next uint64, err error) {
	const maxEntries, maxBytes, atOnce = 500, 4 << 20, 16
	views = []entryView{}
	for bytes := 0; after < conv.Entries && len(views) < maxEntries && bytes < maxBytes; {
		entries, err := n.book.Transcript(ctx, conv.Key, after, min(atOnce, maxEntries-len(views)))
		if err != nil || len(entries) == 0 { // deleted meanwhile
			return views, 0, err
		}
		for _, e := range entries {
			if bytes >= maxBytes {
				break
			}
			views = append(views, viewEntry(e))
			after = e.N
			bytes += len(e.Raw)
		}
	}
	if after < conv.Entries {
		next = after
	}
	return views, next, nil
}

func (n *Node) ownerClose(c echo.Context) error {
	var req struct {
		Peer        string `json:"peer"`
		Status      string `json:"status"`
		WaitSeconds int    `json:"wait_seconds"`
	}
	if err := decodeOwner(c, &req); err != nil {
		return err
	}
	if req.Status != "completed" && req.Status != "failed" {
		return fault(http.StatusBadRequest, "status must be completed or failed", "")
	}
	ctx := c.Request().Context()
	key, err := n.conversation(ctx, c.Param("id"), req.Peer)
	if err != nil {
		return err
	}
	out, err := n.continuing(ctx, key)
	if err != nil {
		return err
	}
	out.Payload = wire.Obj(
		wire.Member{Key: "action", Value: wire.Text(wire.ActionClose)},
		wire.Member{Key: "status", Value: wire.Text(req.Status)},
	)
	return n.send(c, out, req.WaitSeconds)
}

func (n *Node) ownerDelete(c echo.Context) error {
	ctx := c.Request().Context()
	key, err := n.conversation(ctx, c.Param("id"), c.QueryParam("peer"))
	if err != nil {
		return err
	}
	if err := n.forget(ctx, key); err != nil {
		return ownerError(err)
	}
	return c.NoContent(http.StatusNoContent)
}
