package a2a

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// caller is the client that makes a request.
type caller struct {
	name     string
	address  bridge.Address
	verified string        // [bridge.VerifiedBearer] or [bridge.VerifiedNone]
	sources  []rate.Source // network address and networks of the client, for limits
	relayed  string        // id of the task at the relay, for a call that came through one

	supportsMesh bool // the request names our extension
}

var errTooManyTasks = message.ErrBusy.At("the caller has too many open tasks or push notification configurations")

// accept hands a message of a caller to the node and returns its task. The row of the task changes in the transaction
// that accepts the message. If a caller with a token, or a relay, sends a message again, accept returns the task that
// the message belongs to (A2A-D4).
func (b *Bridge) accept(ctx context.Context, from caller, m message.Message, push *pushRow) (*taskRow, error) {
	address := from.address.String()
	if from.name == anonymous {
		m.ID += " " + cmp.Or(from.relayed, rand.Text()) // two callers without a token may choose the same id
	}
	contextID := m.ContextID
	if contextID == "" && m.TaskID == "" {
		contextID = "ctx_" + wire.HashOf(address, m.ID)
	}
	var t *taskRow
	if m.TaskID != "" {
		found, err := b.findTask(ctx, address, m.TaskID)
		if err != nil {
			return nil, err
		}
		if contextID != "" && contextID != found.Context {
			return nil, message.ErrParams.At("message.contextId is not that of the task")
		}
		t, contextID = found, found.Context
	}
	if m.TaskID == "" && b.full.has(address) {
		if _, err := b.loadTask(ctx, taskIDOf(address, m.ID)); errors.Is(err, message.ErrTaskNotFound) { // else the message came before
			return nil, errTooManyTasks
		}
	}
	const noTimeout = 0
	unlock, err := b.contexts.Lock(ctx, address+" "+contextID, noTimeout) // two messages must not open two conversations
	if err != nil {
		return nil, err
	}
	defer unlock()
	if t != nil { // another message may have changed it before we got the lock
		if t, err = b.findTask(ctx, address, t.ID); err != nil {
			return nil, err
		}
	}
	in, t, err := b.newInbound(ctx, from, m, contextID, t, push)
	if err != nil {
		return nil, err
	}
	out, err := b.cfg.Mesh.Accept(ctx, in)
	if errors.Is(err, store.ErrQuota) && b.evict(ctx, address) == nil {
		out, err = b.cfg.Mesh.Accept(ctx, in)
	}
	switch {
	case errors.Is(err, store.ErrQuota):
		return nil, errTooManyTasks
	case err != nil:
		return nil, message.FromMesh(err)
	case out.Duplicate:
		return b.findTask(ctx, address, t.ID)
	}
	entry := logEntry{State: a2a.TaskStateSubmitted}
	switch {
	case out.Held:
		entry = logEntry{State: a2a.TaskStateWorking, Text: message.TextWaits}
	case out.Status != http.StatusOK: // the answer comes later
		entry = logEntry{State: a2a.TaskStateWorking, Text: message.TextWorking}
	}
	err = b.advance(ctx, t.ID, func(t *taskRow) (logEntry, bool) { // unless the answer was faster
		return entry, t.last().State == a2a.TaskStateSubmitted && t.last().Reply == ""
	})
	if err != nil {
		return nil, err
	}
	return b.findTask(ctx, address, t.ID)
}

// newInbound returns the message for the node, and its task with the message. t is the task that m names, or nil.
func (b *Bridge) newInbound(ctx context.Context, from caller, m message.Message, contextID string, t *taskRow, push *pushRow) (bridge.Inbound, *taskRow, error) {
	address, now := from.address.String(), time.Now()
	id := messageIDOf(address, m.ID)
	if t != nil {
		isKnown := slices.Contains(t.Messages, id)
		switch {
		case t.last().State.Terminal() && !isKnown: // A2A-9
			return bridge.Inbound{}, nil, message.ErrUnsupported.At("the task has ended")
		case len(t.Messages) >= maxMessages && !isKnown:
			return bridge.Inbound{}, nil, message.ErrUnsupported.At("the task has too many messages")
		case !isKnown:
			t.Messages = append(t.Messages, id)
			t.enter(logEntry{State: a2a.TaskStateSubmitted}, now)
		}
	} else {
		conv, err := b.conversationFor(ctx, address, contextID, m.ID)
		if err != nil {
			return bridge.Inbound{}, nil, err
		}
		t = &taskRow{
			ID: taskIDOf(address, m.ID), Address: address, Context: contextID, Conv: conv, Mesh: from.supportsMesh,
			Messages: []wire.MessageID{id}, Log: []logEntry{{State: a2a.TaskStateSubmitted, At: now.UTC()}}, due: now.Add(closeTime),
		}
	}
	intent, payload := m.Payload()
	payload = from.address.Mark(payload, from.verified == bridge.VerifiedBearer) // sets metadata.bridge
	meta, _ := payload.Get("metadata")
	origin, _ := meta.Get("bridge")
	payload = payload.With("metadata", meta.With("bridge", origin.With("message_id", wire.Text(m.Tree.GetStr("messageId")))))
	if _, err := wire.ParseObject(payload.JSON()); err != nil { // the node would store another number, or could not read the payload
		return bridge.Inbound{}, nil, message.ErrParams.At("a message has at most 32 levels and 10,000 values, and no number of 2^53 or more").Because(err)
	}
	in := bridge.Inbound{
		Principal: address, Peer: from.address.Pseudonym(), Address: address, Name: from.name, Verified: from.verified, Sources: from.sources,
		MessageID: id, ConvID: t.Conv, Intent: intent, Payload: payload,
		Time: now, Received: now, Raw: m.Tree.JSON(), Digest: signing.Digest(m.Tree),
		Records:    []store.Change{t.change(now)},
		Unattended: true, // answers come as deliveries, so that they are durable before a caller sees them
	}
	if push != nil {
		push.Task = t.ID
		if err := b.checkRoom(ctx, push, now); err != nil {
			return in, nil, err
		}
		in.Records = append(in.Records, push.change(store.Any, now))
	}
	if len(in.Payload.JSON()) > wire.MaxMessage {
		return in, nil, message.ErrTooLarge
	}
	return in, t, nil
}

// conversationFor returns the newest open conversation of a context, or a new conversation (A2A-D3).
func (b *Bridge) conversationFor(ctx context.Context, address, contextID, messageID string) (wire.ConversationID, error) {
	tasks, err := b.tasksWith(ctx, contextTerm(address, contextID))
	if err != nil {
		return "", err
	}
	for _, t := range tasks {
		_, isOpen, _, err := b.endOf(ctx, t.convKey())
		if err != nil {
			return "", err
		}
		if isOpen {
			return t.Conv, nil
		}
	}
	return wire.ConversationID("conv_" + wire.HashOf(address, contextID, messageID)), nil
}

// cancel closes the conversation of a task, as its caller asked. All open tasks of the conversation end.
func (b *Bridge) cancel(ctx context.Context, from caller, t *taskRow) (*taskRow, error) {
	if t.last().State.Terminal() {
		return nil, message.ErrNotCancelable
	}
	now := time.Now()
	payload := wire.Obj(wire.TextField("action", wire.ActionClose), wire.TextField("status", "failed"))
	in := bridge.Inbound{
		Principal: t.Address, Peer: from.address.Pseudonym(), Address: t.Address, Name: from.name, Verified: from.verified, Sources: from.sources,
		MessageID: messageIDOf(t.Address, "cancel "+t.ID), ConvID: t.Conv, Intent: wire.Deliver,
		Payload: from.address.Mark(payload, from.verified == bridge.VerifiedBearer),
		Time:    now, Received: now, Raw: payload.JSON(), Digest: signing.Digest(payload),
	}
	if _, err := b.cfg.Mesh.Accept(ctx, in); err != nil && !errors.Is(err, wire.ErrConversationClosed) {
		return nil, message.FromMesh(err)
	}
	tasks, err := b.tasksWith(ctx, convTerm(t.convKey()))
	if err != nil {
		return nil, err
	}
	if err := b.advanceAll(ctx, tasks, logEntry{State: a2a.TaskStateCanceled, Text: message.TextCanceled}); err != nil {
		return nil, err
	}
	return b.findTask(ctx, t.Address, t.ID)
}
