package mew

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

// take reads one message of the space: it keeps track of the space, obeys what is said to this node, and returns what
// is for the node itself. What is no envelope is nothing.
func (l *link) take(ctx context.Context, conn *websocket.Conn, data []byte) (job, bool) {
	e, ok := heardFrom(data)
	if !ok || e.From == "" || e.ID == "" {
		return job{}, false
	}
	j := job{e: e, raw: data, at: time.Now()}
	if capability.IsSystem(e.Kind) || e.From == envelope.FromSystem || e.From == envelope.FromStream {
		l.system(ctx, conn, &j.e)
		return job{}, false
	}
	l.mu.Lock()
	in, me := l.conn != nil, l.me
	if in {
		if ruleOf(e.Kind).kept {
			j.e.Detach()
		}
		if _, listed := l.people[e.From]; !listed && e.From != me && len(l.spoke) < maxPeople && len(e.From) <= envelope.MaxName {
			l.spoke[strings.Clone(e.From)] = struct{}{}
		}
		l.board.see(&j.e, j.at)
		if j.e.Kind == envelope.KindProposal && slices.Contains(j.e.To, me) {
			l.board.asked(l.proposalConv(&j))
		}
		l.stream(&j.e)
		l.feeds.tell(data)
	}
	if e.From == me { // ours: nothing of it comes in (MEW-L6)
		l.echoed(e.ID, outcome{})
		in = false
	}
	l.mu.Unlock()
	if !in {
		return job{}, false
	}
	if slices.Contains(e.To, me) && l.obey(ctx, &j.e) {
		return job{}, false
	}
	return j, l.concerns(&j.e, me)
}

// heardFrom reads what a gateway sends. Only a welcome, which describes the whole space, may be larger than
// [MaxEnvelope] (MEW-Q4).
func heardFrom(data []byte) (envelope.Envelope, bool) {
	e, fault := envelope.ParseWithin(data, maxWelcome, maxWelcome/envelope.MaxEnvelope*envelope.MaxValues)
	return e, fault == nil && (len(data) <= envelope.MaxEnvelope || e.Kind == envelope.KindWelcome)
}

// concerns says whether an envelope is for the node: addressed to it, or about something that it waits for.
func (l *link) concerns(e *envelope.Envelope, me string) bool {
	toUs := slices.Contains(e.To, me)
	switch e.Kind {
	case envelope.KindChat:
		return toUs || len(e.To) == 0 && l.cfg.Policy.Broadcast
	case envelope.KindProposal:
		return toUs
	case envelope.KindRequest:
		return toUs || len(e.Correlation) > 0
	case envelope.KindResponse, envelope.KindWithdraw, envelope.KindChatCancel, envelope.KindChatAcknowledge:
		return len(e.Correlation) > 0
	}
	return false
}

// system takes in what the gateway says.
func (l *link) system(ctx context.Context, conn *websocket.Conn, e *envelope.Envelope) {
	l.mu.Lock()
	switch {
	case e.Kind == envelope.KindWelcome && e.From == envelope.FromSystem:
		if l.welcome(conn, e) {
			l.mu.Unlock()
			l.log.Info("joined the space", "as", envelope.ToPrintable(l.me, envelope.MaxName))
			l.catchUp(ctx)
			return
		}
	case e.Kind == envelope.KindPresence && e.From == envelope.FromSystem:
		l.presence(e)
		l.feeds.tell(e.Tree.JSON())
	case e.Kind == envelope.KindError && (e.From == envelope.FromSystem || e.From == envelope.FromStream): // both are the gateway's, nobody else's word counts
		for _, id := range e.Correlation {
			l.echoed(id, outcome{err: refusalOf(e.Payload)})
		}
	case e.Kind == envelope.KindInviteAck && e.From == envelope.FromSystem: // the token in it is for who invited, and for nobody's feed
		for _, id := range e.Correlation {
			l.echoed(id, outcome{answer: e.Payload})
		}
	case e.From == envelope.FromStream:
		l.stream(e)
		l.feeds.tell(e.Tree.JSON())
	}
	l.mu.Unlock()
}

// welcome takes in what the gateway says of us and of the space; every one counts, because it also tells of changed
// capabilities (MEW-34). first says that we are in now. It needs the lock.
func (l *link) welcome(conn *websocket.Conn, e *envelope.Envelope) (first bool) {
	you, _ := e.Payload.Get("you")
	id := you.GetStr("id")
	if id == "" || len(id) > envelope.MaxName {
		return false
	}
	l.me, l.caps, l.shown = strings.Clone(id), nil, nil
	list, _ := you.Get("capabilities")
	for v := range list.Elems() {
		if len(l.caps) >= maxLinkCapabilities {
			break
		}
		if c, err := capability.Parse(envelope.DetachValue(v)); err == nil {
			l.caps = append(l.caps, &c)
			l.shown = append(l.shown, v)
		}
	}
	l.people, l.capsBytes = make(map[string]wire.Value), 0
	others, _ := e.Payload.Get("participants")
	for v := range others.Elems() {
		caps, _ := v.Get("capabilities")
		l.person(v.GetStr("id"), caps)
	}
	if streams, ok := e.Payload.Get("active_streams"); ok { // absent after a change of rights
		l.streams = nil
		for v := range streams.Elems() {
			l.openStream(v)
		}
	}
	if first = l.conn != conn; first {
		l.spoke = make(map[string]struct{})
	}
	l.conn = conn
	if l.state != bridge.LinkUp {
		l.state, l.since = bridge.LinkUp, time.Now()
	}
	l.fault, l.retry = "", time.Time{}
	return first
}

const maxLinkCapabilities = 1024

func (l *link) person(id string, caps wire.Value) {
	if id == "" || id == l.me || len(id) > envelope.MaxName {
		return
	}
	if _, known := l.people[id]; !known && len(l.people) >= maxPeople {
		return
	}
	l.forget(id)
	if n := len(caps.JSON()); l.capsBytes+n > maxCapsBytes {
		caps = wire.Arr() // who it is counts; what it may do is only shown
	}
	caps = envelope.DetachValue(caps)
	l.people[strings.Clone(id)] = caps
	l.capsBytes += len(caps.JSON())
}

func (l *link) forget(id string) {
	if caps, known := l.people[id]; known {
		l.capsBytes -= len(caps.JSON())
		delete(l.people, id)
	}
}

func (l *link) presence(e *envelope.Envelope) {
	if l.conn == nil {
		return
	}
	who, _ := e.Payload.Get("participant")
	id := who.GetStr("id")
	switch e.Payload.GetStr("event") {
	case "join":
		caps, _ := who.Get("capabilities")
		l.person(id, caps)
	case "leave":
		l.forget(id)
		delete(l.spoke, id)
		l.board.left(id)
	}
}

// stream keeps track of which streams there are. Nothing else of them is kept.
func (l *link) stream(e *envelope.Envelope) {
	id := e.Payload.GetStr("stream_id")
	switch e.Kind {
	case "stream/open":
		if e.From == envelope.FromStream && id != "" {
			l.openStream(e.Payload)
		}
	case "stream/close":
		l.streams = slices.DeleteFunc(l.streams, func(v wire.Value) bool { return id != "" && v.GetStr("stream_id") == id })
	}
}

func (l *link) openStream(v wire.Value) {
	if len(l.streams) >= maxShown {
		return
	}
	if len(v.JSON()) > maxShownBytes {
		v = wire.Obj(wire.TextField("stream_id", v.GetStr("stream_id")), wire.TextField("owner", v.GetStr("owner")))
	}
	l.streams = append(l.streams, envelope.DetachValue(v))
}

// obey does what is said to this node about its own part in the space (MEW-L5). Whether somebody may say it is the
// gateway's to judge. It returns false for what is not control.
func (l *link) obey(ctx context.Context, e *envelope.Envelope) bool {
	switch e.Kind {
	case envelope.KindPause:
		l.beginPause(e)
	case envelope.KindResume:
		l.mu.Lock()
		l.pause.stop()
		l.mu.Unlock()
	case envelope.KindRequestStatus:
		l.answer(e, envelope.KindStatus, l.statusPayload(ctx))
	case envelope.KindForget: // nothing of a space is kept that could be forgotten in part
		l.answer(e, envelope.KindStatus, l.statusPayload(ctx))
	case envelope.KindCompact:
		l.answer(e, envelope.KindCompactDone, wire.Obj(wire.Field("skipped", wire.Bool(true)),
			wire.TextField("reason", "this node keeps no context that could be compacted")))
	case envelope.KindClear, envelope.KindRestart:
		if err := l.clear(ctx); err != nil {
			l.log.Warn("the link's context could not be cleared", "err", err)
		}
		l.answer(e, envelope.KindStatus, l.statusPayload(ctx))
	case envelope.KindShutdown:
		l.shutDown(e)
	case envelope.KindGrant:
		if e.Payload.GetStr("recipient") == l.name() {
			l.answer(e, envelope.KindGrantAck, wire.Obj(wire.TextField("status", "accepted")))
		}
	default:
		return false
	}
	return true
}

func (l *link) name() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.me
}

// answer says something to the sender of an envelope.
func (l *link) answer(e *envelope.Envelope, kind string, payload wire.Value) {
	err := l.tell(said{kind: kind, to: []string{e.From}, correlation: []string{e.ID}, payload: payload})
	if err != nil {
		l.log.Debug("answer in the space", "kind", kind, "err", err)
	}
}

func (l *link) statusPayload(ctx context.Context) wire.Value {
	l.mu.Lock()
	status := "active"
	if l.pause.on {
		status = "paused"
	}
	l.mu.Unlock()
	return wire.Obj(wire.Field("messages_in_context", wire.Int(int64(l.inContext(ctx)))), wire.TextField("status", status))
}

const maxPause = 30 * 24 * time.Hour

func (l *link) beginPause(e *envelope.Envelope) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pause.stop()
	l.pause.on, l.pause.by = true, e.ID
	v, _ := e.Payload.Get("timeout_seconds")
	number, _ := v.Num()
	seconds, err := strconv.ParseFloat(number, 64)
	if err != nil || seconds <= 0 {
		return
	}
	wait := time.Duration(min(seconds, maxPause.Seconds()) * float64(time.Second))
	id := e.ID
	l.pause.until = time.Now().Add(wait)
	l.pause.timer = time.AfterFunc(wait, func() { l.endPause(id) })
}

// endPause ends a pause whose time is over, and says so.
func (l *link) endPause(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.pause.on || l.pause.by != id {
		return
	}
	l.pause.stop()
	err := l.put(&said{kind: envelope.KindResume, to: []string{l.me}, correlation: []string{id},
		payload: wire.Obj(wire.TextField("reason", "timeout"))})
	if err != nil {
		l.log.Debug("say that the pause is over", "err", err)
	}
}

// shutDown leaves the space until the owner connects the link again (MEW-L5).
func (l *link) shutDown(e *envelope.Envelope) {
	l.answer(e, envelope.KindChatAcknowledge, wire.Obj(wire.TextField("status", "received")))
	l.fall("a participant shut this node down")
	l.mu.Lock()
	if l.conn != nil {
		l.conn.Close(websocket.CodeNormal, "shut down")
	}
	l.mu.Unlock()
}
