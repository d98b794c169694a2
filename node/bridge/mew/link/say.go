package link

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

var errLinkEnded = errors.New("the connection ended before the space took the envelope")

// refusedBySpace is an envelope of ours that the gateway refused.
type refusedBySpace struct{ text string }

func (e *refusedBySpace) Error() string { return "the space refused the envelope: " + e.text }

var (
	errNotJoined = errors.New("the node is not in the space now")
	errMayNot    = errors.New("the node's capabilities in the space do not allow this")
)

// outcome is what the space made of an envelope of ours.
type outcome struct {
	err    error
	answer wire.Value // of space/invite-ack, null for others
}

// refusalOf reads a system/error about an envelope of ours. What may be taken later is no refusal.
func refusalOf(payload wire.Value) error {
	switch payload.GetStr("error") {
	case "rate_limited", "participant_paused":
		return errors.New("the space takes nothing of this node now: " + errorText(payload))
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

// tell sends an envelope and waits for nothing.
func (m *membership) tell(s envelope.Draft) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.put(&s)
}

// sayable returns why an envelope cannot be sent now, nil if it can: a paused participant says only what MEW-37 allows.
// It needs the lock.
func (m *membership) sayable(s envelope.Draft) error {
	switch {
	case m.conn == nil:
		return errNotJoined
	case m.pause.on && !envelope.RuleOf(s.Kind).Paused:
		return m.pause.err()
	case !m.space.may(s):
		return errMayNot
	}
	return nil
}

// put sends an envelope. It needs the lock.
func (m *membership) put(s *envelope.Draft) error {
	if err := m.sayable(*s); err != nil {
		return err
	}
	if s.ID == "" {
		s.ID = envelope.NewID()
	}
	return m.conn.Send(websocket.Text(s.JSON(m.space.me)))
}

// say sends an envelope and waits until the space has taken it: a gateway gives everybody his own envelopes back. One
// that does not is believed after a while.
func (m *membership) say(ctx context.Context, s envelope.Draft) error {
	_, err := m.sayFor(ctx, s)
	return err
}

// sayFor is say for an envelope that the gateway answers (MEW-27).
func (m *membership) sayFor(ctx context.Context, s envelope.Draft) (answer wire.Value, err error) {
	c := make(chan outcome, 1)
	m.mu.Lock()
	if s.ID == "" {
		s.ID = envelope.NewID()
	}
	if len(m.echoes) >= maxEchoes || m.echoes[s.ID] != nil {
		m.mu.Unlock()
		return answer, errNotJoined
	}
	err = m.put(&s)
	if err == nil {
		m.echoes[s.ID] = c
	}
	m.mu.Unlock()
	if err != nil {
		return answer, err
	}
	defer func() {
		m.mu.Lock()
		delete(m.echoes, s.ID)
		m.mu.Unlock()
	}()
	timer := time.NewTimer(echoPatience)
	defer timer.Stop()
	select {
	case e := <-c:
		return e.answer, e.err
	case <-timer.C:
		return answer, nil
	case <-ctx.Done():
		return answer, ctx.Err()
	}
}

// echoed ends the wait of whoever said the envelope. It needs the lock.
func (m *membership) echoed(id string, e outcome) {
	if c, ok := m.echoes[id]; ok {
		delete(m.echoes, id)
		c <- e
	}
}

// ready says whether a participant can be told something: we are in and not paused, and it is there.
func (m *membership) ready(peer string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, there := m.space.people[peer]
	if _, spoke := m.space.spoke[peer]; spoke {
		there = true
	}
	switch {
	case m.conn == nil:
		return errNotJoined
	case m.pause.on:
		return m.pause.err()
	case !there:
		return errAbsent // a space keeps nothing for who is away
	}
	return nil
}

// free says whether we may speak now: in the space and not paused.
func (m *membership) free() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.conn != nil && !m.pause.on
}
