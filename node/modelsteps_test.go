package node_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

const boat = wire.Intent("com.example.boat")

// payloadOf returns a payload with a mark, by which a leak is recognized.
func payloadOf(action string, intent wire.Intent, mark int) string {
	text := fmt.Sprintf("mark-%d-", mark)
	switch {
	case (action == "propose" || action == "counter") && intent == wire.Negotiate:
		return fmt.Sprintf(`{"action":%q,"terms":{"description":%q,"price":"%d EUR"}}`, action, text, mark)
	case action == "propose" || action == "counter":
		return fmt.Sprintf(`{"action":%q,"event":{"title":%q,"proposed_times":["2000-03-%02dT10:00:00Z"],"duration":"30m"}}`, action, text, 1+mark%28)
	case action == "several":
		return fmt.Sprintf(`{"action":"propose","event":{"title":%q,"proposed_times":["2000-03-%02dT10:00:00Z","2000-03-%02dT14:00:00Z"],"duration":"30m"}}`, text, 1+mark%28, 1+mark%28)
	case action == "bad":
		return fmt.Sprintf(`{"action":"propose","event":{"title":%q,"proposed_times":[]}}`, text)
	case action == "other title":
		return fmt.Sprintf(`{"action":"accept","event":{"title":%q}}`, text)
	case action == "deliver":
		return fmt.Sprintf(`{"action":"deliver","message":{"body":%q}}`, text)
	case action == "ask":
		return fmt.Sprintf(`{"action":"ask","question":%q}`, text)
	case action == "request_human":
		return fmt.Sprintf(`{"action":"request_human","reason":%q}`, text)
	case action == "completed" || action == "failed" || action == "bad status":
		return fmt.Sprintf(`{"action":"close","status":%q}`, action)
	}
	return fmt.Sprintf(`{"action":%q,"reason":%q}`, action, text)
}

// kinds are what a party may begin with; acts are what it may answer.
var (
	kinds = []struct {
		intent wire.Intent
		action string
	}{
		{wire.Deliver, "deliver"}, {wire.RequestInfo, "ask"}, {wire.Schedule, "propose"}, {wire.Schedule, "several"},
		{wire.Negotiate, "propose"}, {wire.Handoff, "request_human"}, {boat, "deliver"}, {wire.Schedule, "propose"},
	}
	acts = []string{"accept", "accept", "decline", "reject", "counter", "withdraw", "cancel", "deliver", "other title", "accept"}
)

func (w *world) mark() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.marks++
	return w.marks
}

func convOf(n int) wire.ConversationID { return wire.ConversationID(fmt.Sprint("conv_", n%4)) }

// ask calls the owner API, or the agent's door, and returns the status.
func (s *side) ask(method, path string, body, dst any) int {
	return s.call(s.at(0).Owner, method, path, body, dst)
}

func (s *side) call(door http.Handler, method, path string, body, dst any) int {
	m := *s.at(0)
	m.Owner = door
	var in []byte
	if body != nil {
		in = wire.MustMarshal(body)
	}
	a := m.Ask(method, path, in)
	if method != http.MethodGet {
		s.w.t.say(fmt.Sprintf("%s %s %s %s: %d %s", s.name, method, path, in, a.Status, brief(a.Body)))
	}
	if a.Status < 300 && dst != nil {
		if err := json.Unmarshal(a.Body, dst); err != nil {
			s.w.t.Fatalf("%s %s: %s: %v", method, path, a.Body, err)
		}
	}
	return a.Status
}

// door returns the owner's door or the agent's.
func (s *side) door(n int) http.Handler {
	p := s.at(n >> 1)
	if n&1 != 0 {
		return p.Agent
	}
	return p.Owner
}

func (s *side) items() []owner.Item {
	var list owner.List[owner.Item]
	s.ask("GET", "/inbox?limit=1000", nil, &list)
	return list.Items
}

// send: the owner or the agent writes unasked.
func (w *world) send(st step) {
	s := w.sides[st.a%2]
	to := s.other().id
	if st.a>>1&3 == 0 {
		to = w.guest.ID
	}
	kind := kinds[st.b%len(kinds)]
	body := map[string]any{
		"to": to, "intent": kind.intent, "payload": json.RawMessage(payloadOf(kind.action, kind.intent, w.mark())), "wait_seconds": 0,
	}
	if st.c%5 > 0 {
		body["conversation"] = convOf(st.c)
	}
	w.noteWriting(s, st.b>>3, to)
	var sent owner.Sent
	if s.call(s.door(st.b>>3), "POST", "/send", body, &sent) == http.StatusOK {
		w.noteSent(s, to, sent, kind.intent, yes)
	}
}

// noteWriting notes, before the call, that s writes to a peer.
func (w *world) noteWriting(s *side, door int, to wire.AgentID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s.spec.written[to] = s.spec.written[to] || door&1 == 0
}

func (w *world) noteSent(s *side, to wire.AgentID, sent owner.Sent, intent wire.Intent, unasked likely) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if sent.State == owner.SendHeld {
		if t := s.spec.talks[talkKey{to, sent.Conversation}]; t != nil {
			t.suspends = true
		}
		return
	}
	s.spec.wrote(to, sent.Conversation, intent, unasked, time.Now())
}

// answer: the owner or the agent answers an item of the inbox.
func (w *world) answer(st step) {
	s := w.sides[st.a%2]
	items := slices.DeleteFunc(s.items(), func(i owner.Item) bool { return !i.State.IsUnanswered() })
	if len(items) == 0 {
		return
	}
	item := items[st.b%len(items)]
	act := acts[st.c%len(acts)]
	body := map[string]any{"item": item.ID, "payload": json.RawMessage(payloadOf(act, item.Intent, w.mark())), "wait_seconds": 0}
	if act == "accept" {
		body["payload"] = json.RawMessage(`{"action":"accept"}`)
	}
	w.reply(s, st.a>>1, item.Peer, item.Intent, body)
}

// talk: the owner or the agent says something in a conversation.
func (w *world) talk(st step) {
	s := w.sides[st.a%2]
	key, ok := w.pickTalk(s, st.b)
	if !ok {
		return
	}
	act := acts[st.c%len(acts)]
	body := map[string]any{"conversation": key.conv, "peer": key.peer, "payload": json.RawMessage(payloadOf(act, wire.Schedule, w.mark())), "wait_seconds": 0}
	if act == "accept" {
		body["payload"] = json.RawMessage(`{"action":"accept"}`)
	}
	w.reply(s, st.a>>1, key.peer, wire.Schedule, body)
}

func (w *world) reply(s *side, door int, to wire.AgentID, intent wire.Intent, body map[string]any) {
	w.noteWriting(s, door, to)
	var sent owner.Sent
	if s.call(s.door(door), "POST", "/reply", body, &sent) == http.StatusOK {
		w.noteSent(s, to, sent, intent, perhaps)
	}
}

// pickTalk picks one of the conversations of s.
func (w *world) pickTalk(s *side, n int) (talkKey, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var keys []talkKey
	for key := range s.spec.talks {
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return talkKey{}, false
	}
	slices.SortFunc(keys, func(a, b talkKey) int {
		return strings.Compare(string(a.conv)+string(a.peer), string(b.conv)+string(b.peer))
	})
	return keys[n%len(keys)], true
}

// guestSays: the stranger posts something, in the conversations of others, too.
func (w *world) guestSays(st step) {
	s := w.sides[st.a%2]
	var intent wire.Intent
	var action string
	if st.b < 24 {
		kind := kinds[st.b%len(kinds)]
		intent, action = kind.intent, kind.action
	} else {
		intent = []wire.Intent{wire.Schedule, wire.Negotiate, wire.Deliver, boat}[st.b&3]
		action = []string{"accept", "accept", "counter", "decline", "withdraw", "cancel", "completed", "bad status", "bad", "other title", "received"}[st.b>>2-6]
	}
	if action == "bad" {
		intent = wire.Schedule
	}
	payload := payloadOf(action, intent, w.mark())
	if action == "accept" {
		payload = `{"action":"accept"}`
	}
	d := w.guest.Draft(s.id, intent, payload)
	d.Conversation = convOf(st.c)
	w.mu.Lock()
	if st.c>>2&1 != 0 { // it names what it answers: the newest message to it
		var newest wire.Message
		for _, m := range w.sent {
			if m.From == s.id && m.To == w.guest.ID && m.Conversation == d.Conversation && (newest.ID == "" || m.Time.After(newest.Time)) {
				newest = m
			}
		}
		if newest.ID != "" {
			d.Payload = d.Payload.With("metadata", wire.Obj(wire.TextField("in_reply_to", string(newest.ID))))
		}
	}
	switch st.c >> 3 {
	case 0:
		for _, c := range w.calls {
			if c.m.From == w.guest.ID && c.to == s {
				d.ID = c.m.ID // an id again, with other bytes
			}
		}
	case 1:
		d.Time = time.Now().Add(-16 * time.Minute)
	}
	w.mu.Unlock()
	w.postAlone(s, w.guest.Sign(d), st.a>>1&7 == 0)
}

// repeat: somebody posts the bytes of an earlier message again.
func (w *world) repeat(st step) {
	w.mu.Lock()
	var c *call
	if n := len(w.calls); n > 0 {
		c = w.calls[max(0, n-1-st.a%8)]
	}
	w.mu.Unlock()
	if c != nil {
		w.postAlone(c.to, c.raw, st.b&3 == 0)
	}
}

// postAlone posts something while nothing else happens.
func (w *world) postAlone(to *side, raw []byte, twice bool) {
	set := func(alone bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.alone = alone
	}
	set(true)
	defer set(false)
	to.post(raw, twice)
}

// decide: the owner decides a question.
func (w *world) decide(st step) {
	s := w.sides[st.a%2]
	var list owner.List[owner.Approval]
	s.ask("GET", "/approvals?state=pending&limit=100", nil, &list)
	if len(list.Items) == 0 {
		return
	}
	ask := list.Items[st.b%len(list.Items)]
	choice := ask.Choices[st.c%len(ask.Choices)]
	if st.c>>3&1 != 0 {
		choice = acl.Approve
	}
	ids := make(map[string]wire.MessageID)
	for _, item := range s.items() {
		ids[item.ID] = item.MessageID
	}
	w.mu.Lock()
	undo := s.spec.decide(ask, choice, ids, time.Now())
	w.mu.Unlock()
	if status := s.ask("POST", "/approvals/"+ask.ID, map[string]any{"choice": choice, "hash": ask.Hash}, nil); status != http.StatusOK {
		w.mu.Lock()
		undo()
		w.mu.Unlock()
	}
}

func (w *world) changePeer(st step) {
	s := w.sides[st.a%2]
	id := []wire.AgentID{s.other().id, w.guest.ID}[st.b&1]
	s.setStanding(id, []string{"block", "unblock", "allow", "forget", "approve"}[st.c%5])
}

// setStanding changes the owner's rule about a peer.
func (s *side) setStanding(id wire.AgentID, action string) {
	var peer owner.Peer
	s.w.mu.Lock()
	before := s.spec.standing[id]
	if action == "block" {
		s.spec.standing[id] = acl.Blocked
	}
	s.w.mu.Unlock()
	status := s.ask("POST", "/peers/"+string(id), map[string]any{"action": action}, &peer)
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.spec.standing[id] = before; status == http.StatusOK {
		s.spec.standing[id] = peer.Standing
	}
	if action == "block" {
		s.spec.mayEndWith(id)
	}
	if action == "forget" { // the pin, too
		s.met[id] = false
	}
}

func (w *world) close(st step) {
	s := w.sides[st.a%2]
	key, ok := w.pickTalk(s, st.b)
	if !ok {
		return
	}
	status := []string{"completed", "failed"}[st.c&1]
	w.mu.Lock()
	s.spec.talks[key].mayEnd = true
	w.mu.Unlock()
	s.call(s.door(st.c>>1), "POST", "/conversations/"+string(key.conv)+"/close", map[string]any{"peer": key.peer, "status": status, "wait_seconds": 0}, nil)
}

func (w *world) restart(st step) {
	s := w.sides[st.a%2]
	s.busy <- struct{}{} // no call is half done
	defer func() { <-s.busy }()
	w.mu.Lock()
	for id, n := range s.working {
		for _, h := range s.spec.heard {
			if h.m.ID == id && n > 0 {
				h.again++
			}
		}
	}
	w.mu.Unlock()
	if len(s.procs) == 1 {
		s.shut()
		s.open()
		s.start()
		return
	}
	i := st.b % 2
	s.procs[i].Stop()
	s.setProcs(slices.Delete(slices.Clone(s.procs), i, i+1))
	s.start()
}

// lose: the next calls to a node are lost, or its answers to them.
func (w *world) lose(st step) {
	s := w.sides[st.a%2]
	w.mu.Lock()
	defer w.mu.Unlock()
	s.lost, s.after = 1+st.b%3, st.c&1 != 0
}

func (w *world) down(st step) {
	s := w.sides[st.a%2]
	w.mu.Lock()
	defer w.mu.Unlock()
	s.isDown = !s.isDown
}

func (w *world) pause(st step) {
	s := w.sides[st.a%2]
	path := "/pause"
	if s.spec.paused {
		path = "/resume"
	}
	if s.ask("POST", path, nil, nil) < 300 {
		w.mu.Lock()
		s.spec.paused = !s.spec.paused
		w.mu.Unlock()
		w.settle()
	}
}

func (w *world) wait(st step) {
	time.Sleep([]time.Duration{time.Second, 10 * time.Second, 40 * time.Second, 3 * time.Minute, 16 * time.Minute, 62 * time.Minute}[st.a%6])
}

func (w *world) setHook(st step) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sides[st.a%2].hook = st.b % 8
}
