package link

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
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/wire"
)

// take deals with one frame of the relay, whatever it is.
func (l *Link) take(ctx context.Context, v wire.Value) {
	defer l.dealt()
	h := heard{id: v.GetStr("id"), from: v.GetStr("from"), kind: v.GetStr("type"), ref: v.GetStr("ref")}
	ts, _ := v.Get("ts")
	_ = json.Unmarshal(ts.JSON(), &h.ts) // one that is no number is no time
	h.payload, _ = v.Get("payload")
	to, _ := v.Get("to")
	switch {
	case h.from == frame.RelayID:
		l.control(&h)
		return
	case !frame.ValidAgentID(h.from), h.from == l.ownID(), h.id == "", len(h.id) > frame.MaxRefText, len(h.ref) > frame.MaxRefText, len(h.kind) > frame.MaxTypeText:
		return
	}
	l.peers.meet(h.from)
	if !l.passes(&h) {
		return
	}
	h.takeOurs(v)
	if h.kind == "discovery" {
		l.peers.discover(&h)
	}
	if names(to, frame.Everybody) {
		l.takeBroadcast(ctx, &h, v.JSON())
		return
	}
	if !names(to, l.ownID()) {
		return
	}
	l.takeDirect(ctx, &h, v.JSON())
}

func names(to wire.Value, who string) bool {
	for e := range to.Elems() {
		if s, _ := e.Str(); s == who {
			return true
		}
	}
	return false
}

// control logs a frame of the relay itself. It has no power: at most the owner reads of it (AR-30).
func (l *Link) control(h *heard) {
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
func (l *Link) passes(h *heard) bool {
	f := l.cfg.Link.Policy.Filter
	if len(f.Types) > 0 && !slices.Contains(f.Types, h.kind) || len(f.From) > 0 && !slices.Contains(f.From, h.from) {
		return false
	}
	if len(f.Keywords) == 0 || h.kind == "agentmesh" || h.kind == "encrypted" {
		return true
	}
	said := frame.SearchText(h.kind, h.payload)
	return slices.ContainsFunc(f.Keywords, func(w string) bool { return strings.Contains(said, strings.ToLower(w)) })
}

// takeBroadcast puts a message to everybody into the owner's feed. None is answered, but for a question where the policy
// lets broadcasts in; and that by a direct answer (AR-56).
func (l *Link) takeBroadcast(ctx context.Context, h *heard, raw []byte) {
	if !l.feed.add(item(h, true)) {
		return // seen before (AR-29)
	}
	if h.kind == "question" && l.cfg.Link.Policy.Broadcast {
		l.hand(ctx, h, raw)
	}
}

// takeDirect deals with a message to us alone.
func (l *Link) takeDirect(ctx context.Context, h *heard, raw []byte) {
	switch h.kind {
	case "discovery":
		return // a hint, no message
	case "agentmesh":
		l.takeTunnel(ctx, h)
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
		if ref := inner.GetStr("ref"); ref != "" && len(ref) <= frame.MaxRefText {
			h.ref = ref
		}
		h.payload, _ = inner.Get("payload")
		h.takeOurs(inner)
		if h.kind == "encrypted" || h.kind == "agentmesh" || h.kind == "discovery" || len(h.kind) > frame.MaxTypeText {
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
func (l *Link) hand(ctx context.Context, h *heard, raw []byte) {
	now := time.Now()
	in, t, err := l.inbound(ctx, h, raw, now)
	if err != nil {
		l.log.Debug("a message is not for the node", "err", err)
		return
	}
	out, err := l.cfg.Mesh.Accept(ctx, in)
	if errors.Is(err, wire.ErrConversationClosed) && in.ConvID != l.talks.fresh(h) && h.conv == "" {
		// The latest conversation has ended here, which the peer cannot know: this opens another.
		t.Conv, in.ConvID = l.talks.fresh(h), l.talks.fresh(h)
		in.Records = l.talks.changes(h.from, t, []string{h.id, h.ref}, now)
		out, err = l.cfg.Mesh.Accept(ctx, in)
	}
	if err != nil {
		l.log.Info("the node refused a message", "peer", h.from, "err", err)
		return
	}
	if out.Duplicate {
		return
	}
	l.peers.keepAnnounced(ctx, h.from)
	if h.kind == "answer" && t.Asked {
		l.complete(ctx, in)
	}
	if out.Reply != nil {
		l.sayReply(ctx, h.from, *out.Reply)
	}
}

// complete ends the conversation of a question that was answered: ARC knows no close (section 9).
func (l *Link) complete(ctx context.Context, in bridge.Inbound) {
	in.MessageID = wire.MessageID("msg_" + hashKey(string(in.MessageID), "close"))
	mark, _ := in.Payload.Get("metadata")
	in.Payload = wire.Obj(wire.TextField("action", wire.ActionClose), wire.TextField("status", "completed"), wire.Field("metadata", mark))
	in.Digest = sha256.Sum256(in.Payload.JSON())
	in.Records = nil
	if _, err := l.cfg.Mesh.Accept(ctx, in); err != nil && !errors.Is(err, wire.ErrConversationClosed) {
		l.log.Info("an answered question could not be closed", "err", err)
	}
}

// inbound returns the message as the node takes it, and what the link will know of its conversation.
func (l *Link) inbound(ctx context.Context, h *heard, raw []byte, now time.Time) (bridge.Inbound, talk, error) {
	intent, payload, ok := h.native()
	if !ok {
		return bridge.Inbound{}, talk{}, errors.New("the frame has no meaning here")
	}
	conv, err := l.talks.conversation(ctx, h, now)
	if err != nil {
		return bridge.Inbound{}, talk{}, err
	}
	before, err := l.talks.read(ctx, l.talks.key(h.from, conv), now)
	if err != nil {
		return bridge.Inbound{}, talk{}, err
	}
	ref := h.ref
	if _, known, err := l.talks.ofRef(ctx, h.from, h.ref, now); err != nil {
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
		MessageID: wire.MessageID("msg_" + hashKey(l.cfg.Link.Name, h.from, id)), ConvID: conv, Intent: intent,
		Payload: address.Mark(payload, false), Time: written, Received: now, Raw: raw, Digest: h.digest(),
		Records: l.talks.changes(h.from, t, []string{h.id, h.ref}, now),
	}, t, nil
}

// digest returns what tells a repeat from another message: what the peer said, without what the relay stamps.
func (h *heard) digest() [32]byte {
	return sha256.Sum256(wire.Arr(wire.Text(h.kind), wire.Text(h.ref), h.payload).JSON())
}
