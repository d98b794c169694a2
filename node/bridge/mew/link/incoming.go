package link

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

// parseFromGateway parses an envelope from a gateway. Only a welcome, which describes the whole space, may be larger
// than [envelope.MaxEnvelope] (MEW-Q4).
func parseFromGateway(data []byte) (envelope.Envelope, bool) {
	e, fault := envelope.ParseWithin(data, maxWelcome, maxWelcome/envelope.MaxEnvelope*envelope.MaxValues)
	return e, fault == nil && (len(data) <= envelope.MaxEnvelope || e.Kind == envelope.KindWelcome)
}

const maxLinkCapabilities = 1024

const maxPause = 30 * 24 * time.Hour

// handle handles one message of the space: it keeps track of the space, obeys control messages to this node, and
// returns an envelope that is for the node itself. It ignores messages that are not envelopes.
func (m *membership) handle(ctx context.Context, conn *websocket.Conn, data []byte) (job, bool) {
	e, ok := parseFromGateway(data)
	if !ok || e.From == "" || e.ID == "" {
		return job{}, false
	}
	j := job{e: e, raw: data, at: time.Now()}
	if envelope.IsSystem(e.Kind) || e.From == envelope.FromSystem || e.From == envelope.FromStream {
		m.handleSystem(ctx, conn, &j.e)
		return job{}, false
	}
	m.mu.Lock()
	in, me := m.conn != nil, m.space.me
	if in {
		if envelope.RuleOf(e.Kind).Kept {
			j.e.Detach()
		}
		if _, listed := m.space.participants[e.From]; !listed && e.From != me && len(m.space.unlisted) < maxParticipants && len(e.From) <= envelope.MaxName {
			m.space.unlisted[strings.Clone(e.From)] = struct{}{}
		}
		m.space.board.Observe(&j.e, j.at)
		if j.e.Kind == envelope.KindProposal && slices.Contains(j.e.To, me) {
			m.space.board.Ask(proposalConv(m.link.Name, &j))
		}
		m.space.handleStream(&j.e)
		m.feeds.Tell(data)
	}
	if e.From == me { // our own envelope does not go to the node (MEW-L6)
		m.endWait(e.ID, outcome{})
		in = false
	}
	m.mu.Unlock()
	if !in {
		return job{}, false
	}
	if slices.Contains(e.To, me) && m.obey(ctx, &j.e) {
		return job{}, false
	}
	return j, m.isForNode(&j.e, me)
}

// isForNode reports whether an envelope is for the node: addressed to it, or about something that it waits for.
func (m *membership) isForNode(e *envelope.Envelope, me string) bool {
	toUs := slices.Contains(e.To, me)
	switch e.Kind {
	case envelope.KindChat:
		return toUs || len(e.To) == 0 && m.link.Policy.Broadcast
	case envelope.KindProposal:
		return toUs
	case envelope.KindRequest:
		return toUs || len(e.Correlation) > 0
	case envelope.KindResponse, envelope.KindWithdraw, envelope.KindChatCancel, envelope.KindChatAcknowledge:
		return len(e.Correlation) > 0
	}
	return false
}

// handleSystem handles an envelope of the gateway.
func (m *membership) handleSystem(ctx context.Context, conn *websocket.Conn, e *envelope.Envelope) {
	m.mu.Lock()
	switch {
	case e.Kind == envelope.KindWelcome && e.From == envelope.FromSystem:
		if m.handleWelcome(conn, e) {
			m.mu.Unlock()
			m.log.Info("joined the space", "as", envelope.ToPrintable(m.space.me, envelope.MaxName))
			m.onJoin()
			return
		}
	case e.Kind == envelope.KindPresence && e.From == envelope.FromSystem:
		if m.conn != nil {
			m.space.handlePresence(e)
		}
		m.feeds.Tell(e.Tree.JSON())
	case e.Kind == envelope.KindError && (e.From == envelope.FromSystem || e.From == envelope.FromStream): // only these two senders are the gateway
		for _, id := range e.Correlation {
			m.endWait(id, outcome{err: refusalOf(e.Payload)})
		}
	case e.Kind == envelope.KindInviteAck && e.From == envelope.FromSystem: // its token is only for the inviter, so it enters no feed
		for _, id := range e.Correlation {
			m.endWait(id, outcome{answer: e.Payload})
		}
	case e.From == envelope.FromStream:
		m.space.handleStream(e)
		m.feeds.Tell(e.Tree.JSON())
	}
	m.mu.Unlock()
}

// handleWelcome stores what the gateway says about this node and the space. Every welcome counts, because it also
// reports changed capabilities (MEW-34). first reports whether the node joined with it. The caller holds m.mu.
func (m *membership) handleWelcome(conn *websocket.Conn, e *envelope.Envelope) (first bool) {
	you, _ := e.Payload.Get("you")
	id := you.GetStr("id")
	if id == "" || len(id) > envelope.MaxName {
		return false
	}
	m.space.me, m.space.caps, m.space.shown = strings.Clone(id), nil, nil
	list, _ := you.Get("capabilities")
	for v := range list.Elems() {
		if len(m.space.caps) >= maxLinkCapabilities {
			break
		}
		if c, err := capability.Parse(envelope.DetachValue(v)); err == nil {
			m.space.caps = append(m.space.caps, &c)
			m.space.shown = append(m.space.shown, v)
		}
	}
	m.space.participants, m.space.capsBytes = make(map[string]wire.Value), 0
	others, _ := e.Payload.Get("participants")
	for v := range others.Elems() {
		caps, _ := v.Get("capabilities")
		m.space.addParticipant(v.GetStr("id"), caps)
	}
	if streams, ok := e.Payload.Get("active_streams"); ok { // the member is absent after a change of rights
		m.space.streams = nil
		for v := range streams.Elems() {
			m.space.openStream(v)
		}
	}
	if first = m.conn != conn; first {
		m.space.unlisted = make(map[string]struct{})
	}
	m.conn = conn
	if m.state != bridge.LinkUp {
		m.state, m.since = bridge.LinkUp, time.Now()
	}
	m.fault, m.retry = "", time.Time{}
	return first
}

// obey handles a control message to this node (MEW-L5). The gateway decides who may send one. obey returns false if e
// is not a control message.
func (m *membership) obey(ctx context.Context, e *envelope.Envelope) bool {
	switch e.Kind {
	case envelope.KindPause:
		m.beginPause(e)
	case envelope.KindResume:
		m.mu.Lock()
		m.pause.stop()
		m.mu.Unlock()
	case envelope.KindRequestStatus, envelope.KindForget: // the link stores no context that it could forget in part
		m.answer(e, envelope.KindStatus, m.statusPayload(ctx))
	case envelope.KindCompact:
		m.answer(e, envelope.KindCompactDone, wire.Obj(wire.Field("skipped", wire.Bool(true)),
			wire.TextField("reason", "this node keeps no context that could be compacted")))
	case envelope.KindClear, envelope.KindRestart:
		if err := m.records.clear(ctx); err != nil {
			m.log.Warn("clear the context of the link", "err", err)
		}
		m.answer(e, envelope.KindStatus, m.statusPayload(ctx))
	case envelope.KindShutdown:
		m.shutDown(e)
	case envelope.KindGrant:
		if e.Payload.GetStr("recipient") == m.name() {
			m.answer(e, envelope.KindGrantAck, wire.Obj(wire.TextField("status", "accepted")))
		}
	default:
		return false
	}
	return true
}

// name returns the id of this node in the space.
func (m *membership) name() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.space.me
}

// answer sends an envelope to the sender of another one.
func (m *membership) answer(e *envelope.Envelope, kind string, payload wire.Value) {
	err := m.tell(envelope.Draft{Kind: kind, To: []string{e.From}, Correlation: []string{e.ID}, Payload: payload})
	if err != nil {
		m.log.Debug("answer in the space", "kind", kind, "err", err)
	}
}

func (m *membership) statusPayload(ctx context.Context) wire.Value {
	m.mu.Lock()
	status := "active"
	if m.pause.on {
		status = "paused"
	}
	m.mu.Unlock()
	return wire.Obj(wire.Field("messages_in_context", wire.Int(int64(m.records.inContext(ctx)))), wire.TextField("status", status))
}

func (m *membership) beginPause(e *envelope.Envelope) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pause.stop()
	m.pause.on, m.pause.by = true, e.ID
	v, _ := e.Payload.Get("timeout_seconds")
	wait, ok := envelope.ParseSeconds(v, maxPause)
	if !ok {
		return
	}
	id := e.ID
	m.pause.until = time.Now().Add(wait)
	m.pause.timer = time.AfterFunc(wait, func() { m.endPause(id) })
}

// endPause ends a pause whose time is over, and tells the space.
func (m *membership) endPause(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.pause.on || m.pause.by != id {
		return
	}
	m.pause.stop()
	err := m.put(&envelope.Draft{Kind: envelope.KindResume, To: []string{m.space.me}, Correlation: []string{id},
		Payload: wire.Obj(wire.TextField("reason", "timeout"))})
	if err != nil {
		m.log.Debug("tell the space that the pause is over", "err", err)
	}
}

// shutDown leaves the space until the owner connects the link again (MEW-L5).
func (m *membership) shutDown(e *envelope.Envelope) {
	m.answer(e, envelope.KindChatAcknowledge, wire.Obj(wire.TextField("status", "received")))
	m.setDown("a participant shut this node down")
	m.mu.Lock()
	if m.conn != nil {
		m.conn.Close(websocket.CodeNormal, "shut down")
	}
	m.mu.Unlock()
}
