package node_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// post posts a message to the node, and checks the answer and everything else that happens meanwhile. twice posts two
// copies at once, to different processes if there are several.
func (s *side) post(raw []byte, twice bool) meshtest.Answer {
	s.busy <- struct{}{}
	defer func() { <-s.busy }()
	w, now, commits := s.w, time.Now(), s.commits.Load()
	m, ok := w.parse(raw)
	if !ok {
		w.t.Fatalf("not a message: %s", raw)
	}
	w.mu.Lock()
	w.calls = append(w.calls, &call{s, raw, m})
	if w.party(m.From) != nil {
		w.leaves(m)
	}
	h, known := s.spec.begin(m, raw, now), s.spec.heard[heardKey{m.From, m.ID}]
	if first := wire.MessageID(m.Meta("resend_of")); known == nil && first != "" {
		known = s.spec.heard[heardKey{m.From, first}]
	}
	if w.came[m.ID] { // it came before, as an answer
		h.may, known = []outcome{{do: "repeat"}}, nil
	}
	s.judging = h
	s.turn++
	turn := s.turn
	w.mu.Unlock()
	here, there := s.at(turn), s.at(turn+1)

	twin := make(chan meshtest.Answer, 1)
	if twice {
		go func() { twin <- there.Post(raw) }()
	}
	a := here.Post(raw)
	w.t.say(fmt.Sprintf("%s <- %s %s %s %s: %d %s", s.name, m.ID, m.Conversation, m.Intent, m.Payload.JSON(), a.Status, brief(a.Body)))
	var other meshtest.Answer // to the second copy: the same, or the final one (AM-22)
	if twice {
		if other = <-twin; a.Status == other.Status && !bytes.Equal(a.Body, other.Body) {
			w.t.fault(fmt.Sprintf("repeat: of two copies at once, %s answers one with %d %s", s.name, other.Status, other.Body))
		}
	}

	var got outcome
	var answer wire.Message
	isHeld := a.Status == http.StatusAccepted && s.isHeld(m.ID)
	w.mu.Lock()
	defer w.mu.Unlock()
	if other.Status/100 == 2 {
		w.answers(s, m, other.Message(w.t, here))
	}
	s.judging = nil
	if a.Status != http.StatusServiceUnavailable && s.spec.standing[m.From] != acl.Blocked {
		defer func() { s.met[m.From] = true }()
	}
	switch {
	case slices.Contains(h.may, outcome{do: "repeat"}):
		got = outcome{do: "repeat"}
		s.checkRepeat(known, a, here)
	case a.Status >= 400 && s.refused[m.ID] && slices.Contains(h.may, outcome{do: "take"}):
		got = outcome{do: "take"} // and the agent refused it
	case a.Status >= 400:
		got = outcome{"refuse", a.Status, a.Code()}
		if after := s.commits.Load(); after != commits && w.alone && now.Equal(time.Now()) && s.met[m.From] { // the first message pins the key (AM-11)
			w.t.fault(fmt.Sprintf("refusal: %s commits something although it answers %s", s.name, got))
		}
	default:
		answer = a.Message(w.t, here)
		got = s.classify(h, answer, a.Status, isHeld)
		w.answers(s, m, answer)
	}
	if !slices.Contains(h.may, got) {
		w.t.fault(fmt.Sprintf("receive: %s answers %s to %s %s, want %v", s.name, got, m.Intent, m.Payload.JSON(), h.may))
	}
	s.spec.saw(h, got, a.Status, a.Body, time.Now())
	if t := s.spec.talks[talkKey{m.From, m.Conversation}]; t != nil {
		t.refused = t.refused || s.refused[m.ID]
		t.mayEnd = t.mayEnd || s.refused[m.ID] || isDeal(answer)
	}
	return a
}

// isDeal reports whether a message may make an agreement, after which the opener closes the conversation (AM-39).
func isDeal(m wire.Message) bool { return m.Action() == "accept" || m.Action() == "counter" }

func brief(body []byte) string { return string(body[:min(len(body), 600)]) }

// classify returns what the node did with a message that it accepted.
func (s *side) classify(h *heard, answer wire.Message, status int, isHeld bool) outcome {
	isPending := status == http.StatusAccepted && answer.Action() == wire.ActionPending
	switch mayHold, mayTake := slices.Contains(h.may, outcome{do: "hold"}), slices.Contains(h.may, outcome{do: "take"}); {
	case h.m.Action() == wire.ActionClose:
		_, wasAnswer := s.w.sync[h.m.ID] // which came by itself, too
		if !wasAnswer && (answer.Action() != wire.ActionClose || answer.Payload.GetStr("status") != h.m.Payload.GetStr("status")) {
			s.w.t.fault(fmt.Sprintf("close: %s echoes %s", s.name, answer.Payload.JSON()))
		}
		return outcome{do: "close"}
	case isPending && mayHold && (!mayTake || isHeld):
		return outcome{do: "hold"}
	}
	return outcome{do: "take"} // also if the hook is slow, or the owner decides about its answer
}

// isHeld reports whether a message waits for the owner.
func (s *side) isHeld(id wire.MessageID) bool {
	for _, item := range s.items() {
		if item.MessageID == id && item.State == owner.ItemHeld {
			var ask owner.Approval
			s.ask("GET", "/approvals/"+item.Ask, nil, &ask)
			return ask.Kind == owner.AskMessage
		}
	}
	return false
}

// checkRepeat checks the answer to bytes that the node has accepted before. known has the answer that they got last.
func (s *side) checkRepeat(known *heard, a meshtest.Answer, here *meshtest.Member) {
	if known == nil || bytes.Equal(known.answer, a.Body) && known.status == a.Status {
		return
	}
	before, _ := s.w.parse(known.answer)
	if known.status != http.StatusAccepted && !(known.waited && before.Action() == wire.ActionReceived) || a.Status >= 400 && !s.refused[known.m.ID] {
		s.w.t.fault(fmt.Sprintf("repeat: %s answers %d %s, before %d %s", s.name, a.Status, a.Body, known.status, known.answer))
		return
	}
	known.status, known.answer, known.waited = a.Status, a.Body, true // AM-22
	if a.Status >= 400 {
		return
	}
	s.w.answers(s, known.m, a.Message(s.w.t, here))
}

// leaves checks a message that a node sends.
func (w *world) leaves(m wire.Message) {
	s := w.party(m.From)
	if _, known := w.sent[m.ID]; known {
		return
	}
	w.sent[m.ID] = m
	if s.spec.standing[m.To] == acl.Blocked && m.Action() != wire.ActionClose { // a block ends what waits (AM-34, AM-35)
		w.t.fault(fmt.Sprintf("blocked: %s writes to %s, whom its owner blocked: %s", s.name, m.To, m.Payload.JSON()))
	}
	answered, isAnswer := w.sent[conversations.AnswersIn(m.Payload)]
	isAnswer = isAnswer && answered.Conversation == m.Conversation && answered.From == m.To
	if isAnswer && m.Action() != wire.ActionClose && answered.Intent != m.Intent {
		w.t.fault(fmt.Sprintf("intent: %s answers %s %s with %s %s", s.name, answered.Intent, answered.Payload.JSON(), m.Intent, m.Payload.JSON()))
	}
	if mustAsk(m, answered.Intent) && s.spec.allowed[outKey(m.To, m.Conversation, m.Payload)] == 0 {
		w.t.fault(fmt.Sprintf("held leaves: %s sends %s %s without a decision", s.name, m.Intent, m.Payload.JSON()))
	}
	unasked := perhaps
	if conversations.AnswersIn(m.Payload) == "" && m.Action() != wire.ActionClose {
		unasked = yes
	}
	s.spec.wrote(m.To, m.Conversation, m.Intent, unasked, time.Now())
	if m.Action() == wire.ActionClose || isDeal(m) {
		s.spec.talks[talkKey{m.To, m.Conversation}].mayEnd = true
	}
}

// answers checks a synchronous answer of s to m.
func (w *world) answers(s *side, m, answer wire.Message) {
	if answer.Intent != m.Intent || answer.Conversation != m.Conversation || answer.To != m.From || answer.From != s.id {
		w.t.fault(fmt.Sprintf("intent: %s answers %s %s in %s with %s %s", s.name, m.Intent, m.Payload.JSON(), m.Conversation, answer.Intent, answer.Payload.JSON()))
	}
	if _, known := w.sent[answer.ID]; known {
		return
	}
	w.sent[answer.ID], w.sync[answer.ID] = answer, m.ID
	if mustAsk(answer, m.Intent) && s.spec.allowed[outKey(answer.To, answer.Conversation, answer.Payload)] == 0 {
		w.t.fault(fmt.Sprintf("held leaves: %s answers %s %s without a decision", s.name, m.Intent, answer.Payload.JSON()))
	}
}

// Handle is the hook of the node.
func (s *side) Handle(ctx context.Context, c hook.Call) (hook.Answer, error) {
	w := s.w
	w.mu.Lock()
	id := c.Message.ID
	h := s.spec.heard[heardKey{c.Message.From, id}]
	if h == nil && s.judging != nil && s.judging.m.ID == id {
		h = s.judging
	}
	w.t.say(fmt.Sprintf("hook of %s runs for %s, attempt %d", s.name, id, c.Attempt))
	switch {
	case h == nil && w.sent[id].To != s.id:
		w.t.fault(fmt.Sprintf("hook: %s runs for a message that it has not accepted: %s", s.name, c.Payload))
	case h != nil && !s.spec.mayRun(h):
		w.t.fault(fmt.Sprintf("held leaves: %s hands %s to its hook without a decision", s.name, c.Payload))
	}
	if !c.Reminder {
		s.runs[id]++
	}
	if h != nil && s.runs[id] > 1+h.again {
		w.t.fault(fmt.Sprintf("twice: %s runs its hook %d times for %s", s.name, s.runs[id], c.Payload))
	}
	w.marks++
	mark, does := w.marks, s.hook
	if w.hooked++; w.hooked > 100 {
		does = 0 // two hooks would talk for ever, and quick ones without any time passing
	}
	s.working[id]++
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		s.working[id]--
	}()
	says := func(payload string) (hook.Answer, error) {
		v, err := wire.Parse([]byte(payload))
		return hook.Answer{Payload: &v}, err
	}
	action := c.Message.Action()
	switch isOffer := action == "propose" || action == "counter"; {
	case does == 1 && isOffer:
		return says(`{"action":"accept"}`)
	case does == 2 && isOffer:
		return says(payloadOf("counter", c.Message.Intent, mark))
	case does == 3 && !c.Approved:
		w.mu.Lock()
		if t := s.spec.talks[talkKey{c.Message.From, c.Message.Conversation}]; t != nil {
			t.suspends = true
		}
		w.mu.Unlock()
		return hook.Answer{Hold: "the agent wants to know"}, nil
	case does == 4:
		w.mu.Lock()
		s.refused[id] = true
		if t := s.spec.talks[talkKey{c.Message.From, c.Message.Conversation}]; t != nil {
			t.mayEnd, t.refused = true, true
		}
		w.mu.Unlock()
		return hook.Answer{Err: wire.ErrOwnerRejected}, nil
	case does == 5:
		select {
		case <-time.After(25 * time.Second):
		case <-ctx.Done():
			return hook.Answer{}, ctx.Err()
		}
		return says(payloadOf("deliver", c.Message.Intent, mark))
	case does == 6:
		return says(payloadOf("deliver", c.Message.Intent, mark))
	case does == 7:
		return hook.Answer{Async: true}, nil
	}
	return hook.Answer{}, nil
}
