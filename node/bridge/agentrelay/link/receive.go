package link

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/wire"
)

func (l *Link) handleFrame(ctx context.Context, v wire.Value) {
	defer l.notifyTest()
	h := incoming{id: v.GetStr("id"), from: v.GetStr("from"), kind: v.GetStr("type"), ref: v.GetStr("ref")}
	ts, _ := v.Get("ts")
	_ = json.Unmarshal(ts.JSON(), &h.ts) // 0 if it is not a number
	h.payload, _ = v.Get("payload")
	to, _ := v.Get("to")
	switch {
	case len(h.id) > frame.MaxRefText, len(h.ref) > frame.MaxRefText, len(h.kind) > frame.MaxTypeText:
		return
	case h.from == frame.RelayID:
		l.handleNotice(&h)
		return
	case !frame.ValidAgentID(h.from), h.from == l.ownID(), h.id == "":
		return
	}
	l.peers.addSeen(h.from)
	if !l.passesFilter(&h) {
		return
	}
	h.extractMeshMembers(v)
	if h.kind == "discovery" {
		l.peers.noteSkills(&h)
	}
	if hasTarget(to, frame.Everybody) {
		l.handleBroadcast(ctx, &h, v.JSON())
		return
	}
	if !hasTarget(to, l.ownID()) {
		return
	}
	l.handleDirect(ctx, &h, v.JSON())
}

func hasTarget(to wire.Value, id string) bool {
	for e := range to.Elems() {
		if s, _ := e.Str(); s == id {
			return true
		}
	}
	return false
}

// handleNotice logs a frame from the relay itself, or shows it to the owner. Such a frame changes nothing (AR-30).
func (l *Link) handleNotice(h *incoming) {
	if h.kind == "error" {
		code := cmp.Or(h.payload.GetStr("code"), h.payload.GetStr("error"))
		l.log.Info("the relay refused a frame", slog.String("code", wire.OneLine(code, 64)))
	}
	if h.kind == "vote_result" {
		l.itemLog.add(newBroadcastItem(h))
	}
}

// passesFilter reports whether a message passes the owner's filter (AR-26).
func (l *Link) passesFilter(h *incoming) bool {
	f := l.cfg.Link.Policy.Filter
	if h.kind == "agentmesh" { // its words are in a message of the mesh
		f.Keywords = nil
	}
	return f.Admits(h.kind, h.from, func() string { return frame.SearchText(h.kind, h.payload) })
}

// handleBroadcast puts a message to everybody into the owner's feed. The node gets only a question, and only if the
// policy accepts broadcasts; its answer goes to the sender alone (AR-56).
func (l *Link) handleBroadcast(ctx context.Context, h *incoming, raw []byte) {
	if !l.itemLog.add(newBroadcastItem(h)) {
		return // seen before (AR-29)
	}
	if h.kind == "question" && l.cfg.Link.Policy.Broadcast {
		l.handToNode(ctx, h, raw)
	}
}

// handleDirect handles a frame to the node that is not a broadcast.
func (l *Link) handleDirect(ctx context.Context, h *incoming, raw []byte) {
	switch h.kind {
	case "discovery":
		return // it is not a message, and handleFrame has handled it
	case "agentmesh":
		l.handleTunnel(ctx, h)
		return
	}
	if h.kind == "data" && h.isMesh && h.payload.GetStr("action") == wire.ActionPending {
		note := newFeedItem(h)
		note.Note = "the peer asks its owner first"
		l.itemLog.add(note)
		return
	}
	l.handToNode(ctx, h, raw)
}

// handToNode gives a message to the node. If the message waits for the owner, the peer gets a notice at once; the answer
// of a hook leaves through the outbox. If the message answers a question of the node, the conversation ends when the node
// has handled it.
func (l *Link) handToNode(ctx context.Context, h *incoming, raw []byte) {
	now := time.Now()
	in, state, err := l.newInbound(ctx, h, raw, now)
	if err != nil {
		l.log.Debug("the link dropped a frame", "err", err)
		return
	}
	isFinal := h.kind == "answer" && state.Asked
	in.Unattended = !isFinal // wait for the hook before the close, after which the node refuses its reply
	out, err := l.cfg.Mesh.Accept(ctx, in)
	if errors.Is(err, wire.ErrConversationClosed) && in.ConvID != l.convStore.newID(h) && h.conv == "" {
		// The conversation has ended here, which the peer cannot know. The message opens another one.
		state.Conv, in.ConvID = l.convStore.newID(h), l.convStore.newID(h)
		in.Records = l.convStore.changes(h.from, state, in.MessageID, []string{h.id, h.ref}, now)
		out, err = l.cfg.Mesh.Accept(ctx, in)
	}
	if err != nil {
		l.log.Info("the node refused a message", "peer", h.from, "err", err)
		return
	}
	if out.Duplicate {
		return
	}
	if isFinal && !out.Held {
		l.closeAfterAnswer(ctx, in)
	}
	if out.Reply != nil && (out.Held || isFinal) {
		l.sendReply(ctx, h.from, *out.Reply)
	}
}

// closeAfterAnswer ends the conversation of a question that the peer answered, because ARC has no close.
func (l *Link) closeAfterAnswer(ctx context.Context, in bridge.Inbound) {
	in.MessageID = wire.MessageID("msg_" + wire.HashOf(string(in.MessageID), "close"))
	mark, _ := in.Payload.Get("metadata")
	in.Payload = wire.Obj(wire.TextField("action", wire.ActionClose), wire.TextField("status", "completed"), wire.Field("metadata", mark))
	in.Digest = sha256.Sum256(in.Payload.JSON())
	in.Records = nil
	if _, err := l.cfg.Mesh.Accept(ctx, in); err != nil && !errors.Is(err, wire.ErrConversationClosed) {
		l.log.Info("cannot close the conversation of an answered question", "err", err)
	}
}

// newInbound returns the message for the node, and the state of its conversation after the message.
func (l *Link) newInbound(ctx context.Context, h *incoming, raw []byte, now time.Time) (bridge.Inbound, convState, error) {
	intent, payload, ok := h.toMesh()
	if !ok {
		return bridge.Inbound{}, convState{}, errors.New("its type maps to no intent")
	}
	conv, err := l.convStore.conversation(ctx, h, now)
	if err != nil {
		return bridge.Inbound{}, convState{}, err
	}
	old, err := l.convStore.read(ctx, l.convStore.key(h.from, conv), now)
	if err != nil {
		return bridge.Inbound{}, convState{}, err
	}
	ref := h.ref
	if _, known, err := l.convStore.findByRef(ctx, h.from, h.ref, now); err != nil {
		return bridge.Inbound{}, convState{}, err
	} else if known || ref == "" {
		ref = h.id // a known ref belongs to an earlier message, so the reply refers to this message by its id (AR-28)
	}
	state := convState{Conv: conv, Ref: ref, Answering: h.kind, Asked: old.Asked, Mesh: old.Mesh || h.isMesh}
	if h.kind == "question" {
		state.Asked = false
	}
	address := l.address(h.from)
	id := h.id
	if h.msg != "" {
		id = h.msg // a repetition by an AgentMesh node gets another id from the relay
	}
	messageID := wire.MessageID("msg_" + wire.HashOf(l.cfg.Link.Name, h.from, id))
	writtenAt := time.UnixMilli(h.ts)
	if writtenAt.Before(now.Add(-keepConv)) || writtenAt.After(now.Add(time.Minute)) {
		writtenAt = now // the clock of the relay seems to be wrong
	}
	const verified = false // only the relay names the sender
	return bridge.Inbound{
		Principal: address.String(), Peer: address.Pseudonym(), Address: address.String(), Name: h.from, Verified: bridge.VerifiedNone,
		MessageID: messageID, ConvID: conv, Intent: intent,
		Payload: address.Mark(payload, verified), Time: writtenAt, Received: now, Raw: raw, Digest: h.digest(),
		Records: l.convStore.changes(h.from, state, messageID, []string{h.id, h.ref}, now),
	}, state, nil
}

// digest returns a hash of what the peer wrote, without what the relay added, to detect repetitions.
func (h *incoming) digest() [32]byte {
	return sha256.Sum256(wire.Arr(wire.Text(h.kind), wire.Text(h.ref), h.payload).JSON())
}
