package agentrelay

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// take deals with one frame of the relay, whatever it is.
func (l *link) take(ctx context.Context, v wire.Value) {
	defer l.dealt()
	h := heard{id: v.GetStr("id"), from: v.GetStr("from"), kind: v.GetStr("type"), ref: v.GetStr("ref")}
	ts, _ := v.Get("ts")
	_ = json.Unmarshal(ts.JSON(), &h.ts) // one that is no number is no time
	h.payload, _ = v.Get("payload")
	to, _ := v.Get("to")
	switch {
	case h.from == relayID:
		l.control(&h)
		return
	case !ValidAgentID(h.from), h.from == l.ownID(), h.id == "", len(h.id) > maxRefText, len(h.ref) > maxRefText, len(h.kind) > maxTypeText:
		return
	}
	l.meet(h.from)
	if !l.passes(&h) {
		return
	}
	h.takeOurs(v)
	if h.kind == "discovery" {
		l.hint(&h)
	}
	if names(to, everybody) {
		l.broadcast(ctx, &h, v.JSON())
		return
	}
	if !names(to, l.ownID()) {
		return
	}
	l.direct(ctx, &h, v.JSON())
}

func names(to wire.Value, who string) bool {
	for e := range to.Elems() {
		if s, _ := e.Str(); s == who {
			return true
		}
	}
	return false
}

// control hears a frame of the relay itself. It has no power: at most the owner reads of it (AR-30).
func (l *link) control(h *heard) {
	if h.kind == "error" {
		code := h.payload.GetStr("code")
		if code == "" {
			code = h.payload.GetStr("error")
		}
		l.log.Info("the relay refused a frame", slog.String("code", wire.OneLine(code, 64)))
	}
	if h.kind == "vote_result" {
		l.feed.add(item(h, true))
	}
}

// passes holds a message to the owner's filter (AR-26).
func (l *link) passes(h *heard) bool {
	f := l.cfg.Policy.Filter
	if len(f.Types) > 0 && !slices.Contains(f.Types, h.kind) || len(f.From) > 0 && !slices.Contains(f.From, h.from) {
		return false
	}
	if len(f.Keywords) == 0 || h.kind == "agentmesh" || h.kind == "encrypted" {
		return true
	}
	said := searchable(h.kind, h.payload)
	return slices.ContainsFunc(f.Keywords, func(w string) bool { return strings.Contains(said, strings.ToLower(w)) })
}

// broadcast puts a message to everybody into the owner's feed. None is answered, but for a question where the policy
// lets broadcasts in; and that by a direct answer (AR-56).
func (l *link) broadcast(ctx context.Context, h *heard, raw []byte) {
	if !l.feed.add(item(h, true)) {
		return // seen before (AR-29)
	}
	if h.kind == "question" && l.cfg.Policy.Broadcast {
		l.hand(ctx, h, raw)
	}
}

// direct deals with a message to us alone.
func (l *link) direct(ctx context.Context, h *heard, raw []byte) {
	switch h.kind {
	case "discovery":
		return // a hint, no message
	case "agentmesh":
		l.tunnelled(ctx, h)
		return
	case "encrypted":
		inner, err := l.decrypt(h)
		if err != nil {
			note := item(h, false)
			note.Note = "an encrypted message that could not be read: " + err.Error()
			l.feed.add(note)
			return
		}
		h.kind, h.payload = inner.GetStr("type"), wire.Value{}
		if ref := inner.GetStr("ref"); ref != "" && len(ref) <= maxRefText {
			h.ref = ref
		}
		h.payload, _ = inner.Get("payload")
		h.takeOurs(inner)
		if h.kind == "encrypted" || h.kind == "agentmesh" || h.kind == "discovery" || len(h.kind) > maxTypeText {
			return
		}
	}
	if h.kind == "data" && h.ours && h.payload.GetStr("action") == wire.ActionPending {
		note := item(h, false)
		note.Note = "the peer asks its owner first"
		l.feed.add(note)
		return
	}
	l.hand(ctx, h, raw)
}

// hand gives a message to the node and sends what it answers at once.
func (l *link) hand(ctx context.Context, h *heard, raw []byte) {
	now := time.Now()
	in, t, err := l.inbound(ctx, h, raw, now)
	if err != nil {
		l.log.Debug("a message is not for the node", "err", err)
		return
	}
	out, err := l.b.cfg.Node.Accept(ctx, in)
	if errors.Is(err, wire.ErrConversationClosed) && in.ConvID != l.fresh(h) && h.conv == "" {
		// The latest conversation has ended here, which the peer cannot know: this opens another.
		t.Conv, in.ConvID = l.fresh(h), l.fresh(h)
		in.Records = l.changes(h.from, t, []string{h.id, h.ref}, now)
		out, err = l.b.cfg.Node.Accept(ctx, in)
	}
	if err != nil {
		l.log.Info("the node refused a message", "peer", h.from, "err", err)
		return
	}
	if out.Duplicate {
		return
	}
	l.keepAnnounced(ctx, h.from)
	if h.kind == "answer" && t.Asked {
		l.complete(ctx, in)
	}
	if out.Reply != nil {
		l.sayReply(ctx, h.from, *out.Reply)
	}
}

// complete ends the conversation of a question that was answered: ARC knows no close (section 9).
func (l *link) complete(ctx context.Context, in bridge.Inbound) {
	in.MessageID = wire.MessageID("msg_" + hashKey(string(in.MessageID), "close"))
	mark, _ := in.Payload.Get("metadata")
	in.Payload = wire.Obj(text("action", wire.ActionClose), text("status", "completed"), wire.Field("metadata", mark))
	in.Digest = sha256.Sum256(in.Payload.JSON())
	in.Records = nil
	if _, err := l.b.cfg.Node.Accept(ctx, in); err != nil && !errors.Is(err, wire.ErrConversationClosed) {
		l.log.Info("an answered question could not be closed", "err", err)
	}
}

// inbound is the message as the node takes it, and what the link will know of its conversation.
func (l *link) inbound(ctx context.Context, h *heard, raw []byte, now time.Time) (bridge.Inbound, talk, error) {
	intent, payload, ok := h.native()
	if !ok {
		return bridge.Inbound{}, talk{}, errors.New("the frame has no meaning here")
	}
	conv, err := l.conversation(ctx, h, now)
	if err != nil {
		return bridge.Inbound{}, talk{}, err
	}
	before, err := l.read(ctx, l.talkKey(h.from, conv), now)
	if err != nil {
		return bridge.Inbound{}, talk{}, err
	}
	ref := h.ref
	if _, known, err := l.ofRef(ctx, h.from, h.ref, now); err != nil {
		return bridge.Inbound{}, talk{}, err
	} else if known || ref == "" {
		ref = h.id // the question's own ref counts only where it is not an id that we have seen (AR-28)
	}
	t := talk{Conv: conv, Ref: ref, Answering: h.kind, Asked: before.Asked, Mesh: before.Mesh || h.ours}
	if h.kind == "question" {
		t.Asked = false
	}
	address := l.address(h.from)
	id := h.id
	if h.msg != "" {
		id = h.msg // sent again by one of us, it has another id of the relay
	}
	written := time.UnixMilli(h.ts)
	if written.Before(now.Add(-keepTalk)) || written.After(now.Add(time.Minute)) {
		written = now
	}
	return bridge.Inbound{
		Principal: address.String(), Peer: address.Pseudonym(), Address: address.String(), Name: h.from, Verified: bridge.VerifiedNone,
		MessageID: wire.MessageID("msg_" + hashKey(l.cfg.Name, h.from, id)), ConvID: conv, Intent: intent,
		Payload: address.Mark(payload, false), Time: written, Received: now, Raw: raw, Digest: h.digest(),
		Records: l.changes(h.from, t, []string{h.id, h.ref}, now),
	}, t, nil
}

// digest tells a repeat from another message: what the peer said, without what the relay stamps.
func (h *heard) digest() [32]byte {
	return sha256.Sum256(wire.Arr(wire.Text(h.kind), wire.Text(h.ref), h.payload).JSON())
}

// sayReply sends the node's own answer to a message.
func (l *link) sayReply(ctx context.Context, peer string, m wire.Message) {
	frame, changes, err := l.frame(ctx, peer, m)
	if err != nil || frame == nil {
		return
	}
	if err := l.b.cfg.Store.Records().Apply(ctx, changes, time.Now()); err != nil {
		l.log.Error("store what an answer refers to", "err", err)
	}
	l.answer(peer, frame)
}

// deliver carries a message of the outbox. It is sent when it was written to an open socket; only a reply proves that
// it arrived (AR-53).
func (l *link) deliver(ctx context.Context, to bridge.Address, d bridge.Delivery) (bridge.Delivered, error) {
	frame, changes, err := l.frame(ctx, to.Peer, d.Message)
	switch {
	case errors.Is(err, errCarry):
		return bridge.Delivered{}, err
	case err != nil:
		return bridge.Delivered{}, later(0, unprepared)
	case frame == nil:
		return bridge.Delivered{Queued: true}, nil
	}
	if wait := l.budget.Take(time.Now()); wait > 0 {
		return bridge.Delivered{}, later(wait, overBudget)
	}
	if err := l.b.cfg.Store.Records().Apply(ctx, changes, time.Now()); err != nil {
		return bridge.Delivered{}, later(0, unprepared)
	}
	if err := l.write(frame); err != nil {
		return bridge.Delivered{}, later(0, l.away())
	}
	return bridge.Delivered{Queued: true}, nil
}

// frame writes a message of ours for a peer, with what the link will know of the conversation. Nil: ARC has no word
// for it, and nothing is to be said.
func (l *link) frame(ctx context.Context, peer string, m wire.Message) ([]byte, []store.Change, error) {
	now := time.Now()
	t, err := l.read(ctx, l.talkKey(peer, m.Conversation), now)
	if err != nil {
		return nil, nil, err
	}
	s, err := foreign(m.Intent, m.Payload, t.Answering)
	if err != nil {
		return nil, nil, carryError{err.Error()}
	}
	if s.kind == "data" && m.Action() == wire.ActionPending && !t.Mesh {
		if l.cfg.Options[optPending] == "false" {
			return nil, nil, nil
		}
		s = said{kind: "thought", payload: wire.Text("Thank you. My owner is asked first; an answer may come later."), answers: true}
	}
	if s.silent {
		return nil, nil, nil
	}
	ref := ""
	switch {
	case s.answers:
		ref = t.Ref
	case s.expects():
		ref = string(m.ID)
	}
	pending := m.Action() == wire.ActionPending
	next := talk{Conv: m.Conversation, Ref: t.Ref, Answering: t.Answering, Asked: t.Asked || s.kind == "question", Ours: !pending || t.Ours, Mesh: t.Mesh}
	if s.kind == "answer" {
		next.Answering = ""
	}
	frame := s.encode(peer, ref, m.Conversation, m.ID)
	frame, err = l.seal(ctx, peer, frame)
	if err != nil {
		return nil, nil, err
	}
	if len(frame) > MaxFrame {
		return nil, nil, carryError{"the message has more than the 64 KB that a relay takes"}
	}
	return frame, l.changes(peer, next, []string{string(m.ID), ref}, now), nil
}
