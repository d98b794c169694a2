package link

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

var errLinkEnded = errors.New("the connection ended, or fell silent, before the space accepted the envelope")

// refusedBySpace is the error for an envelope that the gateway refused.
type refusedBySpace struct{ text string }

func (e *refusedBySpace) Error() string { return "the space refused the envelope: " + e.text }

var (
	errNotJoined = errors.New("the node is not in the space now")
	errEchoes    = errors.New("too many messages wait for the space to confirm them, or this message waits already; try again in a moment")
	errLimited   = errors.New("the space limits how often this node may send")
	errMayNot    = errors.New("the node's capabilities in the space do not allow this")
)

// outcome is the result of sending an envelope to the space.
type outcome struct {
	err    error
	answer wire.Value // payload of space/invite-ack, null for other envelopes
}

// refusalOf returns the error for a system/error about an envelope of the node. It is not a [refusedBySpace] if the
// space may accept the envelope later.
func refusalOf(payload wire.Value) error {
	switch payload.GetStr("error") {
	case "rate_limited":
		return fmt.Errorf("%w: %s", errLimited, errorText(payload))
	case "participant_paused":
		return fmt.Errorf("%w: %s", errPaused, errorText(payload))
	}
	return &refusedBySpace{errorText(payload)}
}

func errorText(payload wire.Value) string {
	text := payload.GetStr("error")
	if m := payload.GetStr("message"); m != "" {
		text = strings.TrimPrefix(text+": "+m, ": ")
	}
	return envelope.ToPrintable(cmp.Or(text, "no reason given"), 200)
}

// tell sends an envelope and does not wait for its echo.
func (m *membership) tell(d envelope.Draft) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.put(&d)
}

// checkSend returns why an envelope cannot be sent now, or nil if it can. A paused participant may send only what
// MEW-37 allows. The caller holds m.mu.
func (m *membership) checkSend(d envelope.Draft) error {
	switch {
	case m.conn == nil:
		return errNotJoined
	case m.pause.on && !envelope.RuleOf(d.Kind).WhilePaused:
		return m.pause.err()
	case !m.space.allows(d):
		return errMayNot
	}
	return nil
}

// put sends an envelope. The caller holds m.mu.
func (m *membership) put(d *envelope.Draft) error {
	if err := m.checkSend(*d); err != nil {
		return err
	}
	if d.ID == "" {
		d.ID = envelope.NewID()
	}
	if m.conn.Send(websocket.Text(d.JSON(m.space.me))) != nil {
		return errLinkEnded
	}
	return nil
}

// say sends an envelope and waits until the space has accepted it: a gateway sends every envelope back to its sender.
// If no such echo arrives in time, but the gateway has read the envelope, say assumes that the space accepted it.
// Otherwise the connection may be broken, and the error is errLinkEnded.
func (m *membership) say(ctx context.Context, d envelope.Draft) error {
	_, err := m.sayForAnswer(ctx, d)
	return err
}

// sayForAnswer sends an envelope like say, and returns the payload of the gateway's answer if the gateway sends one
// (MEW-27).
func (m *membership) sayForAnswer(ctx context.Context, d envelope.Draft) (answer wire.Value, err error) {
	c := make(chan outcome, 1)
	m.mu.Lock()
	if d.ID == "" {
		d.ID = envelope.NewID()
	}
	if len(m.echoes) >= maxEchoes || m.echoes[d.ID] != nil {
		m.mu.Unlock()
		return answer, errEchoes
	}
	conn := m.conn
	err = m.put(&d)
	if err == nil {
		m.echoes[d.ID] = c
	}
	m.mu.Unlock()
	if err != nil {
		return answer, err
	}
	defer func() {
		m.mu.Lock()
		delete(m.echoes, d.ID)
		m.mu.Unlock()
	}()
	select {
	case o := <-c:
		return o.answer, o.err
	case <-ctx.Done():
		return answer, ctx.Err()
	case <-time.After(m.echoPatience):
	}
	err = conn.Confirm(ctx, m.echoPatience/2) // a gateway that has read the envelope has accepted it
	select {
	case o := <-c:
		return o.answer, o.err
	default:
	}
	if err != nil && ctx.Err() == nil {
		err = errLinkEnded
	}
	return answer, err
}

// endWait ends the wait for the outcome of an envelope. The caller holds m.mu.
func (m *membership) endWait(id string, o outcome) {
	if c, ok := m.echoes[id]; ok {
		delete(m.echoes, id)
		c <- o
	}
}

// checkPeer returns why a chat to a participant cannot be sent now, or nil if it can.
func (m *membership) checkPeer(peer string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, listed := m.space.participants[peer]
	_, unlisted := m.space.unlisted[peer]
	switch {
	case m.conn == nil:
		return errNotJoined
	case m.pause.on:
		return m.pause.err()
	case !listed && !unlisted:
		return errAbsent // a space stores nothing for participants that are away
	}
	return nil
}
