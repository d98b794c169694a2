package mew

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

func (l *link) watch() *Feed { return newFeed(&l.mu, l.feeds) }

// space is the space behind the link, as far as a participant sees it.
func (l *link) space() SpaceStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.board.expire(time.Now())
	out := SpaceStatus{
		ID: l.cfg.Name, Name: l.cfg.Space, Participants: []ParticipantStatus{}, Streams: []json.RawMessage{},
		Proposals: append([]PendingProposal{}, l.board.proposals...), Reasoning: append([]Reasoning{}, l.board.reasoning...),
	}
	for _, v := range l.streams {
		out.Streams = append(out.Streams, v.JSON())
	}
	person := func(id string, caps wire.Value) ParticipantStatus {
		p := ParticipantStatus{Name: id, ID: id, Connected: true, Capabilities: []json.RawMessage{}}
		for v := range caps.Elems() {
			p.Capabilities = append(p.Capabilities, v.JSON())
		}
		return p
	}
	if l.conn == nil {
		return out
	}
	me := person(l.me, wire.Arr(l.shown...))
	me.Since, me.Paused, me.PausedUntil = l.since, l.pause.on, l.pause.until
	out.Participants = append(out.Participants, me)
	for id, caps := range l.people {
		out.Participants = append(out.Participants, person(id, caps))
	}
	slices.SortFunc(out.Participants[1:], func(a, b ParticipantStatus) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// speak sends an envelope of the owner's as this node, and returns its id and what the gateway answers to an invite. A
// refusal is a *[Refused].
func (l *link) speak(ctx context.Context, data []byte) (id string, answer wire.Value, err error) {
	e, refusal := parseEnvelope(data)
	if refusal != nil {
		return "", answer, &Refused{refusal.status, refusal.payload.JSON()}
	}
	s := said{id: e.id, kind: e.kind, to: e.to, correlation: e.correlation, context: e.context, payload: e.payload}
	if s.id == "" {
		s.id = newID()
	}
	if s.payload.IsNull() {
		s.payload = wire.Obj()
	}
	if answer, err = l.sayFor(ctx, s); err != nil {
		return "", answer, &Refused{409, wire.Obj(text1("error", err.Error())).JSON()}
	}
	return s.id, answer, nil
}

// decide fulfils or rejects a proposal in the space, named by its key, in the owner's name.
func (l *link) decide(ctx context.Context, proposal string, approve bool, reason string) (string, error) {
	l.mu.Lock()
	p, ok := l.board.proposal(proposal)
	me := l.me
	l.mu.Unlock()
	if !ok {
		return "", fault(404, "there is no such proposal that waits")
	}
	s, err := p.decided(me, approve, reason)
	if err != nil {
		return "", err
	}
	if err := l.say(ctx, s); err != nil {
		return "", &Refused{409, wire.Obj(text1("error", err.Error())).JSON()}
	}
	l.mu.Lock()
	l.board.settle(p.Key)
	l.mu.Unlock()
	// Where the proposal was for this node, the same is asked under approvals: it is decided now.
	about := job{e: envelope{id: s.id, from: p.From, correlation: s.correlation}, raw: []byte(s.id), at: time.Now()}
	if err := l.settled(ctx, about, "decided in the space", true); err != nil {
		l.log.Info("a question about a proposal could not be withdrawn", "err", err)
	}
	return s.id, nil
}
