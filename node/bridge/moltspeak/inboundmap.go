package moltspeak

import (
	"context"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// ownDomain is the domain of a query whose params are the payload of an AgentMesh request for information.
const ownDomain = "agentmesh"

// handleQuery passes a query to the node. In the domain agentmesh, its params are a question. In a configured domain,
// the query stays as it is. Any other query becomes a question whose text is the query in JSON.
func (b *Bridge) handleQuery(c *request, q message.Query) (answer, *message.Error) {
	conv, e := b.conversationOf(c)
	if e != nil {
		return answer{}, e
	}
	if q.Domain == ownDomain && q.Intent == "ask" && q.Params.GetStr("question") != "" {
		c.meshPayload = true
		return b.passOn(c, wire.RequestInfo, withAction("ask", q.Params), conv, convState{})
	}
	if slices.Contains(b.cfg.Domains, q.Domain) {
		return b.passOn(c, IntentQuery, withAction("query", c.m.P), conv, convState{})
	}
	ask := wire.Obj(wire.TextField("domain", q.Domain)).WithOptional("intent", q.Intent)
	if q.Params.Len() > 0 {
		ask = ask.With("params", q.Params)
	}
	payload := wire.Obj(wire.TextField("action", "ask"), wire.Field("question", wire.Text(string(c.maskPayload(ask, b.cfg.Reveal).JSON()))), wire.TextField("response_format", "json"))
	return b.passOn(c, wire.RequestInfo, payload, conv, convState{})
}

// withAction returns p with the member "action" in front. Every AgentMesh payload has this member.
func withAction(action string, p wire.Value) wire.Value {
	return wire.Obj(append([]wire.Member{wire.TextField("action", action)}, p.Without("action").Members()...)...)
}

// handleTask passes a task, or its end, to the node. It answers requests for the status itself.
func (b *Bridge) handleTask(c *request, t message.Task) (answer, *message.Error) {
	conv := taskConversation(c.m.From, t.ID)
	var old convState
	_, known, err := store.ReadRecord(c.ctx, b.records, nsConversations, convKey(c.address.String(), conv), &old, c.now)
	if err != nil {
		return answer{}, message.Fail(message.CodeInternal).Because(err)
	}
	if t.Action != "create" && (!known || old.Creator != c.m.From.Name()) { // not the peer's task, but perhaps ours
		return b.handleDelegatedTask(c, t)
	}
	state := convState{TaskID: t.ID, Creator: c.m.From.Name(), TaskState: "pending"}
	switch t.Action {
	case "status":
		data := wire.Obj(wire.TextField("task_id", t.ID), wire.TextField("status", old.TaskState))
		return success(data), b.replays.storeUnlessRepeat(c)
	case "cancel":
		state.TaskState, state.Done = "cancelled", true
		return b.passOn(c, wire.Intent(old.Intent), closePayload("failed"), conv, state)
	case "complete":
		state.TaskState, state.Done = "completed", true
		return b.passOn(c, wire.Intent(old.Intent), closePayload("completed"), conv, state)
	}
	if !t.Deadline.IsZero() && !c.now.Before(t.Deadline) {
		return answer{}, message.FailAt(message.CodeInvalidParam, "p.deadline", "has passed")
	}
	// An AgentMesh peer sends a message with a standard intent as a task whose type is the intent.
	intent, payload := IntentTask, c.m.P
	if standard := wire.Intent(t.Type); slices.Contains(wire.StandardIntents(), standard) && t.Params.GetStr("action") != "" {
		intent, payload, c.meshPayload = standard, t.Params, true
	}
	return b.passOn(c, intent, payload, conv, state)
}

// handleDelegatedTask handles complete and cancel for a task that we delegated; both close the conversation.
func (b *Bridge) handleDelegatedTask(c *request, t message.Task) (answer, *message.Error) {
	unknown := message.FailAt(message.CodeInvalidParam, "p.task_id", "is not a task of yours")
	var sent sentMessage
	_, known, err := store.ReadRecord(c.ctx, b.records, nsSent, "task "+wire.HashOf(c.m.From.Name(), t.ID), &sent, c.now)
	if err != nil {
		return answer{}, message.Fail(message.CodeInternal).Because(err)
	}
	if !known || t.Action == "status" {
		return answer{}, unknown
	}
	status := "completed"
	if t.Action == "cancel" {
		status = "failed"
	}
	out, e := b.passToNode(c, sent.Address, wire.Intent(sent.Intent), closePayload(status), sent.Conv, nil)
	if e != nil {
		return answer{}, e
	}
	return c.answerOutcome(out)
}

func closePayload(status string) wire.Value {
	return wire.Obj(wire.TextField("action", wire.ActionClose), wire.TextField("status", status))
}

// handleTool passes a tool call to the node. It answers list and describe itself.
func (b *Bridge) handleTool(c *request, t message.Tool) (answer, *message.Error) {
	at := slices.IndexFunc(b.cfg.Tools, func(i ToolInfo) bool { return i.Name == t.Tool })
	if t.Action != "list" && at < 0 {
		e := message.FailAt(message.CodeCapability, "p.tool", "is not offered here")
		e.Recoverable = false
		return answer{}, e
	}
	if t.Action == "invoke" {
		conv, e := b.conversationOf(c)
		if e != nil {
			return answer{}, e
		}
		return b.passOn(c, IntentTool, c.m.P, conv, convState{})
	}
	var list []wire.Value
	for i, info := range b.cfg.Tools {
		if t.Action == "list" || i == at {
			list = append(list, wire.Obj(wire.TextField("name", info.Name), wire.TextField("description", info.Description)))
		}
	}
	data := wire.Obj(wire.Field("tools", wire.Arr(list...)))
	if t.Action == "describe" {
		data = list[0]
	}
	return success(data), b.replays.storeUnlessRepeat(c)
}

// conversationOf returns the conversation id of the message that the request names in re, or else a new id.
func (b *Bridge) conversationOf(c *request) (string, *message.Error) {
	if c.m.Re != "" {
		var s replayRecord
		if _, ok, err := store.ReadRecord(c.ctx, b.records, nsReplays, replayKey(c.m.From, c.m.Re), &s, c.now); err != nil {
			return "", message.Fail(message.CodeInternal).Because(err)
		} else if ok && s.Conv != "" {
			return s.Conv, nil
		}
		var sent sentMessage
		if _, ok, err := store.ReadRecord(c.ctx, b.records, nsSent, c.m.Re, &sent, c.now); err != nil {
			return "", message.Fail(message.CodeInternal).Because(err)
		} else if ok && sent.Address == c.address.String() {
			return sent.Conv, nil
		}
	}
	return "conv_" + wire.HashOf(c.m.From.Name(), "message", c.m.ID), nil
}

func taskConversation(from message.Agent, task string) string {
	return "conv_" + wire.HashOf(from.Name(), "task", task)
}

// passOn passes the message to the node, stores state as the MoltSpeak side of its conversation, and turns the outcome
// into an answer. A message with another operation in the conversation of a task leaves the task as it is.
func (b *Bridge) passOn(c *request, intent wire.Intent, payload wire.Value, conv string, state convState) (answer, *message.Error) {
	address := c.address.String()
	state.Peer, state.Conv, state.Op, state.Intent, state.MeshPayload = address, conv, c.m.Op, string(intent), c.meshPayload
	var old convState
	if _, _, err := store.ReadRecord(c.ctx, b.records, nsConversations, convKey(address, conv), &old, c.now); err != nil {
		return answer{}, message.Fail(message.CodeInternal).Because(err)
	}
	keepsTask := state.TaskID == "" && old.TaskID != ""
	if keepsTask {
		state = old
	}
	state.Re, state.Boxed, state.Confidential = c.m.ID, c.packet.Boxed, c.m.Class == message.Confidential
	out, e := b.passToNode(c, address, intent, payload, conv, []store.Change{convChange(state, store.Any, c.now)})
	if e != nil {
		return answer{}, e
	}
	a, e := c.answerOutcome(out)
	// If this answer is final, a later close adds nothing.
	if e == nil && a.p.GetStr("status") != "partial" && !state.Done && !keepsTask {
		if err := updateConversation(c.ctx, b.records, state, c.now, func(state *convState) { state.Done = true }); err != nil {
			b.cfg.Logger.WarnContext(c.ctx, "moltspeak: cannot store a conversation", "err", err)
		}
	}
	return a, e
}

// passToNode passes the message to the node, together with changes of the bridge's own state. A hook's answer to an
// answer of the peer leaves through the outbox, as a message of its own.
func (b *Bridge) passToNode(c *request, address string, intent wire.Intent, payload wire.Value, conv string, records []store.Change) (bridge.Outcome, *message.Error) {
	hold := c.needsOwner(b.cfg.Tools)
	in, e := b.inbound(c, address, intent, payload, conv)
	if e != nil {
		return bridge.Outcome{}, e
	}
	in.Reply = c.m.Op == message.OpRespond || c.m.Op == message.OpError
	endsWork := in.Reply || payload.GetStr("action") == wire.ActionClose // needs no approval
	in.Unattended, in.Hold = in.Reply, hold && !endsWork
	in.Records = append(records, replayChange(c.m, replayRecord{Digest: hex.EncodeToString(c.digest[:]), Conv: conv}, c.isKnown(), store.Any, c.now))
	in.Screen = func(ctx context.Context, payload wire.Value) ([]store.Change, *wire.Error) {
		a, _ := c.answerOutcome(bridge.Outcome{Status: http.StatusOK, Reply: &wire.Message{Payload: payload}})
		out, e := b.screen(ctx, c.m.From, a.p, c.answerName(), c.now)
		if e == nil || e.Code == message.CodeInternal { // after an internal error, Bridge.reply screens the answer again
			return out.uses, nil
		}
		return nil, &wire.Error{Code: wire.Code(e.Code), Status: http.StatusConflict, Message: blockedError(e, c.m.From).Error()}
	}
	out, err := b.cfg.Mesh.Accept(c.ctx, in)
	if err != nil {
		return out, message.FromWire(err)
	}
	return out, nil
}

// inbound returns the message for the node. It refuses integers beyond 2^53, deep nesting and large messages, because
// AgentMesh does not permit them (MS-9).
func (b *Bridge) inbound(c *request, address string, intent wire.Intent, payload wire.Value, conv string) (bridge.Inbound, *message.Error) {
	a, err := bridge.ParseAddress(address)
	if err != nil {
		return bridge.Inbound{}, message.FailAt(message.CodeInvalidParam, "from", "is too long")
	}
	const verified = true // by its signature
	payload = c.markClass(a.Mark(c.maskPayload(payload, b.cfg.Reveal), verified), b.grants)
	raw := c.maskMessage()
	strict, err := wire.Parse(payload.JSON())
	if err != nil || len(raw) > wire.MaxMessage || strict.Kind() != wire.Object {
		return bridge.Inbound{}, errTooLarge().Because(err)
	}
	return bridge.Inbound{
		Principal: address, Peer: a.Pseudonym(), Address: address, Name: c.m.From.Name(), Verified: bridge.VerifiedSignature, Sources: c.sources,
		MessageID: wire.MessageID("msg_" + wire.HashOf(c.m.From.Name(), c.m.ID)), ConvID: wire.ConversationID(conv), Intent: intent,
		Payload: strict, Time: c.m.Time, Received: c.now, Raw: raw, Digest: c.digest, Deadline: c.deadline(), Purge: c.purge(),
	}, nil
}

func errTooLarge() *message.Error {
	return message.FailAt(message.CodeInvalidParam, "p", "is beyond the limits of AgentMesh: 32 levels, 256 KiB, integers within 2^53")
}

// keepConfidential is the time after which a confidential message is deleted (MS-37).
const keepConfidential = 7 * 24 * time.Hour

// purge returns the time at which the message must be deleted, or zero.
func (c *request) purge() time.Time {
	if c.m.Class != message.Confidential {
		return time.Time{}
	}
	return c.now.Add(keepConfidential)
}

// deadline returns the time at which the conversation must end, or zero if the message sets none (MS-33).
func (c *request) deadline() time.Time {
	end := c.m.Expires
	if t, ok := c.body.(message.Task); ok && !t.Deadline.IsZero() && (end.IsZero() || t.Deadline.Before(end)) {
		end = t.Deadline
	}
	return end
}

// markClass adds the class of the message to its payload, so that the owner sees it (MS-37). For personal data it also
// adds who consented and for what purpose. That is only a claim of the peer, unless the message names a consent that
// our owner gave to this peer; then verified is true (MS-42).
func (c *request) markClass(payload wire.Value, grants grants) wire.Value {
	meta, _ := payload.Get("metadata")
	mark, _ := meta.Get("bridge")
	mark = mark.With("cls", wire.Text(string(c.m.Class)))
	if p := c.m.PII; p != nil && c.m.Class == message.PII {
		jti, named := strings.CutPrefix(p.Proof, proofPrefix)
		_, given := grants.find(c.ctx, jti, c.m.From.Name(), c.now)
		mark = mark.With("consent", wire.Obj(wire.TextField("granted_by", wire.OneLine(p.GrantedBy, message.MaxText)),
			wire.TextField("purpose", wire.OneLine(p.Purpose, message.MaxText)), wire.Field("verified", wire.Bool(named && given))))
	}
	return payload.With("metadata", meta.With("bridge", mark))
}

// maskPayload returns the payload for the owner's lists and pages and for hooks. It masks personal data, unless the
// configuration reveals the data of this peer (MS-39).
func (c *request) maskPayload(p wire.Value, reveal []string) wire.Value {
	if c.m.Class != message.PII || slices.Contains(reveal, c.m.From.Name()) {
		return p
	}
	out := c.m.PII.Mask(p)
	// Mask does not decode the data of a binary stream. If the text in it is personal, mask the data as a whole.
	decoded := message.StreamText(p)
	if text := decoded.GetStr("data"); text != p.GetStr("data") && c.m.PII.Mask(decoded).GetStr("data") != text {
		return out.With("data", wire.Text(message.Masked))
	}
	return out
}

// maskMessage returns the message for the transcript. It masks personal data even if the configuration reveals it.
func (c *request) maskMessage() []byte {
	if c.m.Class != message.PII {
		return c.m.Tree.JSON()
	}
	return c.m.Mask().JSON()
}

// answerOutcome turns the node's outcome into an answer (MS-45).
func (c *request) answerOutcome(out bridge.Outcome) (answer, *message.Error) {
	raw, _ := wire.Parse(out.Raw)
	if out.Status >= http.StatusBadRequest {
		refusal, ok := wire.ParseError(out.Status, raw)
		if !ok {
			refusal = wire.ErrUnavailable
		}
		return answer{}, message.FromWire(refusal)
	}
	payload, _ := raw.Get("payload")
	if out.Reply != nil {
		payload = out.Reply.Payload
	}
	// A message that waits behind an earlier one of its sender gets only a receipt: the answer to the earlier one has
	// already said that the owner decides.
	if out.Held && out.Reply == nil && !out.Duplicate {
		payload = wire.Obj(wire.TextField("action", wire.ActionReceived))
	}
	p := toRespond(payload.Without("metadata"), c.meshPayload, c.meshPayload && c.m.Op == message.OpTask)
	a := answer{op: message.OpRespond, p: p.Value(), fromOwner: true}
	if isNotice(payload.GetStr("action")) {
		a.status = http.StatusAccepted
	}
	return a, nil
}

// isNotice reports whether a payload with this action only reports what became of a message.
func isNotice(action string) bool {
	return action == wire.ActionPending || action == wire.ActionReceived
}

// toRespond turns our payload into a respond message. A payload with the action respond keeps its status. If
// endsByClose is set, only a close ends the conversation, so any other payload is partial. For a peer that does not use
// AgentMesh payloads (toMesh is false), a payload with only a text becomes that text.
func toRespond(payload wire.Value, toMesh, endsByClose bool) message.Respond {
	r := message.Respond{Status: "success", Data: payload}
	switch action := payload.GetStr("action"); {
	case isNotice(action):
		r.Status = "partial"
		return r
	case action == wire.ActionClose:
		if payload.GetStr("status") == "failed" {
			r.Status = "error"
		}
		return r
	case action == "respond":
		if data, ok := payload.Get("data"); ok && slices.Contains([]string{"success", "error", "partial"}, payload.GetStr("status")) {
			return message.Respond{Status: payload.GetStr("status"), Data: data, Schema: payload.GetStr("schema")}
		}
	case endsByClose:
		r.Status = "partial"
	}
	if text, ok := plainText(payload); ok && !toMesh {
		r.Data = text
	}
	return r
}

// plainText returns the text of a payload that has only a text and its action: the body of a message, or an answer.
func plainText(payload wire.Value) (wire.Value, bool) {
	text, ok := payload.Get("answer")
	if m, isMessage := payload.Get("message"); isMessage {
		text, ok = m.Get("body")
		ok = ok && m.Len() == 1
	}
	return text, ok && text.Kind() == wire.String && payload.Len() == 2 && payload.GetStr("action") != ""
}

// receiveReply handles a respond or an error that answers one of our messages.
func (b *Bridge) receiveReply(c *request) (answer, *message.Error) {
	var sent sentMessage
	_, known, err := store.ReadRecord(c.ctx, b.records, nsSent, c.m.Re, &sent, c.now)
	if err != nil {
		return answer{}, message.Fail(message.CodeInternal).Because(err)
	}
	address, addressErr := bridge.ParseAddress(sent.Address)
	if !known || addressErr != nil || address.Peer != c.m.From.Name() {
		return answer{}, message.FailAt(message.CodeInvalidParam, "re", "is not one of our messages to you")
	}
	payload, end := replyPayload(c.body)
	intent := wire.Intent(sent.Intent)
	if !intent.IsStandard() {
		// An answer to a request for information commits nobody, whereas a message with a custom intent would wait
		// for the owner if no hook handles it.
		intent = wire.RequestInfo
	}
	out, e := b.passToNode(c, sent.Address, intent, payload, sent.Conv, nil)
	mayWait := out.Held || out.Duplicate && out.Status == http.StatusAccepted
	if e != nil || end == "" || mayWait { // a close would withdraw what waits for the owner
		return answer{}, e
	}
	final := *c // the peer's answer also ends the conversation
	final.m.ID = c.m.ID + "#close"
	final.m.Tree = wire.Obj(wire.TextField("id", c.m.ID), wire.TextField("op", string(c.m.Op)), wire.TextField("closes", end))
	if _, e := b.passToNode(&final, sent.Address, wire.Intent(sent.Intent), closePayload(end), sent.Conv, nil); e != nil && !errors.Is(e, wire.ErrConversationClosed) {
		return answer{}, e
	}
	return answer{}, nil
}

// replyPayload turns a peer's answer into an AgentMesh payload. end is the status of the close that follows, or "".
func replyPayload(p message.Payload) (payload wire.Value, end string) {
	switch r := p.(type) {
	case message.Fault:
		return wire.Obj(wire.TextField("action", "respond"), wire.TextField("status", "error"), wire.TextField("error", string(r.Code))), "failed"
	case message.Respond:
		end = map[string]string{"success": "completed", "error": "failed"}[r.Status]
		if r.Data.GetStr("action") != "" {
			if r.Data.GetStr("action") == wire.ActionClose {
				end = ""
			}
			return r.Data, end
		}
		v := wire.Obj(wire.TextField("action", "respond"), wire.TextField("status", r.Status), wire.Field("data", r.Data))
		return v.WithOptional("schema", r.Schema), end
	}
	return wire.Obj(wire.TextField("action", "respond")), ""
}
