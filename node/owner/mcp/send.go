package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/url"
	"strconv"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/untrusted"
	"github.com/agentmesh/agentmesh/node/wire"
)

// maxWaitSeconds is the longest that a tool waits. Clients give up after about a minute.
const maxWaitSeconds = 25

type sendArgs struct {
	To             string         `json:"to" jsonschema:"agent id, alias, name as shown, or address"`
	Text           string         `json:"text,omitempty" jsonschema:"what to say"`
	Data           map[string]any `json:"data,omitempty" jsonschema:"a whole payload in place of text"`
	Intent         string         `json:"intent,omitempty" jsonschema:"intent of data; default mesh.message"`
	Conversation   string         `json:"conversation,omitempty" jsonschema:"continue this conversation"`
	WaitSeconds    int            `json:"wait_seconds,omitempty" jsonschema:"wait for the answer, 1 to 25; default 1"`
	IdempotencyKey string         `json:"idempotency_key,omitempty" jsonschema:"repeat a failed call with the same key"`
}

type sentResult struct {
	Status       string     `json:"status"` // replied, delivered, reply_unverified, queued, waits_for_owner, failed, unknown
	Conversation string     `json:"conversation,omitempty"`
	Message      string     `json:"message,omitempty"`
	Question     string     `json:"question,omitempty"` // for mesh_ask_owner, which reads the owner's decision
	Code         string     `json:"code,omitempty"`     // of the failure
	Next         string     `json:"next,omitempty"`
	Reply        *Untrusted `json:"reply,omitempty"`
}

func (t *tools) send(ctx context.Context, _ *sdk.CallToolRequest, in sendArgs) (*sdk.CallToolResult, any, error) {
	payload, err := payloadOf(in.Text, in.Data)
	if err != nil {
		return nil, nil, err
	}
	wait, err := t.takeSend(in.WaitSeconds)
	if err != nil {
		return nil, nil, err
	}
	in.Conversation, _ = t.handles.find(in.Conversation, "")
	in.To, _ = t.handles.find(in.To, "")
	return t.runSend(ctx, owner.SendMessage.With(owner.NewMessage{
		To: in.To, Conversation: wire.ConversationID(in.Conversation), Intent: cmp.Or(wire.Intent(in.Intent), wire.Deliver),
		Payload: payload, WaitSeconds: wait, IdempotencyKey: in.IdempotencyKey,
	}), "")
}

type replyArgs struct {
	Conversation string         `json:"conversation" jsonschema:"conversation, or an inbox item"`
	Peer         string         `json:"peer,omitempty" jsonschema:"needed if two agents use this id"`
	Text         string         `json:"text,omitempty" jsonschema:"what to say"`
	Data         map[string]any `json:"data,omitempty" jsonschema:"a whole payload in place of text, such as an accept"`
	Proposal     string         `json:"proposal,omitempty" jsonschema:"the message_id of the proposal that you read; default the one you read last here"`
	Final        bool           `json:"final,omitempty" jsonschema:"also close the conversation as completed"`
	WaitSeconds  int            `json:"wait_seconds,omitempty" jsonschema:"1 to 25; default 1"`
}

func (t *tools) reply(ctx context.Context, _ *sdk.CallToolRequest, in replyArgs) (*sdk.CallToolResult, any, error) {
	payload, err := payloadOf(in.Text, in.Data)
	if err != nil {
		return nil, nil, err
	}
	wait, err := t.takeSend(in.WaitSeconds)
	if err != nil {
		return nil, nil, err
	}
	intent := wire.Intent("") // of the message that it answers
	if in.Text != "" {
		intent = wire.Deliver
	}
	in.Conversation, in.Peer = t.handles.conversation(in.Conversation, in.Peer)
	in.Proposal, _ = t.handles.find(in.Proposal, "")
	request := owner.NewReply{
		Conversation: in.Conversation, Peer: in.Peer, Intent: intent, Payload: payload, WaitSeconds: wait,
		Proposal: wire.MessageID(cmp.Or(in.Proposal, t.lastProposal(in.Conversation))),
	}
	if strings.HasPrefix(in.Conversation, "in_") {
		request.Item, request.Conversation = in.Conversation, ""
	}
	_, out, err := t.runSend(ctx, owner.Reply.With(request), in.Peer)
	result, ok := out.(sentResult)
	if !in.Final || err != nil || !ok || result.Status == "waits_for_owner" || result.Status == "failed" { // do not close
		return nil, out, err
	}
	if result.Conversation == "" { // the answer to a task of a bridge, which has no conversation
		return nil, out, nil
	}
	conversation, peer := t.handles.find(result.Conversation, in.Peer)
	if _, err = owner.Fetch(ctx, t.api, owner.CloseConversation.With(owner.Close{Peer: peer, Status: "completed"}, conversation)); err != nil {
		return nil, nil, errors.New("the reply is on its way, but the conversation was not closed; close it with mesh_close")
	}
	return nil, out, nil
}

type closeArgs struct {
	Conversation string `json:"conversation"`
	Peer         string `json:"peer,omitempty" jsonschema:"needed if two agents use this id"`
	Reason       string `json:"reason" jsonschema:"completed or failed"`
}

func (t *tools) close(ctx context.Context, _ *sdk.CallToolRequest, in closeArgs) (*sdk.CallToolResult, any, error) {
	if in.Reason != "completed" && in.Reason != "failed" {
		return nil, nil, errors.New("reason must be completed or failed")
	}
	wait, err := t.takeSend(0)
	if err != nil {
		return nil, nil, err
	}
	in.Conversation, in.Peer = t.handles.conversation(in.Conversation, in.Peer)
	return t.runSend(ctx, owner.CloseConversation.With(owner.Close{Peer: in.Peer, Status: in.Reason, WaitSeconds: wait}, in.Conversation), in.Peer)
}

type scheduleArgs struct {
	Agent    string `json:"agent" jsonschema:"agent id, alias, name as shown, or address"`
	Title    string `json:"title" jsonschema:"what the other side sees"`
	Window   string `json:"window,omitempty" jsonschema:"search for free times near this time, such as 2026-02-21T10:00:00-08:00; default now"`
	Duration string `json:"duration" jsonschema:"such as 45m"`
}

type scheduleResult struct {
	sentResult
	Offered []string `json:"offered"`
}

func (t *tools) schedule(ctx context.Context, _ *sdk.CallToolRequest, in scheduleArgs) (*sdk.CallToolResult, any, error) {
	wait, err := t.takeSend(10) // the calendar of the other side often answers within seconds
	if err != nil {
		return nil, nil, err
	}
	query := owner.Params("duration", in.Duration, "around", in.Window)
	free, err := owner.Fetch(ctx, t.api, owner.Call[struct {
		Free []string `json:"free"`
	}]{Method: "GET", Path: "calendar/free", Query: query})
	switch {
	case errors.Is(err, owner.ErrNotServed):
		return nil, nil, errors.New("your owner has not connected a calendar; propose times of your own with mesh_send")
	case err != nil:
		return nil, nil, err
	case len(free.Free) == 0:
		return nil, nil, errors.New("your owner has no free time of this length within two weeks; name another window or duration")
	}
	in.Agent, _ = t.handles.find(in.Agent, "")
	event := wire.Obj(wire.TextField("title", in.Title), wire.Field("proposed_times", wire.Texts(free.Free)), wire.TextField("duration", in.Duration))
	_, out, err := t.runSend(ctx, owner.SendMessage.With(owner.NewMessage{
		To: in.Agent, Intent: wire.Schedule, Payload: wire.Obj(wire.TextField("action", "propose"), wire.Field("event", event)), WaitSeconds: wait,
	}), "")
	if result, ok := out.(sentResult); ok {
		return nil, scheduleResult{result, free.Free}, err
	}
	return nil, nil, err
}

type askArgs struct {
	Text         string `json:"text,omitempty" jsonschema:"a new question; the owner answers yes or no"`
	Conversation string `json:"conversation,omitempty" jsonschema:"conversation that the question is about"`
	Question     string `json:"question,omitempty" jsonschema:"id of an earlier question of yours, to read its answer"`
	WaitSeconds  int    `json:"wait_seconds,omitempty" jsonschema:"0 to 25"`
}

// askResult is a question with the owner's answer. The owner's words are trusted.
type askResult struct {
	Question string `json:"question"`
	State    string `json:"state"` // pending, approved, rejected, withdrawn, expired
	Answer   string `json:"owner_says,omitempty"`
	Next     string `json:"next,omitempty"`
}

func (t *tools) askOwner(ctx context.Context, _ *sdk.CallToolRequest, in askArgs) (*sdk.CallToolResult, any, error) {
	if (in.Text == "") == (in.Question == "") {
		return nil, nil, errors.New("set one argument: text, to ask a new question, or question, to read the answer to an earlier one")
	}
	if in.Question != "" && !strings.HasPrefix(in.Question, "ask_") {
		return nil, nil, errors.New("the argument question takes the id of an earlier question; put a new question into text")
	}
	wait := min(max(in.WaitSeconds, 0), maxWaitSeconds)
	in.Conversation, _ = t.handles.find(in.Conversation, "")
	request := owner.AskOwner.With(owner.NewQuestion{Text: in.Text, Conversation: in.Conversation, WaitSeconds: wait})
	if in.Question != "" {
		request = owner.ShowQuestion.Call(in.Question).WithQuery(url.Values{"wait": {strconv.Itoa(wait)}})
	} else if _, err := t.takeSend(0); err != nil {
		return nil, nil, err
	}
	q, err := owner.Fetch(ctx, t.api, request)
	if err != nil {
		return nil, nil, err
	}
	out := askResult{Question: q.ID, State: string(q.State), Answer: q.Answer}
	if q.State == acl.AskPending {
		out.Next = "your owner has not answered yet; go on with other work, and call mesh_ask_owner with this question later"
	}
	return nil, out, nil
}

// takeSend takes one send from the limit and returns how many seconds to wait for the result: at least one, so that a
// first attempt that fails is in the result.
func (t *tools) takeSend(seconds int) (wait int, err error) {
	if !t.sends.Allow() {
		return 0, errors.New("you send too often; wait a minute before you try again")
	}
	return min(max(seconds, 1), maxWaitSeconds), nil
}

// runSend makes a call that sends, and returns its result. peer is the recipient's id if the conversation alone may not
// tell it, or "".
func (t *tools) runSend(ctx context.Context, c owner.Call[owner.Sent], peer string) (*sdk.CallToolResult, any, error) {
	sent, err := owner.Fetch(ctx, t.api, c)
	if err != nil {
		return nil, nil, err
	}
	with := t.partnerOf(ctx, string(sent.Conversation), peer)
	out := sentResult{Status: string(sent.State), Conversation: t.handles.name(untrusted.Text(sent.Conversation), with.peer), Message: string(sent.MessageID), Question: sent.Ask}
	switch {
	case sent.State == owner.SendHeld:
		out.Status, out.Next = "waits_for_owner", "tell your owner that this waits on the owner's page; then call mesh_wait, or mesh_ask_owner with the id that this result has as its question"
	case sent.ReplyTree.Kind() == wire.Object && sent.MessageID == "": // the result of an answer to a task of a bridge: no peer wrote it
	case sent.ReplyTree.Kind() == wire.Object:
		reply, intent := sent.ReplyTree, wire.Intent(sent.ReplyTree.GetStr("intent"))
		if payload, ok := reply.Get("payload"); ok {
			reply = payload
		}
		out.Status = string(owner.SendDelivered)
		switch action := reply.GetStr("action"); {
		case action == wire.ActionReceived && reply.Without("action", "metadata").Len() == 0: // only a receipt
		case action == wire.ActionPending:
			out.Next = "the other side's owner decides; call mesh_wait later"
		default:
			out.Status, out.Reply = "replied", t.handles.mark(textOf(intent, reply), with, t.pinOf(ctx, with.peer), maxResult/2)
		}
	case sent.Err != nil:
		out.Code = untrusted.Text(sent.Err.Code).OneOf(codes(), "other") // only the code, because a peer may have written the message
	}
	switch {
	case sent.State == owner.SendFailed:
		out.Next = "the message will not be delivered"
		if sent.Hint != "" {
			out.Next += "; tell your owner: " + sent.Hint
		}
	case sent.State != owner.SendQueued: // Status tells everything
	case sent.Err != nil:
		out.Next = "the other side is not reachable now; the message is delivered later"
	default:
		out.Next = "it is not known yet whether the message arrived; mesh_read shows an answer, or that the conversation has failed"
	}
	return nil, out, nil
}

// partnerOf returns the other side of a conversation. It is the zero party if the conversation has not begun yet.
func (t *tools) partnerOf(ctx context.Context, conversation, peer string) party {
	if conversation == "" {
		return party{}
	}
	query := owner.Params("after", strconv.FormatUint(math.MaxInt64, 10), "peer", peer)
	c, err := owner.Fetch(ctx, t.api, owner.ShowConversation.Call(conversation).WithQuery(query))
	if err != nil {
		return party{peer: peer}
	}
	return newParty(c.Peer, c.Address)
}

// codes returns the error codes of the protocol.
func codes() (list []string) {
	for _, e := range wire.Table() {
		list = append(list, string(e.Code))
	}
	return list
}

// payloadOf returns the payload for the arguments text and data of a tool, one of which must be set.
func payloadOf(text string, data map[string]any) (wire.Value, error) {
	switch {
	case (strings.TrimSpace(text) == "") == (data == nil):
		return wire.Value{}, errors.New("give either text or data")
	case data == nil:
		return wire.Obj(wire.TextField("action", "deliver"), wire.Field("message", wire.Obj(wire.TextField("body", text)))), nil
	}
	raw, err := json.Marshal(data)
	if err != nil {
		return wire.Value{}, err
	}
	return wire.ParseObject(raw)
}
