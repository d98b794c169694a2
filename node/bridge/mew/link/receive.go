package link

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// handleJob handles an envelope for the node, and logs an error.
func (l *Link) handleJob(ctx context.Context, j job) {
	toUs := slices.Contains(j.e.To, l.Name())
	var err error
	switch j.e.Kind {
	case envelope.KindChat:
		err = l.handleChat(ctx, j)
	case envelope.KindChatCancel:
		err = l.cancelChat(ctx, j)
	case envelope.KindProposal:
		err = l.handleProposal(ctx, j)
	case envelope.KindWithdraw:
		err = l.closeProposals(ctx, j, "withdrawn by its proposer")
	case envelope.KindRequest:
		err = l.closeProposals(ctx, j, "fulfilled by another participant")
		if toUs {
			err = errors.Join(err, l.handleRequest(ctx, j))
		}
	case envelope.KindResponse:
		err = l.handleResponse(ctx, j)
	}
	if err != nil && ctx.Err() == nil {
		l.log.Info("handle an envelope of the space", "kind", envelope.ToPrintable(j.e.Kind, envelope.MaxKind), "from", envelope.ToPrintable(j.e.From, envelope.MaxName), "err", err)
	}
}

func (l *Link) address(peer string) bridge.Address {
	return bridge.Address{Kind: Kind, Link: l.cfg.Name, Peer: peer}
}

// newInbound returns an envelope in the form in which a bridge hands it to the node (MEW-L2).
func (l *Link) newInbound(j *job, conv wire.ConversationID, intent wire.Intent, payload wire.Value) (bridge.Inbound, error) {
	address := l.address(j.e.From)
	if err := address.Validate(); err != nil {
		return bridge.Inbound{}, wire.ErrNotAllowed.Because(err)
	}
	payload = markSource(address, payload, j.e.ID)
	body := payload.JSON()
	if len(body) > wire.MaxMessage {
		return bridge.Inbound{}, wire.ErrTooLarge
	}
	if _, err := wire.ParseObject(body); err != nil { // the node would store another number, or could not read the payload
		return bridge.Inbound{}, wire.ErrSyntax.Because(err)
	}
	at, ok := wire.ParseTime(j.e.Time)
	if !ok {
		at = j.at
	}
	return bridge.Inbound{
		Principal: l.principal, Peer: address.Pseudonym(), Address: address.String(), Name: j.e.From, Verified: bridge.VerifiedNone,
		MessageID: wire.MessageID("msg_" + wire.HashOf(l.cfg.Name, string(j.raw))), ConvID: conv, Intent: intent, Payload: payload,
		Time: at, Received: j.at, Raw: j.raw, Digest: sha256.Sum256(j.raw), Meter: l.meter,
	}, nil
}

// markSource writes the origin of a payload into its metadata.bridge: the address and the id of the envelope.
func markSource(address bridge.Address, payload wire.Value, id string) wire.Value {
	payload = address.Mark(payload, false) // false: the sender did not prove its identity
	meta, _ := payload.Get("metadata")
	from, _ := meta.Get("bridge")
	return payload.With("metadata", meta.With("bridge", from.With("envelope_id", wire.Text(id))))
}

// handleChat gives a chat for this node to the node, as a mesh.message (MEW-L3).
func (l *Link) handleChat(ctx context.Context, j job) error {
	text := j.e.Payload.GetStr("text")
	if text == "" || !l.passesFilter(&j.e, text) {
		return nil
	}
	message := wire.Obj(wire.TextField("body", text))
	if f := j.e.Payload.GetStr("format"); f == "markdown" {
		message = message.With("format", wire.Text(f))
	}
	payload := wire.Obj(wire.TextField("action", "deliver"), wire.Field("message", message))
	out, err := l.accept(ctx, j, wire.Deliver, payload)
	switch {
	case err != nil:
		l.tellRefusal(ctx, &j.e, err)
		return err
	case out.Duplicate:
		return nil
	case out.Held:
		l.tellPending(ctx, &j.e, out)
	default:
		l.acknowledge(ctx, wire.HashOf(j.e.From, j.e.ID), "received")
	}
	return nil
}

// accept hands a message to the node, in the conversation that the message belongs to, or in a new one if that
// conversation is closed.
func (l *Link) accept(ctx context.Context, j job, intent wire.Intent, payload wire.Value) (bridge.Outcome, error) {
	peer := l.address(j.e.From).Pseudonym()
	convs := l.conversations(ctx, &j, peer)
	for _, conv := range convs {
		in, err := l.newInbound(&j, conv, intent, payload)
		if err != nil {
			return bridge.Outcome{}, err
		}
		in.Unattended = true // an answer comes through the outbox, which keeps it until the space takes it
		chat := storedChat{Message: in.MessageID, Conv: conv, From: j.e.From, Envelope: j.e.ID, Digest: hex.EncodeToString(in.Digest[:])}
		in.Records = []store.Change{
			l.records.markOpen(peer, conv), l.records.rememberInContext("chat", wire.HashOf(j.e.From, j.e.ID), chat, keepChat),
			l.records.remember("msg", string(in.MessageID), wire.HashOf(j.e.From, j.e.ID), keepChat),
		}
		out, err := l.b.cfg.Mesh.Accept(ctx, in)
		if errors.Is(err, wire.ErrConversationClosed) && conv != convs[len(convs)-1] {
			l.records.apply(ctx, l.records.drop("open", openKey(peer, conv)))
			continue
		}
		return out, err
	}
	return bridge.Outcome{}, wire.ErrConversationClosed
}

// conversations returns the conversations to which a chat may belong, the likeliest first, and last a new one. The
// likeliest is the one of the envelope that the chat answers, or else of the chat's context, or else the only open one.
func (l *Link) conversations(ctx context.Context, j *job, peer wire.AgentID) []wire.ConversationID {
	var out []wire.ConversationID
	for _, id := range j.e.Correlation[:min(len(j.e.Correlation), maxAnswered)] {
		if s, ok := load[sentEnvelope](ctx, l.records, "sent", id); ok && s.Peer == j.e.From {
			out = append(out, s.Conv)
			break
		}
	}
	switch {
	case len(out) > 0:
	case j.e.Context != "":
		if own := wire.ConversationID(j.e.Context); own.Valid() && l.hasConversation(ctx, peer, own) {
			out = append(out, own)
		} else {
			out = append(out, wire.ConversationID("conv_"+wire.HashOf(l.cfg.Name, j.e.From, "context", j.e.Context)))
		}
	default:
		if conv := l.records.onlyOpen(ctx, peer); conv != "" {
			out = append(out, conv)
		}
	}
	return append(out, wire.ConversationID("conv_"+wire.HashOf(l.cfg.Name, j.e.From, "envelope", string(j.raw))))
}

func (l *Link) hasConversation(ctx context.Context, peer wire.AgentID, conv wire.ConversationID) bool {
	_, err := l.b.cfg.Steps.Conversation(ctx, store.ConvKey{Peer: string(peer), ID: string(conv)}, time.Now())
	return err == nil
}

// passesFilter reports whether the filter of the link admits an envelope with this text.
func (l *Link) passesFilter(e *envelope.Envelope, text string) bool {
	return l.cfg.Policy.Filter.Admits(e.Kind, e.From, func() string { return text })
}

// acknowledge tells the sender of a chat that the chat has this status. It tells each status once, and none after
// statusRead (MEW-L3). After statusRead, the records stay for a day, so that an answer can still refer to the chat.
func (l *Link) acknowledge(ctx context.Context, key, status string) {
	l.acks.Lock()
	defer l.acks.Unlock()
	chat, ok := load[storedChat](ctx, l.records, "chat", key)
	if !ok || chat.Acknowledged == status || chat.Acknowledged == statusRead {
		return
	}
	err := l.space.tell(envelope.Draft{Kind: envelope.KindChatAcknowledge, To: []string{chat.From}, Correlation: []string{chat.Envelope}, Payload: wire.Obj(wire.TextField("status", status))})
	if err != nil && !errors.Is(err, errMayNot) {
		return // the node is not in the space now; the link does not try again
	}
	chat.Acknowledged = status
	if status == statusRead {
		l.records.apply(ctx, l.records.remember("chat", key, chat, keepOpen), l.records.remember("msg", string(chat.Message), key, keepOpen))
		return
	}
	l.records.apply(ctx, l.records.rememberInContext("chat", key, chat, keepChat))
}

// cancelChat withdraws a chat that the owner has not read. If the chat waits for the owner's approval, the question is
// withdrawn; otherwise the node takes the cancellation like any message.
func (l *Link) cancelChat(ctx context.Context, j job) error {
	for _, id := range j.e.Correlation[:min(len(j.e.Correlation), maxCorrelated)] {
		key := wire.HashOf(j.e.From, id)
		chat, ok := load[storedChat](ctx, l.records, "chat", key)
		if !ok || chat.From != j.e.From || chat.Acknowledged == statusRead {
			continue
		}
		if err := l.withdraw(ctx, j, chat.Conv, wire.Deliver, chat.Digest, "cancelled by its sender", []store.Change{
			l.records.drop("chat", key), l.records.drop("msg", string(chat.Message))}); err != nil {
			return err
		}
	}
	return nil
}

// withdraw makes the node withdraw the message with this digest, which waits for the owner, or all such messages of the
// conversation if digest is empty (AM-36). The node commits records together with the withdrawal.
func (l *Link) withdraw(ctx context.Context, j job, conv wire.ConversationID, intent wire.Intent, digest, reason string, records []store.Change) error {
	in, err := l.newInbound(&j, conv, intent, wire.Obj(wire.TextField("action", "withdraw"), wire.TextField("reason", reason)))
	if err != nil {
		return err
	}
	in.MessageID = wire.MessageID("msg_" + wire.HashOf(l.cfg.Name, string(conv), digest, string(j.raw)))
	in.Cancels, in.Records, in.Draw = digest, records, bridge.DrawNothing // it does not count toward the link's limits
	_, err = l.b.cfg.Mesh.Accept(ctx, in)
	return err
}
