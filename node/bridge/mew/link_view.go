package mew

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
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
		Proposals: append([]PendingProposal{}, l.board.waiting()...), Reasoning: append([]Reasoning{}, l.board.reasoning...),
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
	e, refusal := envelope.Parse(data)
	if refusal != nil {
		return "", answer, &Refused{refusal.Status, refusal.Payload.JSON()}
	}
	s := said{id: e.ID, kind: e.Kind, to: e.To, correlation: e.Correlation, context: e.Context, payload: e.Payload}
	if s.id == "" {
		s.id = envelope.NewID()
	}
	if s.payload.IsNull() {
		s.payload = wire.Obj()
	}
	l.mu.Lock()
	ours := (s.kind == envelope.KindRequest || s.kind == envelope.KindReject) && l.board.forUs(s.correlation)
	l.mu.Unlock()
	if ours {
		return "", answer, fault(http.StatusConflict, "the proposal was made to this node; decide about it with agentmesh mew approve, agentmesh mew reject or agentmesh approvals")
	}
	if answer, err = l.sayFor(ctx, s); err != nil {
		return "", answer, unsaid(err)
	}
	return s.id, answer, nil
}

// unsaid tells the owner why an envelope did not get into the space.
func unsaid(err error) error {
	if refused, ok := errors.AsType[*refusedBySpace](err); ok {
		return &Refused{http.StatusConflict, wire.Obj(wire.TextField("error", refused.text)).JSON()}
	}
	return fault(http.StatusConflict, "nothing was sent: "+err.Error())
}
