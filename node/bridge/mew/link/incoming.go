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

// maxLinkCapabilities bounds the capabilities that the link takes from a welcome.
const maxLinkCapabilities = 1024

// maxPause bounds the time that a participant can pause this node for.
const maxPause = 30 * 24 * time.Hour

// handle processes one message from the gateway: it updates our view of the space and obeys control messages to this
// node. If the envelope is for the node itself, handle returns it as a job and true. It ignores messages that are not
// envelopes.
func (m *membership) handle(ctx context.Context, conn *websocket.Conn, data []byte) (job, bool) {
	e, ok := parseFromGateway(data)
	if !ok || e.From == "" || e.ID == "" {
		return job{}, false
	}
	j := job{e: e, raw: data, at: time.Now()}
	if envelope.IsSystem(e.Kind) || e.From == envelope.FromSystem || e.From == envelope.FromStream {
		m.handleSystem(conn, &j.e)
		return job{}, false
	}
	m.mu.Lock()
	proceed := m.conn != nil // otherwise the node has not joined
	me, isNew := m.space.me, false
	if proceed {
		if envelope.RuleOf(e.Kind).Remembered {
			j.e.Detach()
		}
		isNew = m.space.addUnlisted(e.From)
		if e.Kind == envelope.KindRequest { // before Observe, which removes the fulfilled proposal
			j.proposer = m.space.board.ProposerToNode(e.Correlation)
		}
		m.space.board.Observe(&j.e, j.at)
		if j.e.Kind == envelope.KindProposal && slices.Contains(j.e.To, me) {
			m.space.board.SetConversation(proposalConv(m.link.Name, &j))
		}
		m.feeds.Tell(e.Tree.JSON())
	}
	if e.From == me { // our own envelope came back: it was accepted, and does not go to the node (MEW-L6)
		m.endWait(e.ID, outcome{})
		proceed = false
	}
	m.mu.Unlock()
	if isNew { // a sender that the gateway has not listed
		m.onReachable(e.From)
	}
	if !proceed {
		return job{}, false
	}
	if slices.Contains(e.To, me) && m.obey(ctx, &j.e) {
		return job{}, false
	}
	return j, m.isForNode(&j.e, me)
}

// isForNode reports whether the node handles an envelope: a chat, proposal or request to the node, a chat to everybody
// if the link accepts those, or an envelope that refers to an earlier one that may concern the node.
func (m *membership) isForNode(e *envelope.Envelope, me string) bool {
	toUs := slices.Contains(e.To, me)
	switch e.Kind {
	case envelope.KindChat:
		return toUs || len(e.To) == 0 && m.link.Policy.Broadcast
	case envelope.KindProposal:
		return toUs
	case envelope.KindRequest:
		return toUs || len(e.Correlation) > 0
	case envelope.KindResponse, envelope.KindWithdraw, envelope.KindChatCancel:
		return len(e.Correlation) > 0
	}
	return false
}

// handleSystem handles an envelope of the gateway itself.
func (m *membership) handleSystem(conn *websocket.Conn, e *envelope.Envelope) {
	newcomer := ""
	m.mu.Lock()
	switch {
	case e.Kind == envelope.KindWelcome && e.From == envelope.FromSystem:
		if m.handleWelcome(conn, e) {
			m.mu.Unlock()
			m.log.Info("joined the space", "as", envelope.ToPrintable(m.space.me, envelope.MaxName))
			m.onReachable(wholeSpace)
			return
		}
	case e.Kind == envelope.KindPresence && e.From == envelope.FromSystem:
		if m.conn != nil {
			newcomer = m.space.handlePresence(e)
		}
		m.feeds.Tell(e.Tree.JSON())
	case e.Kind == envelope.KindError && (e.From == envelope.FromSystem || e.From == envelope.FromStream):
		if until, _ := e.Payload.Get("until"); e.Payload.GetStr("error") == "participant_paused" && until.IsNull() {
			m.pause.on = true // since before this connection, and until a participant resumes the node
		}
		for _, id := range e.Correlation {
			m.endWait(id, outcome{err: refusalOf(e.Payload)})
		}
	case e.Kind == envelope.KindInviteAck && e.From == envelope.FromSystem: // not for the feeds: its token is only for the inviter
		for _, id := range e.Correlation {
			m.endWait(id, outcome{answer: e.Payload})
		}
	case e.From == envelope.FromStream:
		m.feeds.Tell(e.Tree.JSON())
	}
	m.mu.Unlock()
	if newcomer != "" {
		m.onReachable(newcomer)
	}
}

// handleWelcome stores what the gateway says about this node and the space. first is false for a later welcome on the
// same connection, which reports changed capabilities (MEW-34). The caller holds m.mu.
func (m *membership) handleWelcome(conn *websocket.Conn, e *envelope.Envelope) (first bool) {
	you, _ := e.Payload.Get("you")
	id := you.GetStr("id")
	if id == "" || len(id) > envelope.MaxName {
		return false
	}
	m.space.me, m.space.caps, m.space.rawCaps = strings.Clone(id), nil, nil
	list, _ := you.Get("capabilities")
	for v := range list.Elems() {
		if len(m.space.caps) >= maxLinkCapabilities {
			break
		}
		if c, err := capability.Parse(envelope.DetachValue(v)); err == nil {
			m.space.caps = append(m.space.caps, &c)
			m.space.rawCaps = append(m.space.rawCaps, v)
		}
	}
	m.space.participants = make(map[string]struct{})
	others, _ := e.Payload.Get("participants")
	for v := range others.Elems() {
		m.space.addParticipant(v.GetStr("id"))
	}
	first = m.conn != conn
	if first {
		m.space.unlisted = make(map[string]struct{})
	}
	m.conn = conn
	m.keeper.Set(bridge.LinkUp, "")
	return first
}

// obey carries out a control message to this node (MEW-L5). It checks no rights, because the gateway decides who may
// send control messages. It returns false if e is not a control message.
func (m *membership) obey(ctx context.Context, e *envelope.Envelope) bool {
	switch e.Kind {
	case envelope.KindPause:
		m.beginPause(e)
	case envelope.KindResume:
		m.mu.Lock()
		paused := m.pause.on
		m.pause.stop()
		m.mu.Unlock()
		if paused {
			m.onReachable(wholeSpace)
		}
	case envelope.KindRequestStatus, envelope.KindForget: // the link cannot forget a part of its context, so it only answers
		m.answer(e, envelope.KindStatus, m.statusPayload(ctx))
	case envelope.KindCompact:
		m.answer(e, envelope.KindCompactDone, wire.Obj(wire.Field("skipped", wire.Bool(true)),
			wire.TextField("reason", "this node keeps no context that could be compacted")))
	case envelope.KindClear, envelope.KindRestart:
		if err := m.records.clear(ctx); err != nil {
			m.log.Warn("context of the link not cleared", "err", err)
		}
		m.answer(e, envelope.KindStatus, m.statusPayload(ctx))
	case envelope.KindShutdown:
		m.shutDown(e)
	case envelope.KindGrant:
		if e.Payload.GetStr("recipient") == m.selfID() {
			m.answer(e, envelope.KindGrantAck, wire.Obj(wire.TextField("status", "accepted")))
		}
	default:
		return false
	}
	return true
}

func (m *membership) selfID() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.space.me
}

// answer sends the sender of e an envelope that refers to e.
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

// beginPause pauses the node for the time in e or, without one, until a participant resumes the node.
func (m *membership) beginPause(e *envelope.Envelope) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pause.stop()
	m.pause.on, m.pause.cause = true, e.ID
	v, _ := e.Payload.Get("timeout_seconds")
	wait, ok := envelope.ParseSeconds(v, maxPause)
	if !ok {
		return
	}
	id := e.ID
	m.pause.until = time.Now().Add(wait)
	m.pause.timer = time.AfterFunc(wait, func() { m.endPause(id) })
}

// endPause ends the pause that the envelope with this id began, if it still lasts, and sends participant/resume. It
// runs when the time of that pause is over.
func (m *membership) endPause(id string) {
	m.mu.Lock()
	ended := m.pause.on && m.pause.cause == id
	if ended {
		m.pause.stop()
		err := m.put(&envelope.Draft{Kind: envelope.KindResume, To: []string{m.space.me}, Correlation: []string{id},
			Payload: wire.Obj(wire.TextField("reason", "timeout"))})
		if err != nil {
			m.log.Debug("tell the space that the pause is over", "err", err)
		}
	}
	m.mu.Unlock()
	if ended {
		m.onReachable(wholeSpace)
	}
}

// shutDown leaves the space. The link stays down until the owner connects it again (MEW-L5).
func (m *membership) shutDown(e *envelope.Envelope) {
	m.answer(e, envelope.KindChatAcknowledge, wire.Obj(wire.TextField("status", "received")))
	m.setDown("a participant shut this node down")
	m.mu.Lock()
	if m.conn != nil {
		m.conn.Close(websocket.CodeNormal, "shut down")
	}
	m.mu.Unlock()
}
