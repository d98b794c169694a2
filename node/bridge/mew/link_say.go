package mew

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
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

// said is an envelope of ours.
type said struct {
	id, kind    string
	to          []string
	correlation []string
	context     string
	payload     wire.Value
}

func (s said) text(from string) []byte {
	members := []wire.Member{
		wire.TextField("protocol", envelope.Protocol), wire.TextField("id", s.id), wire.TextField("ts", envelope.FormatTime(time.Now())), wire.TextField("from", from), wire.TextField("kind", s.kind),
	}
	if len(s.to) > 0 {
		members = append(members, wire.Field("to", wire.Texts(s.to)))
	}
	if len(s.correlation) > 0 {
		members = append(members, wire.Field("correlation_id", wire.Texts(s.correlation)))
	}
	if s.context != "" {
		members = append(members, wire.TextField("context", s.context))
	}
	return wire.Obj(append(members, wire.Field("payload", s.payload))...).JSON()
}

// may says whether our capabilities in the space allow an envelope (MEW-L4). It needs the lock.
func (l *link) may(s said) bool {
	to := make([]capability.Addressee, len(s.to))
	for i, id := range s.to {
		to[i] = capability.Addressee{Name: id, Runtime: id}
	}
	return capability.FirstAllowing(l.caps, s.kind, to, s.payload) != nil
}

// tell sends an envelope and waits for nothing.
func (l *link) tell(s said) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.put(&s)
}

// sayable returns why an envelope cannot be sent now, nil if it can: a paused participant says only what MEW-37 allows.
// It needs the lock.
func (l *link) sayable(s said) error {
	switch {
	case l.conn == nil:
		return errNotJoined
	case l.pause.on && !ruleOf(s.kind).paused:
		return l.pause.err()
	case !l.may(s):
		return errMayNot
	}
	return nil
}

// put sends an envelope. It needs the lock.
func (l *link) put(s *said) error {
	if err := l.sayable(*s); err != nil {
		return err
	}
	if s.id == "" {
		s.id = envelope.NewID()
	}
	return l.conn.Send(websocket.Text(s.text(l.me)))
}

// outcome is what the space made of an envelope of ours.
type outcome struct {
	err    error
	answer wire.Value // of space/invite-ack, null for others
}

// say sends an envelope and waits until the space has taken it: a gateway gives everybody his own envelopes back. One
// that does not is believed after a while.
func (l *link) say(ctx context.Context, s said) error {
	_, err := l.sayFor(ctx, s)
	return err
}

// sayFor is say for an envelope that the gateway answers (MEW-27).
func (l *link) sayFor(ctx context.Context, s said) (answer wire.Value, err error) {
	c := make(chan outcome, 1)
	l.mu.Lock()
	if s.id == "" {
		s.id = envelope.NewID()
	}
	if len(l.echoes) >= maxEchoes || l.echoes[s.id] != nil {
		l.mu.Unlock()
		return answer, errNotJoined
	}
	err = l.put(&s)
	if err == nil {
		l.echoes[s.id] = c
	}
	l.mu.Unlock()
	if err != nil {
		return answer, err
	}
	defer func() {
		l.mu.Lock()
		delete(l.echoes, s.id)
		l.mu.Unlock()
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
func (l *link) echoed(id string, e outcome) {
	if c, ok := l.echoes[id]; ok {
		delete(l.echoes, id)
		c <- e
	}
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
